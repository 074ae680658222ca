package tree_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// plant makes files in a new directory: names with content; a name that ends with "/" is a directory, content that
// begins with "-> " a link, and content that begins with "#!" makes the file executable.
func plant(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			tb.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(file, 0o700)
		case link:
			err = os.Symlink(target, file)
		case strings.HasPrefix(content, "#!"):
			err = os.WriteFile(file, []byte(content), 0o700)
		default:
			err = os.WriteFile(file, []byte(content), 0o600)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// harvest is the inverse of plant.
func harvest(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			files[name+"/"] = ""
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(file)
			files[name] = "-> " + target
			return err
		default:
			content, err := os.ReadFile(file)
			files[name] = string(content)
			return err
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

func pack(tb testing.TB, store activities.Store, dir string, opts tree.Options) activities.Ref {
	tb.Helper()
	ref, err := tree.Pack(tb.Context(), store, dir, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return ref
}

func names(files map[string]string) []string { return slices.Sorted(maps.Keys(files)) }

func TestWhatIsPackedIsUnpacked(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"train.py":                         "import sys\n",
		"run.sh":                           "#!/bin/sh\n",
		"empty/":                           "",
		"zero":                             "",
		"a/":                               "",
		"a/b/":                             "",
		"a/b/c":                            "deep",
		"a/up":                             "-> ../train.py",
		"latest":                           "-> a/b",
		"nowhere":                          "-> a/b/not-yet",
		"a-b":                              "sorts between a and a/",
		"Ünïcode — 名":                      "words",
		"latin-\xe9.md":                    "a name that is not UTF-8",
		"latin-\xe9/":                      "",
		"latin-\xe9/\xff":                  "nor is that of its directory",
		"x/":                               "",
		"x/" + strings.Repeat("long/", 60): "",
		"x/" + strings.Repeat("long/", 60) + "file": "deeper than tar's first hundred bytes",
	}
	for i := range 60 {
		want["x/"+strings.Repeat("long/", i+1)] = ""
	}
	store := commandtest.NewStore()
	dir := filepath.Join(t.TempDir(), "new", "directory")
	ref := pack(t, store, plant(t, want), tree.Options{})
	if err := tree.Unpack(t.Context(), store, ref, dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, harvest(t, dir)); diff != "" {
		t.Errorf("unpacked (-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(dir, "run.sh"))
	if err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("run.sh: got %v, %v, want it executable", info.Mode(), err)
	}
	if again := pack(t, store, dir, tree.Options{}); again != ref {
		t.Errorf("packed again: got %+v, want %+v", again, ref)
	}
}

func TestTheDigestDependsOnTheFilesAlone(t *testing.T) {
	t.Parallel()
	files := map[string]string{"train.py": "print(1)\n", "data/x": "1", "run.sh": "#!/bin/sh\n", "l": "-> data/x"}
	first, second := plant(t, files), plant(t, files)
	if err := os.Chtimes(filepath.Join(second, "train.py"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{"train.py": 0o644, "run.sh": 0o755, "data": 0o750} {
		if err := os.Chmod(filepath.Join(second, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(second, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A digest in a history must be found by the next version: this one only changes when the format does.
	const want = "6286fe098d72abd996c902e4c98df78579e770c0e389670eb9c0998737f227e8"
	store := commandtest.NewStore()
	for _, dir := range []string{first, second} {
		if got := pack(t, store, dir, tree.Options{}).Digest; got != want {
			t.Errorf("digest: got %s, want %s", got, want)
		}
	}
	if err := os.Chmod(filepath.Join(second, "train.py"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := pack(t, store, second, tree.Options{}).Digest; got == want {
		t.Error("the digest does not tell an executable file from a plain one")
	}
}

func TestAnyTreeSurvivesPacking(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		want := rapid.MapOfN(rapid.StringMatching(`[a-c]/[a-cé]{1,3}|[d-f]{1,2}`), rapid.StringN(0, 2000, -1), 0, 8).
			Draw(r, "files")
		for name := range want {
			if strings.HasPrefix(want[name], "-> ") {
				want[name] = ""
			}
			if parent, _, nested := strings.Cut(name, "/"); nested {
				want[parent+"/"] = ""
			}
		}
		store, dir := commandtest.NewStore(), t.TempDir()
		if err := tree.Unpack(t.Context(), store, pack(t, store, plant(t, want), tree.Options{}), dir); err != nil {
			r.Fatal(err)
		}
		if diff := cmp.Diff(want, harvest(t, dir)); diff != "" {
			r.Errorf("unpacked (-want +got):\n%s", diff)
		}
	})
}

func TestOnlyWhatIsNamedIsPacked(t *testing.T) {
	t.Parallel()
	store, dir := commandtest.NewStore(), t.TempDir()
	source := plant(t, map[string]string{"a/x": "1", "a/y": "2", "b/x": "3", "b/y/z": "4", "c": "5"})
	ref := pack(t, store, source, tree.Options{Only: []string{"b", "b/y", "a/y"}})
	if err := tree.Unpack(t.Context(), store, ref, dir); err != nil {
		t.Fatal(err)
	}
	want := []string{"a/", "a/y", "b/", "b/x", "b/y/", "b/y/z"}
	if diff := cmp.Diff(want, names(harvest(t, dir))); diff != "" {
		t.Errorf("packed (-want +got):\n%s", diff)
	}
	for _, only := range []string{"../x", "/etc", ""} {
		if _, err := tree.Pack(t.Context(), store, source, tree.Options{Only: []string{only}}); err == nil {
			t.Errorf("Only %q: got no error, want one", only)
		}
	}
	if _, err := tree.Pack(t.Context(), store, source, tree.Options{Only: []string{"missing"}}); !errors.Is(err,
		fs.ErrNotExist) {
		t.Errorf("Only a missing file: got %v, want fs.ErrNotExist", err)
	}
}

func TestALinkOutOfTheTreeIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files map[string]string
	}{
		{"absolute", map[string]string{"link": "-> /etc/hostname"}},
		{"up", map[string]string{"link": "-> ../x"}},
		{"up from below", map[string]string{"a/link": "-> ../../x"}},
		{
			"up, through a link that makes the way shorter",
			map[string]string{"z/": "", "x/y/d": "-> ../../z", "x/y/link": "-> d/../../q"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, dir := commandtest.NewStore(), plant(t, tt.files)
			_, err := tree.Pack(t.Context(), store, dir, tree.Options{})
			if err == nil || !strings.Contains(err.Error(), "link to") || !strings.Contains(err.Error(), "leads out") {
				t.Errorf("Pack: got %v, want the link refused by name", err)
			}
			if changed, err := tree.Changed(t.Context(), tree.Snapshot{}, dir); err != nil || slices.Contains(changed, "link") {
				t.Errorf("Changed: got %v, %v, want the link left out", changed, err)
			}
		})
	}
}

func TestAnAbsoluteLinkIntoTheTreeIsMadeRelative(t *testing.T) {
	t.Parallel()
	store, dir, unpacked := commandtest.NewStore(), plant(t, map[string]string{"a/b/file": "x", "c/d/": ""}), t.TempDir()
	for name, target := range map[string]string{"c/d/link": "a/b/file", "top": "a/b", "self": "", "dangling": "a/z"} {
		if err := os.Symlink(filepath.Join(dir, target), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Unpack(t.Context(), store, pack(t, store, dir, tree.Options{}), unpacked); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"a/": "", "a/b/": "", "a/b/file": "x", "c/": "", "c/d/": "",
		"c/d/link": "-> ../../a/b/file", "top": "-> a/b", "self": "-> .", "dangling": "-> a/z",
	}
	if diff := cmp.Diff(want, harvest(t, unpacked)); diff != "" {
		t.Errorf("unpacked (-want +got):\n%s", diff)
	}
}

func TestATreeThatIsTooLargeIsRefusedWithWhatIsLarge(t *testing.T) {
	t.Parallel()
	store := commandtest.NewStore()
	dir := plant(t, map[string]string{
		"src/project/data/big.bin": strings.Repeat("x", 5000), "src/main.py": "12345",
		"cache/1": strings.Repeat("x", 1000), "cache/2": strings.Repeat("x", 1000), "model": strings.Repeat("x", 500),
		"small": "x",
	})
	_, err := tree.Pack(t.Context(), store, dir, tree.Options{MaxBytes: 7000})
	var size *tree.SizeError
	if !errors.As(err, &size) {
		t.Fatalf("got %v, want a SizeError", err)
	}
	want := &tree.SizeError{Dir: dir, Total: 7506, Limit: 7000, Largest: []tree.Share{
		{Path: "src/project/data/big.bin", Bytes: 5000}, {Path: "cache/", Bytes: 2000}, {Path: "model", Bytes: 500},
	}}
	if diff := cmp.Diff(want, size); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if !strings.Contains(err.Error(), ".spillwayignore") || !strings.Contains(err.Error(), "4.9 KiB") {
		t.Errorf("got %q, want sizes and what to do", err)
	}
	if store.Len() != 0 {
		t.Error("something was stored")
	}
	if _, err := tree.Pack(t.Context(), store, dir, tree.Options{MaxBytes: 7506}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

// slowStore changes a file when it has seen the first bytes of the archive.
type slowStore struct {
	activities.Store
	change func()
}

func (s slowStore) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	if _, err := io.ReadFull(r, make([]byte, 600)); err != nil {
		return activities.Ref{}, err
	}
	s.change()
	return s.Store.Put(ctx, r)
}

func TestAFileThatIsWrittenWhileItIsPackedIsAnError(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(string) error{
		"it grows":          func(file string) error { return os.WriteFile(file, make([]byte, 2<<20), 0o600) },
		"it shrinks":        func(file string) error { return os.Truncate(file, 10) },
		"it becomes a pipe": func(file string) error { return errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)) },
		"it has other content": func(file string) error {
			return os.WriteFile(file, bytes.Repeat([]byte("y"), 1<<20), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := plant(t, map[string]string{"a": strings.Repeat("x", 1<<20), "b": strings.Repeat("x", 1<<20)})
			store := slowStore{commandtest.NewStore(), func() {
				if err := change(filepath.Join(dir, "b")); err != nil {
					t.Error(err)
				}
			}}
			ignore, err := tree.ParseIgnore(strings.NewReader("c\n"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = tree.Pack(t.Context(), store, dir, tree.Options{Ignore: ignore})
			if !errors.Is(err, tree.ErrChanged) || !strings.Contains(err.Error(), tree.IgnoreFile) {
				t.Errorf("got %v, want ErrChanged and how to leave the file out", err)
			}
		})
	}
}

func TestAllFilesThatAreWrittenWhileTheyArePackedAreNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		growing int
		want    string
	}{
		"a few": {3, ": log-00, log-01, log-02: changed during packing; "},
		"many":  {12, ", log-06, log-07 and 4 more: changed during packing; "},
	} {
		files := map[string]string{"a": strings.Repeat("x", 1<<20), "z": "same"}
		for i := range test.growing {
			files[fmt.Sprintf("log-%02d", i)] = "begun"
		}
		dir := plant(t, files)
		store := slowStore{commandtest.NewStore(), func() {
			for i := range test.growing {
				log := filepath.Join(dir, fmt.Sprintf("log-%02d", i))
				if err := os.WriteFile(log, []byte("begun, went on"), 0o600); err != nil {
					t.Error(err)
				}
			}
		}}
		_, err := tree.Pack(t.Context(), store, dir, tree.Options{})
		if !errors.Is(err, tree.ErrChanged) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want ErrChanged and %q", name, err, test.want)
		}
	}
}

func TestAStoreThatFailsEndsPacking(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	store := commandtest.NewStore()
	store.Fail(full)
	dir := plant(t, map[string]string{"a": strings.Repeat("x", 1<<20)})
	if _, err := tree.Pack(t.Context(), store, dir, tree.Options{}); !errors.Is(err, full) {
		t.Errorf("got %v, want the store's error", err)
	}
}

func TestPackingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	store := commandtest.NewStore()
	dir := plant(t, map[string]string{"a": "x"})
	ref := pack(t, store, dir, tree.Options{})
	cancel()
	if _, err := tree.Pack(ctx, store, dir, tree.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Pack: got %v, want context.Canceled", err)
	}
	if err := tree.Unpack(ctx, store, ref, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("Unpack: got %v, want context.Canceled", err)
	}
}

// archive writes a tar that Pack would not.
func archive(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for i := range headers {
		if err := w.WriteHeader(&headers[i]); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(make([]byte, headers[i].Size)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buffer.Bytes()
}

// hostile are archives that must not be unpacked.
func hostile(tb testing.TB) map[string][]byte {
	tb.Helper()
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	return map[string][]byte{
		"an absolute name":            archive(tb, file("/outside")),
		"a name with dots":            archive(tb, file("../outside")),
		"a name with dots within":     archive(tb, file("a/../../outside")),
		"a name that is not clean":    archive(tb, file("a//b")),
		"the directory itself":        archive(tb, file(".")),
		"a link out":                  archive(tb, link("l", "../outside")),
		"an absolute link":            archive(tb, link("l", "/tmp")),
		"a file through its own link": archive(tb, link("l", "a"), file("l/outside")),
		"a file through a deeper link": archive(tb, tar.Header{Typeflag: tar.TypeDir, Name: "z/"}, link("x/y/d", "../../z"),
			link("x/y/e", "d/../../outside")),
		"a file below a file":    archive(tb, file("a"), file("a/b")),
		"a name twice":           archive(tb, file("a"), file("a")),
		"a directory and a file": archive(tb, tar.Header{Typeflag: tar.TypeDir, Name: "a/"}, file("a")),
		"a hard link":            archive(tb, tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "../outside"}),
		"a device": archive(tb, tar.Header{
			Typeflag: tar.TypeChar, Name: "null", Devmajor: 1,
			Devminor: 3,
		}),
		"a pipe":     archive(tb, tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}),
		"no archive": []byte(strings.Repeat("no archive ", 100)),
		"half an archive": archive(tb, file("a"),
			tar.Header{Typeflag: tar.TypeReg, Name: "b", Size: 2000})[:2048],
	}
}

func TestAHostileArchiveIsRefused(t *testing.T) {
	t.Parallel()
	for name, data := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, dir := commandtest.NewStore(), t.TempDir()
			ref, err := store.Put(t.Context(), bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if err := tree.Unpack(t.Context(), store, ref, filepath.Join(dir, "in")); err == nil {
				t.Error("got no error, want one")
			}
			for name := range harvest(t, dir) {
				if !strings.HasPrefix(name, "in/") {
					t.Errorf("%s was written outside", name)
				}
			}
		})
	}
}

func TestUnpackingDoesNotFollowALinkOutThatIsThereAlready(t *testing.T) {
	t.Parallel()
	store, outside := commandtest.NewStore(), t.TempDir()
	ref := pack(t, store, plant(t, map[string]string{"data/x": "new", "file": "new"}), tree.Options{})
	dir := plant(t, map[string]string{"data": "-> " + outside})
	if err := tree.Unpack(t.Context(), store, ref, dir); err == nil {
		t.Error("got no error, want one")
	}
	if got := harvest(t, outside); len(got) != 0 {
		t.Errorf("outside: got %v, want nothing", got)
	}
}

func TestUnpackingReplacesFilesAndJoinsDirectories(t *testing.T) {
	t.Parallel()
	store, outside := commandtest.NewStore(), plant(t, map[string]string{"file": "outside"})
	ref := pack(t, store, plant(t, map[string]string{"data/x": "new", "file": "new"}), tree.Options{})
	dir := plant(t, map[string]string{"data/x": "old", "data/y": "old", "file": "-> " + filepath.Join(outside, "file")})
	if err := tree.Unpack(t.Context(), store, ref, dir); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"data/": "", "data/x": "new", "data/y": "old", "file": "new"}
	if diff := cmp.Diff(want, harvest(t, dir)); diff != "" {
		t.Errorf("unpacked (-want +got):\n%s", diff)
	}
	if got := harvest(t, outside)["file"]; got != "outside" {
		t.Errorf("the file behind the link: got %q, want it as it was", got)
	}
}

func TestAMissingOrDamagedArchiveIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	store := commandtest.NewStore()
	missing := activities.Ref{Digest: strings.Repeat("0", 64), Bytes: 1}
	if err := tree.Unpack(t.Context(), store, missing, t.TempDir()); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("missing: got %v, want ErrMissing", err)
	}
	ref := pack(t, store, plant(t, map[string]string{"a": "content"}), tree.Options{})
	store.Damage(ref.Digest, 512) // the file's content, which tar does not check
	if err := tree.Unpack(t.Context(), store, ref, t.TempDir()); !errors.Is(err, activities.ErrCorrupt) {
		t.Errorf("damaged: got %v, want ErrCorrupt", err)
	}
}

