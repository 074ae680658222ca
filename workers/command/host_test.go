package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
)

// needPython skips a test where there is no Python that makes environments.
func needPython(t *testing.T) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "python3", "-c", "import venv").Run(); err != nil {
		commandtest.Skip(t, "python", err)
	}
}

func TestRequirementsMakeAnEnvironmentOnce(t *testing.T) {
	t.Parallel()
	needPython(t)
	h := newHost(t)
	c := wire.Command{
		Arguments: []string{"python", "-c", "import os, sys; print(sys.prefix, sys.prefix == os.environ['VIRTUAL_ENV'], " +
			"sys.prefix != sys.base_prefix)"},
		Requirements: h.put(t, "# nothing yet\n\n"),
	}
	outputs := make([]string, 4)
	var wg sync.WaitGroup
	for i := range outputs { // at the same time, as a map over shards starts them
		wg.Go(func() {
			w, err := command.Prepare(t.Context(), h.Options, c, activities.Ref{})
			if err != nil {
				t.Error(err)
				return
			}
			outputs[i] = run(t, w, command.Launch{}).output
			if err := w.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, output := range outputs {
		if output != outputs[0] || !strings.HasSuffix(output, " True True\n") {
			t.Errorf("got %q, want the same environment in all of %q", output, outputs)
		}
	}
	if entries, err := filepath.Glob(filepath.Join(h.Cache, "python-*.ready")); err != nil || len(entries) != 1 {
		t.Errorf("environments: got %v, %v, want one", entries, err)
	}
}

func TestRequirementsThatCannotBeInstalledAreExplainedAndLeaveNothing(t *testing.T) {
	t.Parallel()
	needPython(t)
	if err := exec.CommandContext(t.Context(), "python3", "-m", "pip", "--version").Run(); err != nil {
		commandtest.Skip(t, "python", err)
	}
	h := newHost(t)
	index := t.TempDir() // an index of no packages: no network is asked
	// The host's pip serves as well as one of the environment's own, which takes many seconds to install.
	h.Python = filepath.Join(t.TempDir(), "python3")
	script := "#!/bin/sh\n[ \"$3\" = venv ] && exec python3 -m venv --without-pip --system-site-packages \"$4\"\nexec " +
		"python3 \"$@\"\n"
	if err := os.WriteFile(h.Python, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	lookup := h.Lookup
	h.Lookup = func(name string) (string, bool) {
		switch name {
		case "PIP_NO_INDEX":
			return "1", true
		case "PIP_FIND_LINKS":
			return index, true
		}
		return lookup(name)
	}
	c := wire.Command{Arguments: []string{"python", "-V"}, Requirements: h.put(t, "no-such-package==1.0\n")}
	_, err := command.Prepare(t.Context(), h.Options, c, activities.Ref{})
	if !errors.Is(err, command.ErrRequirements) || !strings.Contains(err.Error(), "no-such-package==1.0") {
		t.Errorf("got %v, want ErrRequirements with pip's words", err)
	}
	if entries, err := filepath.Glob(filepath.Join(h.Cache, "python-*")); err != nil || len(entries) != 1 ||
		!strings.HasSuffix(entries[0], ".lock") {
		t.Errorf("left in the cache: got %v, %v, want a lock only", entries, err)
	}
	h.Python = "no-such-python"
	if _, err := command.Prepare(t.Context(), h.Options, c, activities.Ref{}); !errors.Is(err, command.ErrRequirements) ||
		!strings.Contains(err.Error(), "no-such-python") {
		t.Errorf("without Python: got %v, want ErrRequirements that names it", err)
	}
}

func TestTheCacheKeepsWhatWasUsedLast(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.CacheBytes = 300 * quantity.KiB
	use := func(content string) activities.Ref {
		ref := h.tree(t, map[string]string{"file": strings.Repeat(content, 100<<10)})
		w, err := command.Prepare(t.Context(), h.Options, wire.Command{Arguments: []string{"true"}, Code: ref},
			activities.Ref{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		return ref
	}
	a, b := use("a"), use("b")
	old := time.Now().Add(-time.Hour)
	for _, ref := range []activities.Ref{a, b} {
		if err := os.Chtimes(filepath.Join(h.Cache, "tree-"+ref.Digest+".ready"), old, old); err != nil {
			t.Fatal(err)
		}
	}
	use("a") // b is the oldest now
	c := use("c")
	for ref, want := range map[activities.Ref]bool{a: true, b: false, c: true} {
		_, err := os.Stat(filepath.Join(h.Cache, "tree-"+ref.Digest))
		if got := err == nil; got != want {
			t.Errorf("tree %s: got kept %t, want %t", ref.Digest, got, want)
		}
	}
}

func TestAFullCacheServesManyAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.CacheBytes = 1 // each tree pushes out the others
	refs := make([]activities.Ref, 3)
	for i := range refs {
		refs[i] = h.tree(t, map[string]string{"file": strconv.Itoa(i)})
	}
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for try := range 5 {
				i := (worker + try) % len(refs)
				w, err := command.Prepare(t.Context(), h.Options, wire.Command{Arguments: []string{"true"}, Code: refs[i]},
					activities.Ref{})
				if err != nil {
					t.Error(err)
					return
				}
				content, err := os.ReadFile(filepath.Join(w.Directory(), "file"))
				if err != nil || string(content) != strconv.Itoa(i) {
					t.Errorf("got %q, %v, want %d", content, err, i)
				}
				if err := w.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestSweepDeletesWhatACrashLeftAndNothingElse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if n, err := command.Sweep(t.Context(), h.Root); n != 0 || err != nil {
		t.Errorf("without a root: got %d, %v, want none", n, err)
	}
	living := h.prepare(t, wire.Command{Arguments: sh("echo lives")}, activities.Ref{})
	left := filepath.Join(h.Root, "attempt-LEFT")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(left, "work", "deep"), 0o700),
		os.WriteFile(filepath.Join(left, "work", "deep", "file"), nil, 0o600),
		os.WriteFile(left+".lock", nil, 0o600),
		os.WriteFile(filepath.Join(h.Root, "attempt-LOCK.lock"), nil, 0o600), // it crashed between lock and directory
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n, err := command.Sweep(t.Context(), h.Root); n != 2 || err != nil {
		t.Errorf("got %d, %v, want 2 swept", n, err)
	}
	entries, err := os.ReadDir(h.Root)
	if err != nil || len(entries) != 2 {
		t.Errorf("left: got %v, %v, want the living one and its lock", entries, err)
	}
	if r := run(t, living, command.Launch{}); r.output != "lives\n" {
		t.Errorf("the living one: got %q, %v", r.output, r.err)
	}
}

func TestAWorkspaceIsDeletedWhateverPermissionsItsFilesHave(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Log("root may delete everything: this proves little here")
	}
	h := newHost(t)
	w := h.prepare(t, wire.Command{Arguments: sh(
		"mkdir -p a/b/c; touch a/b/c/file a/b/c/other; chmod 000 a/b/c a/b a; mkdir .x; chmod 500 .x; chmod 500 .")},
		activities.Ref{})
	if r := run(t, w, command.Launch{}); r.err != nil {
		t.Fatal(r.err, r.output)
	}
}

func TestTheRoomThatAWorkspaceTakesIsKnownAndBounded(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.MaxBytes = 2 * quantity.MiB
	w := h.prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	write := func(name string, size int) {
		data := make([]byte, size)
		for i := range data { // no file system makes a hole or a small block of it
			data[i] = byte(i * i >> 3)
		}
		if err := os.WriteFile(filepath.Join(w.Directory(), name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a", 1<<20)
	used := eventually(t, w, func(used quantity.Bytes) bool { return used >= quantity.MiB })
	if used > quantity.MiB+256*quantity.KiB {
		t.Errorf("used: got %s, want about 1 MiB", used)
	}
	if _, err := w.Used(t.Context()); err != nil {
		t.Errorf("within the bound: %v", err)
	}
	write("b", 3<<20)
	eventually(t, w, func(used quantity.Bytes) bool { return used >= 4*quantity.MiB })
	if _, err := w.Used(t.Context()); !errors.Is(err, command.ErrSpace) || !strings.Contains(err.Error(), "2 MiB") {
		t.Errorf("beyond the bound: got %v, want ErrSpace that names it", err)
	}
}

// eventually asks until the answer is right: it may lag.
func eventually(t *testing.T, w *command.Workspace, right func(quantity.Bytes) bool) quantity.Bytes {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		used, err := w.Used(t.Context())
		if err != nil && !errors.Is(err, command.ErrSpace) {
			t.Fatal(err)
		}
		if right(used) {
			return used
		}
	}
	t.Fatal("the room that is used never became what it is")
	return 0
}

// engineScript stands for a container engine: it runs the program on the host and writes down how it was asked, so that
// what is ours is tested where no engine is installed.
const engineScript = `#!/bin/sh
echo "$@" >>%[1]s
case $1 in
inspect) echo true; exit;;
image) test -e %[1]s.pulled && printf 'PATH=/bin\nPYTHONPATH=/app\n'; exit;;
pull) touch %[1]s.pulled; exit;;
rm) exit;;
esac
while [ $# -gt 0 ]; do
	case $1 in
	--volume=*:/work) work=${1#--volume=}; work=${work%%:/work};;
	--volume=*:/spillway/report) report=${1#--volume=}; report=${report%%:/spillway/report};;
	--entrypoint=*) program=${1#--entrypoint=};;
	example/image:1) shift; break;;
	esac
	shift
done
cd "$work" && SPILLWAY_REPORT=$report/pipe exec "$program" "$@"
`

func TestAnImageIsRunByTheEngineOfTheHost(t *testing.T) {
	t.Parallel()
	h, bin := newHost(t), t.TempDir()
	asked := filepath.Join(bin, "asked")
	if err := os.WriteFile(filepath.Join(bin, "podman"), fmt.Appendf(nil, engineScript, asked), 0o700); err != nil {
		t.Fatal(err)
	}
	lookup := h.Lookup
	h.Lookup = func(name string) (string, bool) {
		if name == "PATH" {
			return bin + ":" + os.Getenv("PATH"), true
		}
		return lookup(name)
	}
	w, err := command.Prepare(t.Context(), h.Options, wire.Command{
		Arguments: []string{
			"sh", "-c",
			`echo "$TOKEN $PYTHONPATH"; echo '{"progress": 3}' >$SPILLWAY_REPORT
			echo '{"checkpoint": "/work/model"}' >$SPILLWAY_REPORT`,
		},
		Image: "example/image:1", Files: []wire.CommandFile{{Path: "model", Artifact: h.put(t, "w")}},
		Environment: map[string]string{"TOKEN": "t0ken", "CUDA_VISIBLE_DEVICES": "0,1,2"},
	}, activities.Ref{})
	if err != nil {
		t.Fatal(err)
	}
	program, err := w.Program(command.Launch{
		Grant:   quantity.Size{CPU: 1500, Memory: quantity.GiB},
		Devices: []string{"1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	program.Command.Stdout, program.Command.Stderr = &out, &out
	if err := program.Start((*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	done := make(chan []string)
	go func() {
		var told []string
		w.Follow(t.Context(), program.Reports, command.Listener{
			Progress:   func(step, _ int, _ map[string]float64) { told = append(told, "step "+strconv.Itoa(step)) },
			Checkpoint: func(ref activities.Ref) { told = append(told, h.files(t, ref)["model"]) },
			Warn:       func(text string) { told = append(told, text) },
		})
		done <- told
	}()
	if err := program.Command.Wait(); err != nil {
		t.Error(err, out.String())
	}
	if err := program.Ended(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"step 3", "w"}, <-done); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if out.String() != "t0ken /app:/spillway/python\n" {
		t.Errorf("output: got %q, want the token, and the image's modules before ours", out.String())
	}
	killed, err := w.OutOfMemory(t.Context())
	if err != nil || !killed {
		t.Errorf("out of memory: got %t, %v, want what the engine says", killed, err)
	}
	if err := errors.Join(program.Reports.Close(), w.Remove(t.Context())); err != nil {
		t.Error(err)
	}
	commands, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--cpus=1.500", "--memory=1073741824 --memory-swap=1073741824", "--device=nvidia.com/gpu=1", "--env=TOKEN ",
		"--env=HOME=/spillway/home", "--env=NVIDIA_VISIBLE_DEVICES ",
		"--workdir=/work", ":/spillway/python:ro ", "pull --quiet example/image:1",
		"inspect --format={{.State.OOMKilled}} spillway-attempt-",
		"rm --force --volumes spillway-attempt-",
	} {
		if !strings.Contains(string(commands), want) {
			t.Errorf("the engine was asked %q, want it to have %q", commands, want)
		}
	}
	if strings.Contains(string(commands), "CUDA_VISIBLE_DEVICES") {
		t.Errorf("the command chooses its GPUs in %q", commands)
	}
	if strings.Contains(string(commands), "t0ken") {
		t.Error("the value of a variable is among the arguments, where everybody can read it")
	}
}

func TestAnImageWithoutAnEngineIsRefused(t *testing.T) {
	t.Parallel()
	h, bin := newHost(t), t.TempDir()
	h.Lookup = func(name string) (string, bool) { return bin, name == "PATH" }
	_, err := command.Prepare(t.Context(), h.Options, wire.Command{Arguments: []string{"true"}, Image: "x"},
		activities.Ref{})
	if !errors.Is(err, command.ErrProgram) || !strings.Contains(err.Error(), "neither podman nor docker") {
		t.Errorf("got %v, want ErrProgram that names the engines", err)
	}
}

func TestPreparingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// Another process is making the same tree.
	code := h.tree(t, map[string]string{"x": ""})
	if err := os.MkdirAll(h.Cache, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(h.Cache, "tree-"+code.Digest+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() //nolint:errcheck // it holds nothing but the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := command.Prepare(ctx, h.Options, wire.Command{Arguments: []string{"true"}, Code: code},
		activities.Ref{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
	if left, err := os.ReadDir(h.Root); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v, want nothing", left, err)
	}
}
