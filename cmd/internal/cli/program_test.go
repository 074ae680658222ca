package cli_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// directory makes a directory of files.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, files)
	return dir
}

func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// content reads the files of a directory.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// said is a line of attempt 1 of a command.
func said(run, stage string, origin wire.LogOrigin, text string) logs.Line {
	return logs.Line{LogSource: wire.LogSource{Run: run, Stage: stage, Task: stage + "-0", Attempt: 1}, LogLine: wire.LogLine{At: begin, Origin: origin, Text: text}}
}

// program is a command as the stack in memory plays it.
type program struct {
	// changes are the files that it makes or changes, outputs those that it was asked for.
	changes, outputs map[string]string
	// while is called while it runs.
	while func()
	// failure is why its run fails; empty for a success.
	failure string

	input chain.SingleInput // what it was started with
	code  map[string]string // the files that it found
}

// play makes the stack run the program for every event.
func (p *program) play(t *testing.T, stack *memoryStack) {
	t.Helper()
	stack.OnPublish = func(event web.Event, run string) {
		if err := json.Unmarshal(event.Input, &p.input); err != nil {
			t.Error(err)
			return
		}
		if code := p.input.Command.Code; code.Digest != "" {
			dir := t.TempDir()
			if err := tree.Unpack(t.Context(), stack.store, code, dir); err != nil {
				t.Error(err)
			}
			p.code = content(t, dir)
		}
		name := event.Pipeline
		stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: name, App: name, At: begin})
		stack.Print(said(run, name, wire.LogOut, "epoch 1"), said(run, name, wire.LogErr, "a warning"), said(run, name, wire.LogOut, "epoch 2"))
		if p.while != nil {
			p.while()
		}
		state := predictor.RunSucceeded
		if p.failure != "" {
			state = predictor.RunFailed
		} else {
			stack.Results = map[string]json.RawMessage{run: p.result(t, stack, name)}
		}
		stack.Apply(run, predictor.RunEnded{Run: run, State: state, Error: p.failure, At: begin.Add(4 * time.Second)})
	}
}

func (p *program) result(t *testing.T, stack *memoryStack, name string) json.RawMessage {
	t.Helper()
	left := chain.StageResult{Tasks: 1, Values: []map[string]any{{"accuracy": 0.98}}}
	if len(p.changes) > 0 {
		ref, err := tree.Pack(t.Context(), stack.store, directory(t, p.changes), tree.Options{})
		if err != nil {
			t.Error(err)
		}
		left.Changed = &ref
	}
	for path, text := range p.outputs {
		ref, err := stack.store.Put(t.Context(), strings.NewReader(text))
		if err != nil {
			t.Error(err)
		}
		left.Outputs = map[string][]wire.CommandFile{"out": {{Path: path, Artifact: ref}}}
	}
	encoded, err := json.Marshal(chain.Result{Stages: map[string]chain.StageResult{name: left}})
	if err != nil {
		t.Error(err)
	}
	return encoded
}

func TestACommandPrintsAsItDoesAloneAndBringsItsFilesBack(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	files := map[string]string{"train.py": "x", "log": "a", "secret/key": "k", ".spillwayignore": "secret/\n", "sub/old": "o"}
	dir := directory(t, files)
	p := &program{changes: map[string]string{"log": "a\nb", "sub/new": "n"}, outputs: map[string]string{"m/model": "weights"}}
	p.play(t, stack)
	code, stdout, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--budget", "2", "--output", "out=m/model", "--", "python", "train.py", "--epochs", "3")
	if code != cli.ExitOK || stdout != "epoch 1\nepoch 2\n" {
		t.Errorf("got exit %d and %q, want the program's own output", code, stdout)
	}
	contains(t, "standard error", stderr, "spillway: run train-event-1 started\n", "a warning\n", "spillway: run train-event-1 succeeded in 4.0 s", "result: accuracy 0.98",
		"brought back 3 files, 11 B: log, m/model, sub/new (in "+dir+")")
	want := maps.Clone(files)
	delete(want, "secret/key")
	if diff := cmp.Diff(want, p.code); diff != "" {
		t.Errorf("what the program found (-want +got):\n%s", diff)
	}
	maps.Copy(files, map[string]string{"log": "a\nb", "sub/new": "n", "m/model": "weights"})
	if diff := cmp.Diff(files, content(t, dir)); diff != "" {
		t.Errorf("files afterwards (-want +got):\n%s", diff)
	}
	if !p.input.Command.KeepChanged || p.input.Command.Parameters["epochs"] != 3 {
		t.Errorf("the command is %+v", p.input)
	}
}

func TestAFileThatChangedHereMeanwhileIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	dir := directory(t, map[string]string{"a": "1", "b": "1", "c": "1", "same": "1", "kept": "mine", "dir/x": "1", ".spillwayignore": "kept\n"})
	p := &program{
		changes: map[string]string{"a": "program", "b": "program", "new": "program", "same": "2", "kept": "program", "dir": "program"},
		while:   func() { put(t, dir, map[string]string{"a": "mine", "new": "mine", "same": "2", "c": "mine"}) },
	}
	p.play(t, stack)
	code, _, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--", "./x")
	if code != cli.ExitOK {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	want := map[string]string{
		"a": "mine", "a.spillway": "program", "b": "program", "c": "mine", "new": "mine", "new.spillway": "program", "same": "2",
		"kept": "mine", "kept.spillway": "program", "dir/x": "1", "dir.spillway": "program", ".spillwayignore": "kept\n",
	}
	if diff := cmp.Diff(want, content(t, dir)); diff != "" {
		t.Errorf("files afterwards (-want +got):\n%s", diff)
	}
	contains(t, "standard error", stderr, "a was changed here meanwhile and stays; the program's is a.spillway", "brought back 5 files")
}

func TestAttackAFileIsShownUnderItsWholeName(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	dir := directory(t, map[string]string{"a": "1", "mine\u202e": "1"})
	p := &program{
		changes: map[string]string{"evil\x1b[2J.txt": "2", `"evil\x1b[2J.txt"`: "2", "größe 1": "2", "mine\u202e": "2"},
		outputs: map[string]string{"out\n\tput": "3"},
		while:   func() { put(t, dir, map[string]string{"mine\u202e": "mine"}) },
	}
	p.play(t, stack)
	for _, args := range [][]string{nil, {"--no-fetch"}} {
		code, _, stderr := execute(t, t.Context(), cli.Deps{}, slices.Concat([]string{"run", "--state", state, "--code", dir}, args, []string{"--", "./x"})...)
		if code != cli.ExitOK {
			t.Errorf("got exit %d: %s", code, stderr)
		}
		if args != nil {
			contains(t, "standard error", stderr, `"out\n\tput" is artifact `)
			continue
		}
		contains(t, "standard error", stderr, `"\"evil\\x1b[2J.txt\""`, `"evil\x1b[2J.txt"`, "größe 1, ", `"out\n\tput"`,
			`"mine\u202e" was changed here meanwhile and stays; the program's is "mine\u202e.spillway"`)
	}
}

func TestALinkThatLeadsOutIsNamed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	dir, away := directory(t, map[string]string{"a": "1"}), t.TempDir()
	p := &program{outputs: map[string]string{"to/below/out": "3"}, while: func() {
		if err := os.Symlink(away, filepath.Join(dir, "to")); err != nil {
			t.Error(err)
		}
	}}
	p.play(t, stack)
	code, _, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--", "./x")
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	contains(t, "standard error", stderr, "bring back to/below/out: "+dir+"/to is a link that leads to no directory in "+dir+"\n  hint: remove it")
}

func TestWhatIsNotFetchedIsNamed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	dir := directory(t, map[string]string{"a": "1"})
	p := &program{changes: map[string]string{"a": "2"}}
	p.play(t, stack)
	code, _, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--no-fetch", "--", "./x")
	if code != cli.ExitOK || content(t, dir)["a"] != "1" {
		t.Errorf("got exit %d and %v, want nothing brought back", code, content(t, dir))
	}
	contains(t, "standard error", stderr, "the changed files are artifact ")
}

