package run_test

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
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

func TestACommandPrintsAsItDoesAloneAndBringsItsFilesBack(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	files := map[string]string{
		"train.py": "x", "log": "a", "secret/key": "k", ".spillwayignore": "secret/\n",
		"sub/old": "o",
	}
	dir := clitest.Directory(t, files)
	p := &clitest.Program{
		Changes: map[string]string{"log": "a\nb", "sub/new": "n"},
		Outputs: map[string]string{"m/model": "weights"},
	}
	p.Play(t, stack)
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--budget",
		"2", "--output", "out=m/model", "--", "python", "train.py", "--epochs", "3")
	if code != cli.ExitOK || stdout != "epoch 1\nepoch 2\n" {
		t.Errorf("got exit %d and %q, want the program's own output", code, stdout)
	}
	clitest.Contains(t, "standard error", stderr, "spillway: run train-event-1 started\n", "a warning\n",
		"spillway: run train-event-1 succeeded in 4.0 s", "result: accuracy 0.98",
		"brought back 3 files, 11 B: log, m/model, sub/new (in "+dir+")")
	want := maps.Clone(files)
	delete(want, "secret/key")
	if diff := cmp.Diff(want, p.Code); diff != "" {
		t.Errorf("what the program found (-want +got):\n%s", diff)
	}
	maps.Copy(files, map[string]string{"log": "a\nb", "sub/new": "n", "m/model": "weights"})
	if diff := cmp.Diff(files, clitest.Content(t, dir)); diff != "" {
		t.Errorf("files afterwards (-want +got):\n%s", diff)
	}
	if !p.Input.Command.KeepChanged || p.Input.Command.Parameters["epochs"] != 3 {
		t.Errorf("the command is %+v", p.Input)
	}
}

func TestEnvironmentsThatAreNotSentAreNamedOnce(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	dir := clitest.Directory(t, map[string]string{
		"train.py": "x", ".venv/bin/python": "12345", "a/node_modules/x": "1", "b/node_modules/x": "1", "c/venv/x": "",
	})
	p := &clitest.Program{}
	p.Play(t, stack)
	args := []string{"run", "--state", state, "--code", dir, "--", "python", "train.py"}
	_, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
	const told = "spillway: not sent: .venv/ (5 B), a/node_modules/ (1 B), b/node_modules/ (1 B), 1 more; " +
		"a line such as !.venv/ in .spillwayignore sends it\n"
	if strings.Count(stderr, "not sent") != 1 {
		t.Errorf("it is not told once: %s", stderr)
	}
	clitest.Contains(t, "standard error", stderr, told)
	if diff := cmp.Diff(map[string]string{"train.py": "x"}, p.Code); diff != "" {
		t.Errorf("what the program found (-want +got):\n%s", diff)
	}
	clitest.Put(t, dir, map[string]string{".spillwayignore": "!.venv/\nnode_modules\nvenv\n"})
	if _, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...); strings.Contains(stderr, "not sent") {
		t.Errorf("what the file of rules says is told: %s", stderr)
	}
}

func TestAFileThatChangedHereMeanwhileIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	dir := clitest.Directory(t, map[string]string{
		"a": "1", "b": "1", "c": "1", "same": "1", "kept": "mine", "dir/x": "1",
		".spillwayignore": "kept\n",
	})
	p := &clitest.Program{
		Changes: map[string]string{
			"a": "program", "b": "program", "new": "program", "same": "2", "kept": "program",
			"dir": "program",
		},
		While: func() { clitest.Put(t, dir, map[string]string{"a": "mine", "new": "mine", "same": "2", "c": "mine"}) },
	}
	p.Play(t, stack)
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--", "./x")
	if code != cli.ExitOK {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	want := map[string]string{
		"a": "mine", "a.spillway": "program", "b": "program", "c": "mine", "new": "mine", "new.spillway": "program",
		"same": "2",
		"kept": "mine", "kept.spillway": "program", "dir/x": "1", "dir.spillway": "program", ".spillwayignore": "kept\n",
	}
	if diff := cmp.Diff(want, clitest.Content(t, dir)); diff != "" {
		t.Errorf("files afterwards (-want +got):\n%s", diff)
	}
	clitest.Contains(t, "standard error", stderr, "a was changed here meanwhile and stays; the program's is a.spillway",
		"brought back 5 files")
}

func TestAttackAFileIsShownUnderItsWholeName(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	dir := clitest.Directory(t, map[string]string{"a": "1", "mine\u202e": "1"})
	p := &clitest.Program{
		Changes: map[string]string{"evil\x1b[2J.txt": "2", `"evil\x1b[2J.txt"`: "2", "größe 1": "2", "mine\u202e": "2"},
		Outputs: map[string]string{"out\n\tput": "3"},
		While:   func() { clitest.Put(t, dir, map[string]string{"mine\u202e": "mine"}) },
	}
	p.Play(t, stack)
	for _, args := range [][]string{nil, {"--no-fetch"}} {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			slices.Concat([]string{"run", "--state", state, "--code", dir}, args, []string{"--", "./x"})...)
		if code != cli.ExitOK {
			t.Errorf("got exit %d: %s", code, stderr)
		}
		if args != nil {
			clitest.Contains(t, "standard error", stderr, `"out\n\tput" is artifact `)
			continue
		}
		clitest.Contains(t, "standard error", stderr, `"\"evil\\x1b[2J.txt\""`, `"evil\x1b[2J.txt"`, "größe 1, ",
			`"out\n\tput"`,
			`"mine\u202e" was changed here meanwhile and stays; the program's is "mine\u202e.spillway"`)
	}
}

