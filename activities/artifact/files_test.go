package artifact_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a store in a new directory.
func open(t *testing.T) *artifact.Files {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// put stores data.
func put(t *testing.T, store activities.Store, data string) activities.Ref {
	t.Helper()
	ref, err := store.Put(t.Context(), strings.NewReader(data))
	if err != nil {
		t.Fatalf("Put(%d bytes): %v", len(data), err)
	}
	return ref
}

// path is where the package comment says that digest is.
func path(store *artifact.Files, digest string) string {
	return filepath.Join(store.Dir(), digest[:2], digest[2:])
}

// stored lists every file of the store.
func stored(t *testing.T, store *artifact.Files) (names []string) {
	t.Helper()
	err := filepath.WalkDir(store.Dir(), func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, strings.TrimPrefix(name, store.Dir()+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func digestOf(data string) string {
	sum := sha256.Sum256([]byte(data))
	return hex.EncodeToString(sum[:])
}

func TestWhatIsPutIsReadBack(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"nothing at all":            "",
		"a short text":              "nine bytes",
		"more than one copy buffer": strings.Repeat("0123456789abcdef", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			ref := put(t, store, data)
			if diff := cmp.Diff(activities.Ref{Digest: digestOf(data), Bytes: int64(len(data))}, ref); diff != "" {
				t.Errorf("address (-want +got):\n%s", diff)
			}
			got, err := activities.ReadAll(t.Context(), store, ref.Digest)
			if err != nil || string(got) != data {
				t.Errorf("ReadAll = %d bytes, %v; want the %d bytes that were put", len(got), err, len(data))
			}
			if diff := cmp.Diff([]string{ref.Digest[:2] + "/" + ref.Digest[2:]}, stored(t, store)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnyBytesReadBackWhateverTheReadSizes(t *testing.T) {
	t.Parallel()
	store := open(t)
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 4096).Draw(t, "data")
		var source io.Reader = bytes.NewReader(data)
		if rapid.Bool().Draw(t, "one byte at a time") {
			source = iotest.OneByteReader(source)
		}
		ref, err := store.Put(context.Background(), source)
		if err != nil {
			t.Fatal(err)
		}
		r, err := store.Open(context.Background(), ref.Digest)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		if err := iotest.TestReader(r, data); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTheSameBytesPutConcurrentlyAreOneFile(t *testing.T) {
	t.Parallel()
	store := open(t)
	same := strings.Repeat("weights", 20_000)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if _, err := store.Put(t.Context(), strings.NewReader(same)); err != nil {
				t.Errorf("Put: %v", err)
			}
			got, err := activities.ReadAll(t.Context(), store, digestOf(same))
			if err != nil || string(got) != same {
				t.Errorf("ReadAll beside other Puts = %d bytes, %v", len(got), err)
			}
		})
	}
	all.Wait()
	if names := stored(t, store); len(names) != 1 {
		t.Errorf("files after 16 equal Puts: %q, want one", names)
	}
}

func TestDamagedFilesAreRefusedAndHealedByPuttingAgain(t *testing.T) {
	t.Parallel()
	const data = "the only right bytes"
	for name, damage := range map[string]string{
		"a bit flipped":        "the only wrong bytes",
		"cut short":            "the only",
		"emptied":              "",
		"something at the end": data + "!",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			ref := put(t, store, data)
			if err := os.WriteFile(path(store, ref.Digest), []byte(damage), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := store.Open(t.Context(), ref.Digest)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.ReadAll(r)
			if !errors.Is(err, activities.ErrCorrupt) {
				t.Errorf("reading %q: %v, want %v", damage, err, activities.ErrCorrupt)
			}
			if n, again := r.Read(make([]byte, 8)); n != 0 || !errors.Is(again, activities.ErrCorrupt) {
				t.Errorf("reading on after the end = %d, %v, want 0, %v", n, again, activities.ErrCorrupt)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			put(t, store, data)
			if got, err := activities.ReadAll(t.Context(), store, ref.Digest); err != nil || string(got) != data {
				t.Errorf("after another Put: %q, %v", got, err)
			}
		})
	}
}

func TestAttackADirectoryInAnArtifactsPlaceMakesRoomForIt(t *testing.T) {
	t.Parallel()
	store := open(t)
	ref := put(t, store, "data")
	if err := errors.Join(os.Remove(path(store, ref.Digest)),
		os.MkdirAll(filepath.Join(path(store, ref.Digest), "deep"), 0o700)); err != nil {
		t.Fatal(err)
	}
	put(t, store, "data")
	if got, err := activities.ReadAll(t.Context(), store, ref.Digest); err != nil || string(got) != "data" {
		t.Errorf("after another Put: %q, %v", got, err)
	}
}

func TestOpenSaysWhyThereIsNothing(t *testing.T) {
	t.Parallel()
	store := open(t)
	secret := filepath.Join(store.Dir(), "..", "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), digestOf("never put")); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("Open of unknown bytes: %v, want %v", err, activities.ErrMissing)
	}
	for _, digest := range []string{
		"", "ab", "../secret", "/etc/passwd", strings.Repeat("../", 21) + "a", strings.Repeat("A", 64),
		strings.Repeat("g", 64), digestOf("x")[:63], digestOf("x") + "0", digestOf("x")[:62] + "\x00\x00",
		strings.Repeat("é", 32),
	} {
		r, err := store.Open(t.Context(), digest)
		if err == nil {
			_ = r.Close()
			t.Errorf("Open(%q) opened something", digest)
			continue
		}
		if errors.Is(err, activities.ErrMissing) || !strings.Contains(err.Error(), "64 lower-case hexadecimal digits") {
			t.Errorf("Open(%q): %v, want a complaint about the digest", digest, err)
		}
	}
}

func TestAFailedPutLeavesNothing(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, row := range map[string]struct {
		ctx    context.Context
		source io.Reader
		want   error
	}{
		"the source fails in the middle": {
			t.Context(), io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)),
			broken,
		},
		"the context has ended": {ended, strings.NewReader("whole"), context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			ref, err := store.Put(row.ctx, row.source)
			if !errors.Is(err, row.want) || ref != (activities.Ref{}) {
				t.Errorf("Put = %v, %v, want no address and %v", ref, err, row.want)
			}
			if names := stored(t, store); len(names) != 0 {
				t.Errorf("files left: %q", names)
			}
		})
	}
}

func TestOpeningTheStoreSweepsOnlyOldLeftovers(t *testing.T) {
	t.Parallel()
	store := open(t)
	ref := put(t, store, "kept although old")
	old := time.Now().Add(-2 * time.Hour)
	for name, at := range map[string]time.Time{
		path(store, ref.Digest):                               old,
		filepath.Join(store.Dir(), "partial", "put-crashed"):  old,
		filepath.Join(store.Dir(), "partial", "put-going-on"): time.Now(),
	} {
		if err := os.WriteFile(name, []byte("kept although old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := artifact.Open(store.Dir()); err != nil {
		t.Fatal(err)
	}
	want := []string{ref.Digest[:2] + "/" + ref.Digest[2:], "partial/put-going-on"}
	if diff := cmp.Diff(want, stored(t, store)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestStagesUseTheStoreThroughTheirContext(t *testing.T) {
	t.Parallel()
	ctx := activities.NewContext(t.Context(), &activities.Attempt{Store: open(t)})
	saved, err := activities.Put(ctx, []float64{1, 2.5})
	if err != nil {
		t.Fatal(err)
	}
	got, err := saved.Get(ctx)
	if diff := cmp.Diff([]float64{1, 2.5}, got); err != nil || diff != "" {
		t.Errorf("Get: %v (-want +got):\n%s", err, diff)
	}
}

func BenchmarkPut(b *testing.B) {
	store, err := artifact.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for name, size := range map[string]int{"4KiB": 4 << 10, "256KiB": 256 << 10, "16MiB": 16 << 20} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte{7}, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := store.Put(b.Context(), bytes.NewReader(data)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestBoardsThatCannotBeSweptKeepNobodyFromTheStore has a file where the folder of boards is expected, which fails for
// root as well.
func TestBoardsThatCannotBeSweptKeepNobodyFromTheStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, artifact.Boards), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := artifact.Open(dir); err != nil {
		t.Error(err)
	}
}
