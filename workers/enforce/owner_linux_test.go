package enforce_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

func TestALiveOwnerKeepsOthersOutAndItsLeftoversAreSweptWhenItIsKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			owner := self("owner", dir, string(mode))
			out, err := owner.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			orphan := readPID(t, out)
			opts := enforce.Options{StateDir: dir, Mode: mode}
			if _, err := enforce.Open(opts); !errors.Is(err, enforce.ErrOwned) ||
				!strings.Contains(err.Error(), strconv.Itoa(owner.Process.Pid)) {
				t.Errorf("Open beside a live owner: got %v, want ErrOwned with its ID %d", err, owner.Process.Pid)
			}
			if err := owner.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = owner.Wait()
			if !alive(orphan) {
				t.Fatal("the orphan did not outlive its owner, so there is nothing to sweep")
			}
			e, err := enforce.Open(opts)
			if err != nil {
				t.Fatal(err)
			}
			if alive(orphan) {
				t.Errorf("process %d of the killed owner is alive", orphan)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if got := cgroupsOf(t, dir); len(got) > 0 {
				t.Errorf("cgroups left: %v", got)
			}
		})
	}
}

// TestACopyOfAStateDirectoryLeavesTheOwnersGroupsAlone opens a copy beside the owner that goes on, as who tries a
// backup does. A directory that was moved is none.
func TestACopyOfAStateDirectoryLeavesTheOwnersGroupsAlone(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		for name, record := range map[string]func(text []byte) []byte{
			"": func(text []byte) []byte { return text },
			"of an earlier version": func(text []byte) []byte {
				var earlier struct {
					PID         int      `json:"pid"`
					Directories []string `json:"directories"`
				}
				err := json.Unmarshal(text, &earlier)
				text, errEncode := json.Marshal(earlier)
				if err := errors.Join(err, errEncode); err != nil {
					t.Error(err)
				}
				return text
			},
		} {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				t.Parallel()
				dir, copied := t.TempDir(), t.TempDir()
				owner := self("owner", dir, string(mode))
				out, err := owner.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := owner.Start(); err != nil {
					t.Fatal(err)
				}
				child := readPID(t, out)
				text, err := os.ReadFile(filepath.Join(dir, "cgroups.lock"))
				if err == nil {
					err = os.WriteFile(filepath.Join(copied, "cgroups.lock"), record(text), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				e, err := enforce.Open(enforce.Options{StateDir: copied, Mode: mode})
				if err != nil {
					t.Fatal(err)
				}
				if !alive(child) || len(cgroupsOf(t, dir)) == 0 {
					t.Errorf("the owner's process is alive: %t; its cgroups: %v", alive(child), cgroupsOf(t, dir))
				}
				if err := errors.Join(e.Close(), owner.Process.Kill()); err != nil {
					t.Fatal(err)
				}
				_ = owner.Wait()
				moved := filepath.Join(t.TempDir(), "moved")
				if err := os.Rename(dir, moved); err != nil {
					t.Fatal(err)
				}
				e, err = enforce.Open(enforce.Options{StateDir: moved, Mode: mode})
				if err != nil {
					t.Fatal(err)
				}
				if alive(child) || len(cgroupsOf(t, dir)) > 0 {
					t.Errorf("the killed owner's process is alive: %t; its cgroups: %v", alive(child), cgroupsOf(t, dir))
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// cgroupsOf finds the cgroups of the owner of a state directory anywhere on the host.
func cgroupsOf(t *testing.T, stateDir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(filepath.Base(path), enforce.TreeName(stateDir)) {
			found = append(found, path)
		}
		return nil // what cannot be read, because it went, is no cgroup of ours
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestAThousandGroupsLeaveNothing(t *testing.T) {
	// Not parallel: it counts this process's files.
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			dir := t.TempDir()
			e, err := enforce.Open(enforce.Options{StateDir: dir, Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			files := openFiles(t)
			for i := range 1000 {
				g := group(t, e, fmt.Sprintf("group-%d", i))
				if i%10 == 0 { // a process takes longer than a group
					resize(t, g, quantity.Size{CPU: 1000, Memory: 64 * quantity.MiB})
					cmd := self("nop")
					if err := g.Start(cmd); err != nil {
						t.Fatal(err)
					}
					if err := cmd.Wait(); err != nil {
						t.Fatal(err)
					}
				}
				if err := errors.Join(g.Kill(t.Context()), g.Remove(t.Context()), g.Remove(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			if got := openFiles(t); got > files {
				t.Errorf("open files: got %d, had %d", got, files)
			}
			for _, path := range cgroupsOf(t, dir) {
				if below, err := filepath.Glob(path + "/group-*"); err != nil || len(below) > 0 {
					t.Errorf("in %s are left %v, %v", path, below, err)
				}
			}
			last := group(t, e, "last")
			cmd := self("wait")
			if err := last.Start(cmd); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(e.Close(), e.Close()); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the last child ended by itself, want it killed by Close")
			}
			if got := cgroupsOf(t, dir); len(got) > 0 {
				t.Errorf("cgroups left: %v", got)
			}
			if _, err := e.Group("later"); !errors.Is(err, enforce.ErrClosed) {
				t.Errorf("Group after Close: got %v, want ErrClosed", err)
			}
			if err := last.Start(self("nop")); !errors.Is(err, enforce.ErrClosed) {
				t.Errorf("Start after Close: got %v, want ErrClosed", err)
			}
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestGroupsHaveDifferentPlainNames(t *testing.T) {
	t.Parallel()
	e := open(t, "", 0)
	group(t, e, "first")
	if _, err := e.Group("first"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second group of the name: got %v, want that it exists", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "cgroup.procs", "-x", strings.Repeat("x", 65)} {
		if _, err := e.Group(name); err == nil {
			t.Errorf("Group(%q): got no error", name)
		}
	}
}

func TestAnUnprivilegedOwnerUsesACgroupThatItWasGiven(t *testing.T) {
	t.Parallel()
	if !slices.Contains(kernelModes(t), enforce.Unified) || os.Getuid() != 0 {
		t.Skip("giving a cgroup v2 away needs one and root")
	}
	const uid = 1000
	// A cgroup as a service manager makes it: owned by the user, with the files that the kernel names in
	// /sys/kernel/cgroup/delegate.
	given := filepath.Join("/sys/fs/cgroup", filepath.Base(t.TempDir())+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(given, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(given); err != nil {
			t.Errorf("the given cgroup is not as empty as before: %v", err)
		}
	})
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		if err := os.Chown(filepath.Join(given, name), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	handle, err := os.Open(given)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = handle.Close() }()
	state, err := os.MkdirTemp("", "enforce") //nolint:usetesting // the parents of t.TempDir are closed to the other user
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(state) }()
	if err := os.Chown(state, uid, uid); err != nil {
		t.Fatal(err)
	}
	cmd := self("delegate", state)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(handle.Fd()), Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}

// delegate uses an Enforcer as a user without rights.
func delegate(stateDir string) error {
	e, err := enforce.Open(enforce.Options{StateDir: stateDir, Mode: enforce.Unified})
	if err != nil {
		return err
	}
	g, err := e.Group("child")
	if err != nil {
		return err
	}
	size := quantity.Size{CPU: 500, Memory: 64 * quantity.MiB}
	if held, err := g.Resize(size); err != nil || held != size {
		return fmt.Errorf("resize: held %v: %w", held, err)
	}
	cmd := self("where")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := g.Start(cmd); err != nil {
		return err
	}
	text, err := io.ReadAll(out)
	if err != nil || !strings.Contains(string(text), "/child\n") {
		return fmt.Errorf("the child is in %s: %w", text, err)
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	fmt.Print(string(text))
	return nil
}
