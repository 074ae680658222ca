package safefile_test

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// nobody is another user of the machine.
const nobody = 65534

func put(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// planted is a link of another user, where this one may make one.
func planted(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	give(t, link)
}

// give gives a file to another user.
func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to another user")
	}
	if err := os.Lchown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

func refused(t *testing.T, dir string, shared bool) {
	t.Helper()
	root, err := safefile.Open(dir, 0o755, shared)
	if err == nil {
		_ = root.Close()
	}
	if _, ok := errors.AsType[*safefile.Error](err); !ok {
		t.Errorf("open %s: %v, want a refusal", dir, err)
	}
}

func TestAttackALinkOfAnotherLeadsNoDirectoryAway(t *testing.T) {
	t.Parallel()
	parent, victim := t.TempDir(), t.TempDir()
	planted(t, victim, filepath.Join(parent, "out"))
	planted(t, filepath.Join(victim, "new"), filepath.Join(parent, "made"))
	for _, dir := range []string{"out", "out/below", "made"} {
		for _, shared := range []bool{false, true} {
			refused(t, filepath.Join(parent, dir), shared)
		}
	}
	entries, err := os.ReadDir(victim)
	if err != nil || len(entries) > 0 {
		t.Errorf("in the directory of the victim: %v, %v", entries, err)
	}
}

func TestALinkOfOnesOwnLeadsOn(t *testing.T) {
	t.Parallel()
	parent, away := t.TempDir(), t.TempDir()
	for link, target := range map[string]string{
		"absolute": away, "relative": "sub/../absolute/x", "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(parent, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(parent, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := safefile.Open(filepath.Join(parent, "relative"), 0o755, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	write := func(f *os.File) error {
		_, err := f.WriteString("text")
		return err
	}
	if err := safefile.Write(root, "file", 0o644, write); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(away, "x", "file")); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := safefile.Open(filepath.Join(parent, "loop"), 0o755, false); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link to itself: %v", err)
	}
}

func TestAttackADirectoryThatOthersCanChangeIsWrittenToOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		mode    fs.FileMode
		foreign bool
		refused bool
	}{
		{"of one's own", 0o755, false, false},
		{"everybody's", 0o777, false, true},
		{"everybody's, sticky", 0o777 | fs.ModeSticky, false, false},
		{"of another", 0o755, true, true},
		{"of another, sticky", 0o777 | fs.ModeSticky, true, true},
		{"its group's", 0o775, false, !hasPrivateGroup(t)},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "out")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, row.mode); err != nil {
				t.Fatal(err)
			}
			if row.foreign {
				give(t, dir)
			}
			if row.refused {
				refused(t, dir, false)
				for _, below := range []string{"new", "new/deep"} { // others could move it away
					refused(t, filepath.Join(dir, below), false)
					if err := safefile.Check(filepath.Join(dir, below), false); err == nil {
						t.Errorf("%s would be written to", below)
					}
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("made meanwhile: %v, %v", left, err)
				}
			}
			root, err := safefile.Open(dir, 0o755, row.refused)
			if err != nil {
				t.Fatal(err)
			}
			_ = root.Close()
		})
	}
}

// hasPrivateGroup says whether new files are of a group that has the name of this user.
func hasPrivateGroup(t *testing.T) bool {
	t.Helper()
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	group, err := user.LookupGroupId(who.Gid)
	return err == nil && group.Name == who.Username
}

func TestAttackAPlantedLinkLeadsNoFileAway(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	precious := put(t, filepath.Join(t.TempDir(), "precious"), "precious")
	path := filepath.Join(out, "plan.svg")
	if err := os.Symlink(precious, path); err != nil {
		t.Fatal(err)
	}
	if err := safefile.WriteFile(path, []byte("<svg/>"), 0o644, false); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("the file of another is %.40q, %v", text, err)
	}
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		t.Errorf("what was written is %v, %v", info, err)
	}
}

func TestAFileThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := put(t, filepath.Join(dir, "file"), "before")
	root, err := safefile.Open(dir, 0o755, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	full := errors.New("the disk is full")
	if err := safefile.Write(root, "file", 0o644, func(*os.File) error { return full }); !errors.Is(err, full) {
		t.Errorf("%v, want %v", err, full)
	}
	entries, _ := os.ReadDir(dir)
	if text, err := os.ReadFile(path); err != nil || string(text) != "before" || len(entries) != 1 {
		t.Errorf("%q, %v, and in the directory %v", text, err, entries)
	}
}

func TestADeviceIsWrittenTo(t *testing.T) {
	t.Parallel()
	if err := safefile.WriteFile(os.DevNull, []byte("text"), 0o644, false); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("it is %v now, %v", info, err)
	}
	missing := filepath.Join(t.TempDir(), "none", "file")
	if err := safefile.WriteFile(missing, nil, 0o644, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
	if err := safefile.WriteFile(t.TempDir(), nil, 0o644, false); err == nil {
		t.Error("a directory was replaced by a file")
	}
}