func TestTheExitCodeOfACommandIsItsOwn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failure string
		code    int
	}{
		"an exit code":  {"stage x, task x-0, attempt 1: the command ended with exit code 41: no luck", 41},
		"a signal":      {"stage x, task x-0, attempt 1: the command ended with signal: killed", 1},
		"another cause": {"stage x, task x-0, attempt 1: an output is not there", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			stack := startStack(t, state)
			p := &program{failure: test.failure}
			p.play(t, stack)
			code, stdout, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none", "--", "./x")
			if code != test.code || stdout != "epoch 1\nepoch 2\n" {
				t.Errorf("got exit %d and %q, want %d", code, stdout, test.code)
			}
			contains(t, "standard error", stderr, "run x-event-1 failed in 4.0 s", test.failure)
		})
	}
}

func TestACommandIsQuietOrWritesJSON(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	p := &program{}
	p.play(t, stack)
	code, stdout, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none", "--quiet", "--", "./x")
	if code != cli.ExitOK || stdout != "epoch 1\nepoch 2\n" || stderr != "a warning\n" {
		t.Errorf("quiet: got exit %d, %q and %q, want the program's own output only", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none", "--json", "--", "./x")
	var report display.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != cli.ExitOK || report.State != predictor.RunSucceeded || !strings.Contains(string(report.Result), "0.98") {
		t.Errorf("JSON: got exit %d, %v and %s", code, err, stdout)
	}
	contains(t, "standard error", stderr, "epoch 1\n", "epoch 2\n", "a warning\n")
}

func TestAnInterruptCancelsACommandAndASecondLeavesIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		obeys bool
		want  []string
	}{
		"one that ends":         {true, []string{"cancelling run x-event-1 (Ctrl-C again does not wait for its end)", "run x-event-1 cancelled in 1.0 s"}},
		"one that does not end": {false, []string{"interrupted while run x-event-1 goes on", "`spillway show x-event-1 --follow` shows it"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			stack := startStack(t, state)
			ctx, interrupt := context.WithCancel(t.Context())
			again := make(chan struct{}, 1)
			stack.OnPublish = func(_ web.Event, run string) {
				stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: "x", App: "x", At: begin})
			}
			stack.asked = interrupt // the command has its run and follows it
			stack.OnCancel = func(run string) {
				if !test.obeys {
					again <- struct{}{}
					return
				}
				time.AfterFunc(10*time.Millisecond, func() {
					stack.Apply(run, predictor.RunEnded{Run: run, State: predictor.RunCancelled, At: begin.Add(time.Second)})
				})
			}
			code, _, stderr := execute(t, ctx, cli.Deps{Interrupted: again}, "run", "--state", state, "--code", "none", "--", "./x")
			if code != cli.ExitFailure {
				t.Errorf("got exit %d, want 1", code)
			}
			contains(t, "standard error", stderr, test.want...)
		})
	}
}

func TestFilesOfACommandAreSentOnceAndTooMuchCodeIsRefused(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := startStack(t, state)
	p := &program{}
	p.play(t, stack)
	data := directory(t, map[string]string{"raw.csv": "1,2\n", "many/a": "a", "requirements.txt": "torch\n"})
	for range 2 {
		code, _, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none", "--requirements", filepath.Join(data, "requirements.txt"),
			"--file", "in/raw.csv="+filepath.Join(data, "raw.csv"), "--file", "many="+filepath.Join(data, "many"), "--", "./x")
		if code != cli.ExitOK {
			t.Fatalf("got exit %d: %s", code, stderr)
		}
	}
	files := p.input.Command.Files
	if len(files) != 2 || files[0].Path != "in/raw.csv" || files[0].Tree || !files[1].Tree || p.input.Command.Code != (activities.Ref{}) {
		t.Fatalf("the command is %+v", p.input.Command)
	}
	for digest, want := range map[string]string{files[0].Artifact.Digest: "1,2\n", p.input.Command.Requirements.Digest: "torch\n"} {
		if got, err := activities.ReadAll(t.Context(), stack.store, digest); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	large, err := os.Create(filepath.Join(data, "large"))
	if err != nil {
		t.Fatal(err)
	}
	if err := large.Truncate(int64(tree.DefaultMaxBytes) + 1); err != nil {
		t.Fatal(err)
	}
	if err := large.Close(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", data, "--", "./x")
	if code != cli.ExitUsage {
		t.Errorf("got exit %d, want 2", code)
	}
	contains(t, "standard error", stderr, "largest: large 512 MiB", ".spillwayignore")
}