// FuzzUnpack gives it any bytes: nothing is written outside, and what was unpacked can be packed, to what unpacks to
// the same.
func FuzzUnpack(f *testing.F) {
	for _, data := range hostile(f) {
		f.Add(data)
	}
	seeds := commandtest.NewStore()
	ref := pack(f, seeds, plant(f, map[string]string{
		"a/b": "x", "l": "-> a/b", "run": "#!/bin/sh",
		"latin-\xe9/\xff": "x",
	}), tree.Options{})
	good, err := activities.ReadAll(f.Context(), seeds, ref.Digest)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		store, dir := commandtest.NewStore(), t.TempDir()
		ref, err := store.Put(t.Context(), bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		in := filepath.Join(dir, "in")
		err = tree.Unpack(t.Context(), store, ref, in)
		var total quantity.Bytes
		for name, content := range harvest(t, dir) {
			total += quantity.Bytes(len(content))
			if name != "in/" && !strings.HasPrefix(name, "in/") {
				t.Fatalf("%q was written outside", name)
			}
		}
		if total > quantity.Bytes(len(data)) {
			t.Errorf("unpacked %s from an archive of %s", total, quantity.Bytes(len(data)))
		}
		if err != nil {
			return
		}
		again, err := tree.Pack(t.Context(), store, in, tree.Options{})
		if err != nil {
			t.Fatalf("pack what was unpacked: %v", err)
		}
		second := filepath.Join(dir, "second")
		if err := tree.Unpack(t.Context(), store, again, second); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(harvest(t, in), harvest(t, second)); diff != "" {
			t.Errorf("packed and unpacked again (-want +got):\n%s", diff)
		}
	})
}