func TestALinkThatLeadsOutIsNamed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	dir, away := clitest.Directory(t, map[string]string{"a": "1"}), t.TempDir()
	p := &clitest.Program{Outputs: map[string]string{"to/below/out": "3"}, While: func() {
		if err := os.Symlink(away, filepath.Join(dir, "to")); err != nil {
			t.Error(err)
		}
	}}
	p.Play(t, stack)
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--", "./x")
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr,
		"bring back to/below/out: "+dir+"/to is a link that leads to no directory in "+dir+"\n  hint: remove it")
}

func TestWhatIsNotFetchedIsNamed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	dir := clitest.Directory(t, map[string]string{"a": "1"})
	p := &clitest.Program{Changes: map[string]string{"a": "2"}}
	p.Play(t, stack)
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", dir, "--no-fetch",
		"--", "./x")
	if code != cli.ExitOK || clitest.Content(t, dir)["a"] != "1" {
		t.Errorf("got exit %d and %v, want nothing brought back", code, clitest.Content(t, dir))
	}
	clitest.Contains(t, "standard error", stderr, "the changed files are artifact ")
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
			stack := clitest.StartStack(t, state)
			p := &clitest.Program{Failure: test.failure}
			p.Play(t, stack)
			code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none", "--",
				"./x")
			if code != test.code || stdout != "epoch 1\nepoch 2\n" {
				t.Errorf("got exit %d and %q, want %d", code, stdout, test.code)
			}
			clitest.Contains(t, "standard error", stderr, "run x-event-1 failed in 4.0 s", test.failure)
		})
	}
}

func TestACommandIsQuietOrWritesJSON(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	p := &clitest.Program{}
	p.Play(t, stack)
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none",
		"--quiet", "--", "./x")
	if code != cli.ExitOK || stdout != "epoch 1\nepoch 2\n" || stderr != "a warning\n" {
		t.Errorf("quiet: got exit %d, %q and %q, want the program's own output only", code, stdout, stderr)
	}
	code, stdout, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none", "--json",
		"--", "./x")
	var report display.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != cli.ExitOK ||
		report.State != predictor.RunSucceeded || !strings.Contains(string(report.Result), "0.98") {
		t.Errorf("JSON: got exit %d, %v and %s", code, err, stdout)
	}
	clitest.Contains(t, "standard error", stderr, "epoch 1\n", "epoch 2\n", "a warning\n")
}

func TestAnInterruptCancelsACommandAndASecondLeavesIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		obeys bool
		want  []string
	}{
		"one that ends": {true, []string{
			"cancelling run x-event-1 (Ctrl-C again does not wait for its end)",
			"run x-event-1 cancelled in 1.0 s",
		}},
		"one that does not end": {false, []string{
			"interrupted while run x-event-1 goes on",
			"`spillway show x-event-1 --follow` shows it",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			stack := clitest.StartStack(t, state)
			ctx, interrupt := context.WithCancel(t.Context())
			again := make(chan struct{}, 1)
			stack.OnPublish = func(_ web.Event, run string) {
				stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: "x", App: "x", At: clitest.Begin})
			}
			stack.Asked = interrupt // the command has its run and follows it
			stack.OnCancel = func(run string) {
				if !test.obeys {
					again <- struct{}{}
					return
				}
				time.AfterFunc(10*time.Millisecond, func() {
					stack.Apply(run, predictor.RunEnded{Run: run, State: predictor.RunCancelled, At: clitest.Begin.Add(time.Second)})
				})
			}
			code, _, stderr := clitest.Execute(t, ctx, cli.Deps{Interrupted: again}, "run", "--state", state, "--code", "none",
				"--", "./x")
			if code != cli.ExitFailure {
				t.Errorf("got exit %d, want 1", code)
			}
			clitest.Contains(t, "standard error", stderr, test.want...)
		})
	}
}

func TestFilesOfACommandAreSentOnceAndTooMuchCodeIsRefused(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	p := &clitest.Program{}
	p.Play(t, stack)
	data := clitest.Directory(t, map[string]string{"raw.csv": "1,2\n", "many/a": "a", "requirements.txt": "torch\n"})
	for range 2 {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", "none",
			"--requirements", filepath.Join(data, "requirements.txt"),
			"--file", "in/raw.csv="+filepath.Join(data, "raw.csv"), "--file", "many="+filepath.Join(data, "many"), "--", "./x")
		if code != cli.ExitOK {
			t.Fatalf("got exit %d: %s", code, stderr)
		}
	}
	files := p.Input.Command.Files
	if len(files) != 2 || files[0].Path != "in/raw.csv" || files[0].Tree || !files[1].Tree ||
		p.Input.Command.Code != (activities.Ref{}) {
		t.Fatalf("the command is %+v", p.Input.Command)
	}
	for digest, want := range map[string]string{
		files[0].Artifact.Digest:            "1,2\n",
		p.Input.Command.Requirements.Digest: "torch\n",
	} {
		if got, err := activities.ReadAll(t.Context(), stack.Store, digest); err != nil || string(got) != want {
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
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "--state", state, "--code", data, "--", "./x")
	if code != cli.ExitUsage {
		t.Errorf("got exit %d, want 2", code)
	}
	clitest.Contains(t, "standard error", stderr, "largest: large 512 MiB", ".spillwayignore")
}
