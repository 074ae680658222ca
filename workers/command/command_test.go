package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a machine with a store and nothing else of the test's environment than PATH.
type host struct {
	command.Options
	store *commandtest.Store
}

func newHost(t *testing.T) host {
	t.Helper()
	store := commandtest.NewStore()
	values := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": "/home/somebody", "LANG": "C.UTF-8",
		"AWS_SECRET_ACCESS_KEY": "secret",
	}
	return host{store: store, Options: command.Options{
		Root: filepath.Join(t.TempDir(), "workspaces"), Cache: filepath.Join(t.TempDir(), "cache"), Store: store,
		Lookup: func(name string) (string, bool) { value, set := values[name]; return value, set },
	}}
}

// put stores a file.
func (h host) put(t *testing.T, content string) activities.Ref {
	t.Helper()
	ref, err := h.store.Put(t.Context(), strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// tree stores files as one tree; content that begins with "#!" is executable.
func (h host) tree(t *testing.T, files map[string]string) activities.Ref {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		mode := fs.FileMode(0o600)
		if strings.HasPrefix(content, "#!") {
			mode = 0o700
		}
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	ref, err := tree.Pack(t.Context(), h.store, dir, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// files returns the files of a stored tree.
func (h host) files(t *testing.T, ref activities.Ref) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if err := tree.Unpack(t.Context(), h.store, ref, dir); err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(file)
		name, _ := filepath.Rel(dir, file)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (h host) content(t *testing.T, ref activities.Ref) string {
	t.Helper()
	content, err := activities.ReadAll(t.Context(), h.store, ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func (h host) prepare(t *testing.T, c wire.Command, resume activities.Ref) *command.Workspace {
	t.Helper()
	w, err := command.Prepare(t.Context(), h.Options, c, resume)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(h.Root); err != nil || len(left) > 0 {
			t.Errorf("left of the workspace: %v, %v, want nothing", left, err)
		}
	})
	return w
}

// ran is what became of a program.
type ran struct {
	output   string
	err      error
	reported command.Reported
	told     []string // calls of the listener, in words
	kept     []activities.Ref
}

func run(t *testing.T, w *command.Workspace, launch command.Launch) ran {
	t.Helper()
	program, err := w.Program(launch)
	if err != nil {
		t.Fatal(err)
	}
	var r ran
	var output bytes.Buffer
	program.Command.Stdout, program.Command.Stderr = &output, &output
	if err := program.Start((*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		err := program.Command.Wait()
		if err := program.Ended(); err != nil {
			t.Error(err)
		}
		ended <- err
	}()
	r.reported = w.Follow(t.Context(), program.Reports, command.Listener{
		Progress: func(step, _ int, metrics map[string]float64) {
			text, err := json.Marshal(map[string]any{"step": step, "metrics": metrics})
			if err != nil {
				t.Error(err)
			}
			r.told = append(r.told, string(text))
		},
		Checkpoint: func(ref activities.Ref) { r.kept = append(r.kept, ref) },
		Warn:       func(text string) { r.told = append(r.told, "warning: "+text) },
	})
	r.err = <-ended
	if err := program.Reports.Close(); err != nil {
		t.Error(err)
	}
	r.output = output.String()
	return r
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestAProgramRunsInItsCodeWithItsFilesAndLeavesItsOutputs(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := wire.Command{
		Arguments: []string{"./run.sh", "two words"},
		Code: h.tree(t, map[string]string{
			"src/run.sh": "#!/bin/sh\necho \"$1\"; pwd; cat ../data/in.txt ../sets/a/1 >sum; mkdir ../model; echo w " +
				">../model/weights; echo changed >>../notes\n",
			"notes": "old\n", "data/in.txt": "of the code",
		}),
		Directory: "src",
		Files: []wire.CommandFile{
			{Path: "data/in.txt", Artifact: h.put(t, "in\n")},
			{Path: "sets/a", Artifact: h.tree(t, map[string]string{"1": "one\n"}), Tree: true},
		},
		Outputs: []wire.CommandOutput{
			{Name: "model", Path: "model"},
			{Name: "sum", Path: "./src/sum"},
			{Name: "plot", Path: "plot.png", Optional: true},
		},
	}
	c.KeepChanged = true
	w := h.prepare(t, c, activities.Ref{})
	r := run(t, w, command.Launch{})
	if r.err != nil || r.output != "two words\n"+w.Directory()+"\n" {
		t.Fatalf("program: got %q, %v", r.output, r.err)
	}
	got, err := w.Collect(t.Context(), map[string]any{"accuracy": 1})
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(got.Outputs)); !slices.Equal(names, []string{"model", "sum"}) ||
		!got.Outputs["model"].Tree || got.Outputs["sum"].Tree {
		t.Errorf("outputs: got %+v, want the tree model and the file sum", got.Outputs)
	}
	if diff := cmp.Diff("in\none\n", h.content(t, got.Outputs["sum"].Artifact)); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"weights": "w\n"}, h.files(t, got.Outputs["model"].Artifact)); diff != "" {
		t.Errorf("model (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"notes": "old\nchanged\n"}, h.files(t, got.Changed)); diff != "" {
		t.Errorf("changed besides (-want +got):\n%s", diff)
	}
	fetched := c.Code.Bytes + c.Files[0].Artifact.Bytes + c.Files[1].Artifact.Bytes
	stored := got.Outputs["sum"].Artifact.Bytes + got.Outputs["model"].Artifact.Bytes + got.Changed.Bytes
	if w.Read() != quantity.Bytes(fetched) || w.Written() != quantity.Bytes(stored) {
		t.Errorf("bytes: got %s read and %s written, want %d and %d", w.Read(), w.Written(), fetched, stored)
	}
}

func TestAttemptsDoNotShareTheFilesOfTheirCode(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := wire.Command{Arguments: sh("cat file; echo spoiled >file"), Code: h.tree(t, map[string]string{"file": "clean\n"})}
	for range 2 {
		w, err := command.Prepare(t.Context(), h.Options, c, activities.Ref{})
		if err != nil {
			t.Fatal(err)
		}
		if r := run(t, w, command.Launch{}); r.output != "clean\n" || r.err != nil {
			t.Errorf("got %q, %v, want clean", r.output, r.err)
		}
		if err := w.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestAProgramIsToldWhoItIsAndNoSecrets(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := wire.Command{Arguments: sh("env"), Environment: map[string]string{
		"MODE": "fast", "OMP_NUM_THREADS": "7",
		"OPERATOR": "no",
	}}
	w := h.prepare(t, c, activities.Ref{})
	r := run(t, w, command.Launch{
		Run: "r1", Stage: "p/train", Task: "train-1", Attempt: 2, Grant: quantity.Size{CPU: 1500, Memory: 1000},
		Devices: []string{"2", "3"},
		Extra:   map[string]string{"OPERATOR": "yes", "NCCL_DEBUG": "WARN"},
	})
	got := make(map[string]string)
	for line := range strings.Lines(r.output) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[name] = value
	}
	for _, name := range []string{"PWD", "OLDPWD", "SHLVL", "_"} { // the shell's own
		delete(got, name)
	}
	top := filepath.Dir(w.Directory())
	want := map[string]string{
		"PATH": os.Getenv("PATH"), "LANG": "C.UTF-8", "HOME": filepath.Join(top, "home"), "TMPDIR": filepath.Join(top, "tmp"),
		"MODE": "fast", "OPERATOR": "no", "NCCL_DEBUG": "WARN", "PYTHONUNBUFFERED": "1",
		"OMP_NUM_THREADS": "7", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "NUMEXPR_NUM_THREADS": "2",
		"OMP_WAIT_POLICY": "PASSIVE", "GOMAXPROCS": "2", "GOMEMLIMIT": "900",
		"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
		"SPILLWAY_RUN": "r1", "SPILLWAY_STAGE": "p/train", "SPILLWAY_TASK": "train-1", "SPILLWAY_ATTEMPT": "2",
		"SPILLWAY_CPU_MILLI": "1500", "SPILLWAY_MEMORY_BYTES": "1000",
		"SPILLWAY_REPORT": filepath.Join(top, "report", "pipe"), "PYTHONPATH": filepath.Join(top, "python"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestAProgramIsToldOfEarlierTrainingsAsFarAsThereIsRoom(t *testing.T) {
	t.Parallel()
	long := predictor.Training{StepSeconds: 1}
	for range 64 {
		long.Parts = append(long.Parts, predictor.TrainingPart{First: strings.Repeat("x", 500)})
	}
	for name, c := range map[string]struct {
		past []predictor.Training
		want int
	}{
		"none":           {nil, -1},
		"two":            {[]predictor.Training{{StepSeconds: 2}, {StepSeconds: 3}}, 2},
		"more than kept": {make([]predictor.Training, 20), predictor.PastTrainings},
		"large ones":     {slices.Repeat([]predictor.Training{long}, 8), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newHost(t).prepare(t, wire.Command{Arguments: sh(`printf '%s' "${SPILLWAY_TRAININGS-none}"`)}, activities.Ref{})
			r := run(t, w, command.Launch{Trainings: c.past})
			if r.err != nil {
				t.Fatal(r.err)
			}
			if c.want < 0 {
				if r.output != "none" {
					t.Errorf("got %q, want the variable unset", r.output)
				}
				return
			}
			var told []predictor.Training
			if err := json.Unmarshal([]byte(r.output), &told); err != nil {
				t.Fatalf("%.100q: %v", r.output, err)
			}
			if diff := cmp.Diff(c.past[:c.want], told); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAProgramInPlaceRunsInTheUsersDirectoryWithTheUsersHome(t *testing.T) {
	t.Parallel()
	h, dir := newHost(t), t.TempDir()
	w := h.prepare(t, wire.Command{Arguments: sh("echo $HOME; pwd; echo x >made"), InPlace: dir, KeepChanged: true},
		activities.Ref{})
	if r := run(t, w, command.Launch{}); r.err != nil || r.output != "/home/somebody\n"+dir+"\n" {
		t.Errorf("got %q, %v", r.output, r.err)
	}
	got, err := w.Collect(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"made": "x\n"}, h.files(t, got.Changed)); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if err := w.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); err != nil {
		t.Errorf("what was made in place is gone: %v", err)
	}
}

func TestStandardInputIsEmptyAndDescriptor3LeadsNowhere(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: sh("cat; echo lost >&3; cat <&3; echo done")}, activities.Ref{})
	if r := run(t, w, command.Launch{}); r.output != "done\n" || r.err != nil {
		t.Errorf("got %q, %v, want done", r.output, r.err)
	}
}

func TestACommandThatCannotRunIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	some := activities.Ref{Digest: strings.Repeat("a", 64), Bytes: 1}
	ok := []string{"true"}
	for _, tt := range []struct {
		name    string
		command wire.Command
		want    string
	}{
		{"no arguments", wire.Command{}, "names no program"},
		{"an empty program", wire.Command{Arguments: []string{""}}, "names no program"},
		{"a NUL byte", wire.Command{Arguments: []string{"a", "b\x00"}}, "argument 1"},
		{"a directory above", wire.Command{Arguments: ok, Directory: "../x"}, "directory"},
		{"an absolute directory", wire.Command{Arguments: ok, Directory: "/x"}, "directory"},
		{"a relative place", wire.Command{Arguments: ok, InPlace: "x"}, "absolute"},
		{"code in place", wire.Command{Arguments: ok, InPlace: "/x", Code: some}, "in place"},
		{"requirements in an image", wire.Command{Arguments: ok, Image: "x", Requirements: some}, "image"},
		{"an image that is a flag", wire.Command{Arguments: ok, Image: "--privileged"}, "--privileged"},
		{"a negative grace", wire.Command{Arguments: ok, Grace: -time.Second}, "negative"},
		{
			"a variable of ours",
			wire.Command{Arguments: ok, Environment: map[string]string{"SPILLWAY_RUN": "x"}},
			"SPILLWAY_RUN",
		},
		{"a variable with =", wire.Command{Arguments: ok, Environment: map[string]string{"A=B": "x"}}, "A=B"},
		{"a value with NUL", wire.Command{Arguments: ok, Environment: map[string]string{"A": "x\x00"}}, "NUL"},
		{
			"a file above",
			wire.Command{Arguments: ok, Files: []wire.CommandFile{{Path: "a/../../x", Artifact: some}}},
			"a/../../x",
		},
		{"a file twice", wire.Command{Arguments: ok, Files: []wire.CommandFile{
			{Path: "a/x", Artifact: some},
			{Path: "a/./x", Artifact: some},
		}}, "twice"},
		{"a file without a digest", wire.Command{Arguments: ok, Files: []wire.CommandFile{{Path: "a"}}}, "digest"},
		{
			"a file at the top",
			wire.Command{Arguments: ok, Files: []wire.CommandFile{{Path: ".", Artifact: some}}},
			"directory",
		},
		{"a file below a file", wire.Command{
			Arguments: ok,
			Files:     []wire.CommandFile{{Path: "a/b/c", Artifact: some}, {Path: "a", Artifact: some}},
		}, "below a"},
		{"an output above", wire.Command{Arguments: ok, Outputs: []wire.CommandOutput{{Name: "x", Path: "/etc"}}}, "/etc"},
		{"an output without a name", wire.Command{Arguments: ok, Outputs: []wire.CommandOutput{{Path: "a"}}}, "no name"},
		{"an output name twice", wire.Command{
			Arguments: ok,
			Outputs:   []wire.CommandOutput{{Name: "x", Path: "a"}, {Name: "x", Path: "b"}},
		}, "twice"},
		{"an output path twice", wire.Command{
			Arguments: ok,
			Outputs:   []wire.CommandOutput{{Name: "x", Path: "a"}, {Name: "y", Path: "a/"}},
		}, "another output"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := command.Check(tt.command)
			if !errors.Is(err, command.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Check: got %v, want ErrInvalid that tells of %q", err, tt.want)
			}
			h := newHost(t)
			if _, err := command.Prepare(t.Context(), h.Options, tt.command, activities.Ref{}); !errors.Is(err,
				command.ErrInvalid) {
				t.Errorf("Prepare: got %v, want ErrInvalid", err)
			}
			if left, err := os.ReadDir(h.Root); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left: %v, %v, want nothing", left, err)
			}
		})
	}
}

func TestFilesThatDoNotFitTheCodeAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	code := h.tree(t, map[string]string{"dir/x": "", "file": ""})
	for name, c := range map[string]wire.Command{
		"a file where the code has a directory": {Files: []wire.CommandFile{{Path: "dir", Artifact: h.put(t, "x")}}},
		"a file below a file of the code":       {Files: []wire.CommandFile{{Path: "file/x", Artifact: h.put(t, "x")}}},
		"a tree where the code has a file": {Files: []wire.CommandFile{{
			Path:     "file",
			Artifact: h.tree(t, map[string]string{"x": ""}), Tree: true,
		}}},
		"a tree that is none": {Files: []wire.CommandFile{{
			Path:     "x",
			Artifact: h.put(t, strings.Repeat("no tree ", 100)), Tree: true,
		}}},
		"a directory that the code does not have": {Directory: "missing"},
		"a directory that is a file":              {Directory: "file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Arguments, c.Code = []string{"true"}, code
			if _, err := command.Prepare(t.Context(), h.Options, c, activities.Ref{}); !errors.Is(err, command.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

// A child that is forked while a program is written has it open for writing until it executes its own, and the kernel
// executes nothing that is open so.
func TestAProgramStartsWhileOthersAreForked(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	code := h.tree(t, map[string]string{"run": "#!/bin/sh\necho ran\n"})
	ctx, cancel := context.WithCancel(t.Context())
	var forking sync.WaitGroup
	for range 2 {
		forking.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run() // it may be cancelled
			}
		})
	}
	for range 20 {
		w, err := command.Prepare(ctx, h.Options, wire.Command{Arguments: []string{"./run"}, Code: code}, activities.Ref{})
		if err != nil {
			t.Fatal(err)
		}
		if r := run(t, w, command.Launch{}); r.output != "ran\n" || r.err != nil {
			t.Errorf("got %q, %v", r.output, r.err)
		}
		if err := w.Remove(ctx); err != nil {
			t.Error(err)
		}
	}
	cancel()
	forking.Wait()
}

func TestAMissingArtifactIsNamed(t *testing.T) {
	t.Parallel()
	gone := activities.Ref{Digest: strings.Repeat("a", 64), Bytes: 1}
	for what, c := range map[string]wire.Command{
		"code":         {Arguments: []string{"true"}, Code: gone},
		"requirements": {Arguments: []string{"true"}, Requirements: gone},
		"data/x":       {Arguments: []string{"true"}, Files: []wire.CommandFile{{Path: "data/x", Artifact: gone}}},
		"sets":         {Arguments: []string{"true"}, Files: []wire.CommandFile{{Path: "sets", Artifact: gone, Tree: true}}},
		"checkpoint":   {Arguments: []string{"true"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			var resume activities.Ref
			if what == "checkpoint" {
				resume = gone
			}
			_, err := command.Prepare(t.Context(), h.Options, c, resume)
			var missing *command.MissingError
			if !errors.As(err, &missing) || missing.What != what || missing.Ref != gone ||
				!errors.Is(err, activities.ErrMissing) {
				t.Errorf("got %v, want a MissingError of %s", err, what)
			}
			if left, err := os.ReadDir(h.Root); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v, want nothing", left, err)
			}
		})
	}
}

func TestAProgramThatCannotBeExecutedIsExplained(t *testing.T) {
	t.Parallel()
	code := map[string]string{
		"plain.sh": "echo", "none.sh": "#!/nonexistent/python\n", "crlf.sh": "#!/bin/sh\r\n", "empty.sh": "#!\n",
		"env.sh": "#!/usr/bin/env no-such-python\n",
		"dir/x":  "", "text": "#", "broken": "#!",
	}
	for program, want := range map[string]string{
		"no-such-program": "not in PATH",
		"plain.sh":        "write ./plain.sh",
		"./plain.sh":      "not executable",
		"./missing":       "there is no program",
		"./dir":           "is a directory",
		"/":               "is a directory",
		"./none.sh":       "/nonexistent/python",
		"./crlf.sh":       "carriage return",
		"./empty.sh":      "has no interpreter",
		"./env.sh":        "no-such-python",
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			w := h.prepare(t, wire.Command{Arguments: []string{program}, Code: h.tree(t, code)}, activities.Ref{})
			if _, err := w.Program(command.Launch{}); !errors.Is(err, command.ErrProgram) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want ErrProgram that tells of %q", err, want)
			}
		})
	}
}

func TestAttackAPipeInAProgramsPlaceIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "program")
	if err := syscall.Mkfifo(pipe, 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	w := h.prepare(t, wire.Command{Arguments: []string{pipe}}, activities.Ref{})
	if _, err := w.Program(command.Launch{}); !errors.Is(err, command.ErrProgram) ||
		!strings.Contains(err.Error(), "no plain file") {
		t.Errorf("got %v, want ErrProgram that says what it is", err)
	}
}

func TestAMissingOutputIsNamedWithWhatIsThere(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for script, want := range map[string]string{
		"mkdir out; touch out/a out/b; mkdir out/c": "out has a, b, c/",
		"touch x":                         "the working directory has x",
		":":                               "the working directory is empty",
		"mkdir out":                       "out is empty",
		"mkdir out; ln -s /etc out/model": "out/model is a link out",
		"ln -s " + outside + " out":       "out/model is a link out",
		"mkdir out; mkfifo out/model":     "neither a file nor a directory",
		"mkdir -p out/model; ln -s /etc out/model/x": "leads out",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			w := newHost(t).prepare(t, wire.Command{
				Arguments: sh(script),
				Outputs:   []wire.CommandOutput{{Name: "model", Path: "out/model"}},
			}, activities.Ref{})
			if r := run(t, w, command.Launch{}); r.err != nil {
				t.Fatal(r.err, r.output)
			}
			_, err := w.Collect(t.Context(), nil)
			if !errors.Is(err, command.ErrOutput) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "output model") {
				t.Errorf("got %v, want ErrOutput that names the output and tells of %q", err, want)
			}
		})
	}
}

func TestAnOutputMayBeALinkWithinTheTree(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	w := h.prepare(t, wire.Command{
		Arguments: sh("mkdir run; echo w >run/weights; ln -s run best; ln -s run/weights last"),
		Outputs:   []wire.CommandOutput{{Name: "best", Path: "best"}, {Name: "last", Path: "last"}},
	}, activities.Ref{})
	run(t, w, command.Launch{})
	got, err := w.Collect(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"weights": "w\n"}, h.files(t, got.Outputs["best"].Artifact)); diff != "" {
		t.Errorf("best (-want +got):\n%s", diff)
	}
	if content := h.content(t, got.Outputs["last"].Artifact); content != "w\n" {
		t.Errorf("last: got %q, want the file's content", content)
	}
}
