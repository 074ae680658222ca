package program

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/workflows/chain"
)

func TestACommandIsNamedAfterWhatItRuns(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"python train.py": "train",
		"python3.12 -u src/train_model.py --epochs 3": "train_model",
		"python -m pkg.train --lr 0.1":                "train",
		"python -W ignore -X dev train.py":            "train",
		"/usr/bin/python3 ./Train.v2.py":              "train-v2",
		"python -c print(1)":                          "python",
		"python":                                      "python",
		"bash -x scripts/run.sh":                      "run",
		"sh -c true":                                  "sh",
		"node --max-old-space-size=4096 index.mjs":    "index",
		"deno run main.ts":                            "main",
		"torchrun --nproc-per-node=2 train.py":        "train",
		"./benchmark --size 3":                        "benchmark",
		"/opt/tools/Evaluate":                         "evaluate",
		"./a.out":                                     "a-out",
		"7z x data.7z":                                "run-7z",
		"./é":                                         "run",
		"make all":                                    "make",
		"./" + strings.Repeat("x", 60):                strings.Repeat("x", 40),
	} {
		if got := nameOf(strings.Fields(command)); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
}

func TestEveryCommandHasAValidName(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		arguments := rapid.SliceOfN(rapid.OneOf(rapid.String(),
			rapid.SampledFrom([]string{"python", "-m", "sh", "-c", "", "/", "."})), 1, 5).Draw(t, "arguments")
		name := nameOf(arguments)
		if _, err := chain.Single(name); err != nil && name != "inputs" && name != "parameters" {
			t.Fatalf("%q: %v", arguments, err)
		}
	})
}

func TestWhatFlagsTellIsFound(t *testing.T) {
	t.Parallel()
	large, csv, x := usage.Category("large"), usage.Category("csv"), usage.Category("x.csv")
	for command, want := range map[string]map[string]float64{
		"python train.py": {},
		"python train.py --epochs 3 --lr=0.1 -b 64":       {"epochs": 3, "lr": 0.1, "b": 64},
		"python train.py model.layers=12 data=x.csv":      {"model.layers": 12, "data=": x, "data.extension=": csv},
		"python train.py --model small --model large":     {"model=": large},
		"python train.py --model=large x.csv":             {"model=": large},
		"python train.py --amp --fast":                    {"amp": 1, "fast": 1},
		"python train.py --verbose --epochs 1e3":          {"verbose": 1, "epochs": 1000},
		"python train.py --shift -3 --offset=-2":          {},
		"python train.py --a NaN --b Inf --c=0x10 --d=.5": {"c=": usage.Category("0x10"), "d": 0.5},
		"python train.py --epochs 3 --epochs 5":           {"epochs": 5},
		"python train.py -- --epochs 3":                   {},
		"python train.py 3 4 5":                           {},
		"python train.py --name 7b --batch 8":             {"name=": usage.Category("7b"), "batch": 8},
		"--n 3 x":                                         {}, // the program itself is no flag
		"x -3 4":                                          {},
		"x --a 1 --b 2 --c 3 --d 4 --e 5 --f 6 --g 7 --h 8": {
			"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7, "h": 8,
		},
	} {
		got := parameters(strings.Fields(command))
		if len(got) == 0 {
			got = map[string]float64{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", command, diff)
		}
	}
}

// flagsOf parses the flags of a command.
func flagsOf(t *testing.T, arguments ...string) *Flags {
	t.Helper()
	flags := &Flags{}
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	flags.Add(set)
	if err := set.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return flags
}

func TestTheShellsPythonIsTheOneThatRuns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		shell map[string]string
		flags string
		want  map[string]string
	}{
		"an empty shell": {nil, "", nil},
		"a PATH": {
			map[string]string{"PATH": "/bin:/usr/bin"},
			"",
			map[string]string{"PATH": "/bin:/usr/bin"},
		},
		"a virtual environment": {
			map[string]string{"PATH": "/bin", "VIRTUAL_ENV": "/v"},
			"",
			map[string]string{"PATH": "/v/bin:/bin", "VIRTUAL_ENV": "/v"},
		},
		"one without a PATH": {
			map[string]string{"VIRTUAL_ENV": "/v"},
			"",
			map[string]string{"PATH": "/v/bin", "VIRTUAL_ENV": "/v"},
		},
		"one beside requirements": {map[string]string{"PATH": "/bin", "VIRTUAL_ENV": "/v"}, "--requirements r", nil},
		"one beside an image":     {map[string]string{"PATH": "/bin", "VIRTUAL_ENV": "/v"}, "--image i", nil},
		"a variable with a value": {nil, "--env A=b=c --env E=", map[string]string{"A": "b=c", "E": ""}},
		"a variable of the shell": {
			map[string]string{"TOKENIZERS": "x"},
			"--env TOKENIZERS",
			map[string]string{"TOKENIZERS": "x"},
		},
		"a PATH that is given": {
			map[string]string{"PATH": "/bin"},
			"--env PATH=/own",
			map[string]string{"PATH": "/own"},
		},
		"nothing else of the shell": {map[string]string{"AWS_SECRET_ACCESS_KEY": "s", "HOME": "/h"}, "", nil},
	} {
		lookup := func(name string) (string, bool) { value, set := test.shell[name]; return value, set }
		p, err := flagsOf(t, strings.Fields(test.flags)...).Prepare([]string{"x"}, lookup, "/here")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(test.want, p.Input.Command.Environment); diff != "" {
			t.Errorf("%s: environment (-want +got):\n%s", name, diff)
		}
	}
}

func TestFlagsBecomeTheCommandThatIsRun(t *testing.T) {
	t.Parallel()
	none := func(string) (string, bool) { return "", false }
	got, err := flagsOf(t, "--code", "src", "--cpu", "2", "--memory", "2GiB", "--timeout", "10m", "--attempts", "5",
		"--output", "model=out/../model.pt",
		"--file", "data/raw.csv=/mnt/raw.csv", "--env", "A=1").
		Prepare([]string{"python", "train.py", "--epochs", "3"}, none, "/here")
	if err != nil {
		t.Fatal(err)
	}
	want := Prepared{
		Name: "train", directory: "src", files: []string{"/mnt/raw.csv"},
		Input: chain.SingleInput{
			Command: wire.Command{
				Arguments: []string{"python", "train.py", "--epochs", "3"}, Environment: map[string]string{"A": "1"},
				KeepChanged: true,
				Files:       []wire.CommandFile{{Path: "data/raw.csv"}},
				Outputs:     []wire.CommandOutput{{Name: "model", Path: "model.pt"}},
				Parameters:  map[string]float64{"epochs": 3},
			},
			CPU: 2 * quantity.Core, Memory: 2 * quantity.GiB, Timeout: 10 * time.Minute, MaxAttempts: 5,
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Prepared{})); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	got, err = flagsOf(t, "--in-place").Prepare([]string{"./x"}, none, "/here")
	if err != nil || got.Input.Command.InPlace != "/here" || got.Input.Command.KeepChanged {
		t.Errorf("in place: got %+v, %v; want the working directory, and nothing kept of it", got, err)
	}
}

func TestTheExitCodeIsFoundInWhyARunFailed(t *testing.T) {
	t.Parallel()
	for failure, want := range map[string]int{
		"stage train, task train-0, attempt 3: the command ended with exit code 41: no such column (3 of 3 " +
			"attempts failed)": 41,
		"stage train, task train-0, attempt 1: the command ended with " +
			"signal: killed": 0,
		"stage train, task train-0, attempt 1: an output is not there: " +
			"exit code 3": 0,
		"the command ended with " +
			"exit code 0": 0,
		"the command ended with " +
			"exit code 9999": 0,
		"": 0,
	} {
		if code, found := ExitCode(failure); code != want && found || found != (want != 0) {
			t.Errorf("%q: got %d, %v, want %d", failure, code, found, want)
		}
	}
}

func TestOutputIsDrawnOnATerminalAndCopiedElsewhere(t *testing.T) {
	t.Parallel()
	lines := []wire.LogLine{
		{Origin: wire.LogOut, Text: "begin \x1b[31mred\x1b[0m"},
		{Origin: wire.LogErr, Text: " 10%", Redrawn: true},
		{Origin: wire.LogErr, Text: "100%", Redrawn: true},
		{Origin: wire.LogOut, Text: "end"},
		{Origin: wire.LogNote, Text: "3 lines are left out"},
		{Origin: wire.LogErr, Text: "50%", Redrawn: true},
	}
	for name, test := range map[string]struct {
		terminal         bool
		wantOut, wantErr string
	}{
		"a terminal": {true, "begin red\nend\n", "\r\x1b[K 10%\r\x1b[K100%\nspillway: 3 lines are left " +
			"out\n\r\x1b[K50%\nspillway: over\n"},
		"a file": {
			false, "begin \x1b[31mred\x1b[0m\nend\n",
			" 10%\n100%\nspillway: 3 lines are left out\n50%\nspillway: over\n",
		},
	} {
		var out, errs bytes.Buffer
		p := &programPrinter{out: stream{&out, test.terminal}, err: stream{&errs, test.terminal}}
		for _, line := range lines {
			if err := p.show(logs.Line{LogLine: line}); err != nil {
				t.Fatal(err)
			}
		}
		p.note("spillway: over")
		if out.String() != test.wantOut || errs.String() != test.wantErr {
			t.Errorf("%s: got %q and %q, want %q and %q", name, out.String(), errs.String(), test.wantOut, test.wantErr)
		}
	}
}

func TestEveryFailedAttemptButTheLastIsTold(t *testing.T) {
	t.Parallel()
	view := func(attempts, failed, outOfMemory, lost int) ledger.RunView {
		return ledger.RunView{Run: "r", Stages: []ledger.StageView{{
			Attempts: attempts, Failed: failed, OutOfMemory: outOfMemory, Lost: lost, Grant: quantity.Size{Memory: quantity.GiB},
		}}}
	}
	none := timeline.Attempt{}
	for name, test := range map[string]struct {
		before, now ledger.RunView
		lost        timeline.Attempt
		want        string
	}{
		"nothing yet": {ledger.RunView{}, ledger.RunView{Run: "r"}, none, ""},
		"nothing new": {view(1, 1, 0, 0), view(1, 1, 0, 0), none, ""},
		"a failure":   {ledger.RunView{}, view(1, 1, 0, 0), none, "attempt 1 failed (1 of 3); it is tried again"},
		"want of memory": {
			view(1, 1, 0, 0), view(2, 2, 1, 0), none,
			"attempt 2 ran out of memory at 1 GiB; the next one has more",
		},
		"want of memory after the last failure": {
			view(3, 3, 1, 0), view(4, 4, 2, 0), none, "attempt 4 ran out of memory at 1 GiB; the next one has more",
		},
		"a failure after want of memory": {
			view(3, 2, 2, 1), view(4, 3, 2, 1), none,
			"attempt 4 failed, failure 1 of at most 3 (running out of memory or being lost is none); it is tried again",
		},
		"a lost host": {
			view(1, 1, 0, 0), view(2, 1, 0, 1),
			timeline.Attempt{Cause: predictor.CauseHostLost, Error: "gone"},
			"attempt 2 was lost with its host; it is tried again",
		},
		"a host at which it waited": {
			view(1, 1, 0, 0), view(2, 1, 0, 1),
			timeline.Attempt{Task: "t", Cause: predictor.CauseHostLost, Error: "gone"},
			"attempt 2 waited at a host that was lost; its task is taken again",
		},
		"nobody says why": {
			view(1, 1, 0, 0), view(2, 1, 0, 1), none, "attempt 2 was lost with its host; it is tried again",
		},
		"a budget that is used up": {
			view(0, 0, 0, 0), view(1, 0, 0, 1),
			timeline.Attempt{Cause: predictor.CauseBudget, Error: "the run has not answered yet: it is taken again"},
			"attempt 1 was stopped: the run has not answered yet: it is taken again",
		},
		"a host without memory": {
			view(0, 0, 0, 0), view(1, 0, 0, 1),
			timeline.Attempt{Cause: predictor.CauseHostMemory, Error: "the host ran out of memory"},
			"attempt 1 was lost: the host ran out of memory; it is tried again",
		},
		"the last failure": {view(2, 2, 0, 0), view(3, 3, 0, 0), none, ""},
		"a success":        {view(0, 0, 0, 0), view(1, 0, 0, 0), none, ""},
	} {
		if got := display.Retry(test.before, test.now, 3, test.lost); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestAFailureIsTriedAgainOnlyWhenItIs has a program that says that it would fail again: the run ends without a word of
// another attempt.
func TestAFailureIsTriedAgainOnlyWhenItIs(t *testing.T) {
	t.Parallel()
	view := func(state predictor.RunState, attempts, failed, lost, running int) ledger.RunView {
		return ledger.RunView{Run: "r", State: state, Stages: []ledger.StageView{{
			Attempts: attempts, Failed: failed, Lost: lost, Running: running,
		}}}
	}
	going := predictor.RunRunning
	first := "attempt 1 failed (1 of 3); it is tried again"
	for name, test := range map[string]struct {
		views []ledger.RunView
		want  []string // of each view
	}{
		"it would fail again": {
			[]ledger.RunView{view(going, 0, 0, 0, 1), view(going, 1, 1, 0, 0), view(predictor.RunFailed, 1, 1, 0, 0)},
			[]string{"", "", ""},
		},
		"it is tried again": {
			[]ledger.RunView{view(going, 0, 0, 0, 1), view(going, 1, 1, 0, 0), view(going, 1, 1, 0, 1)},
			[]string{"", "", first},
		},
		"at once": {
			[]ledger.RunView{view(going, 0, 0, 0, 1), view(going, 1, 1, 0, 1)}, []string{"", first},
		},
		"and ends before it is seen": {
			[]ledger.RunView{view(going, 1, 1, 0, 0), view(going, 2, 1, 0, 0)}, []string{"", first},
		},
		"it is lost": {
			[]ledger.RunView{view(going, 0, 0, 0, 1), view(going, 1, 0, 1, 0)},
			[]string{"", "attempt 1 was lost with its host; it is tried again"},
		},
	} {
		var retries display.Retries
		var before ledger.RunView
		for i, now := range test.views {
			got := strings.Join(retries.Tell(before, now, 3, timeline.Attempt{}), "\n")
			if got != test.want[i] {
				t.Errorf("%s, view %d: got %q, want %q", name, i, got, test.want[i])
			}
			before = now
		}
	}
}

func TestACommandWaitsUntilAnAttempt(t *testing.T) {
	t.Parallel()
	view := func(state predictor.RunState, stages ...ledger.StageView) ledger.RunView {
		return ledger.RunView{Run: "r", State: state, Stages: stages}
	}
	for name, test := range map[string]struct {
		run  ledger.RunView
		want bool
	}{
		"nothing is known":       {ledger.RunView{}, false},
		"nothing is scheduled":   {view(predictor.RunRunning), true},
		"a task waits":           {view(predictor.RunRunning, ledger.StageView{Scheduled: 1}), true},
		"an attempt runs":        {view(predictor.RunRunning, ledger.StageView{Running: 1}), false},
		"an attempt has failed":  {view(predictor.RunRunning, ledger.StageView{Attempts: 1}), false},
		"it was cancelled early": {view(predictor.RunCancelled), false},
	} {
		if got := display.Waits(test.run); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}

// twoGPUsHost has two GPUs with so many GiB.
func twoGPUsHost(room quantity.Size, first, second quantity.Bytes) predictor.Host {
	host := predictor.Host{Capacity: room}
	for i, each := range []quantity.Bytes{first, second} {
		host.GPUs = append(host.GPUs, predictor.GPU{Index: i, Class: "h100", Memory: each * quantity.GiB})
	}
	host.Capacity.GPU, host.Capacity.GPUMemory, host.Capacity.DeviceClass = 2*quantity.Core,
		(first+second)*quantity.GiB, "h100"
	return host
}

func TestASizeThatNoHostHasIsRefused(t *testing.T) {
	t.Parallel()
	hosts := []predictor.Host{
		{ID: "wide", Capacity: quantity.Size{CPU: 8 * quantity.Core, Memory: 4 * quantity.GiB}},
		{ID: "deep", Capacity: quantity.Size{CPU: 2 * quantity.Core, Memory: 64 * quantity.GiB}},
	}
	someRoom := quantity.Size{CPU: 8 * quantity.Core, Memory: 4 * quantity.GiB}
	twoGPUs := someRoom.WithGPUs(quantity.GPUs{Count: 2, Class: "h100", Memory: 80 * quantity.GiB})
	mixed, broken := twoGPUsHost(someRoom, 80, 40), twoGPUsHost(someRoom, 80, 40)
	for i := range broken.GPUs {
		broken.GPUs[i].Wrong = "wants a reset"
	}
	for name, tt := range map[string]struct {
		asked quantity.Size
		hosts []predictor.Host
		want  string
	}{
		"none":       {quantity.Size{}, hosts, ""},
		"all of one": {quantity.Size{CPU: 8 * quantity.Core, Memory: 4 * quantity.GiB}, hosts, ""},
		"too much memory": {
			quantity.Size{Memory: 100 * quantity.TiB},
			hosts,
			"--memory 100 TiB: the pool gives an attempt at most 64 GiB",
		},
		"too many cores": {
			quantity.Size{CPU: 999 * quantity.Core},
			hosts,
			"--cpu 999: the pool gives an attempt at most 8",
		},
		"of two hosts": {
			quantity.Size{CPU: 8 * quantity.Core, Memory: 64 * quantity.GiB},
			hosts,
			"no host of the pool has both",
		},
		"a GPU where none is": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 1}),
			[]predictor.Host{{Capacity: someRoom}},
			"it asks for 1 GPU, and the GPUs that a host of the pool has for attempts are: none",
		},
		"more GPUs than there are": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 4, Memory: 8 * quantity.GiB}),
			[]predictor.Host{{Capacity: someRoom}, {Capacity: twoGPUs}},
			"it asks for 4 GPU with 32 GiB, and the GPUs that a host of the pool has for attempts are: 2 h100 with 80 GiB",
		},
		"a GPU of another class": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 1, Class: "t4"}),
			[]predictor.Host{{Capacity: twoGPUs}},
			"on t4, and the GPUs",
		},
		"a GPU that is there": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 2, Class: "h100"}), []predictor.Host{{Capacity: twoGPUs}}, "",
		},
		"two of 60 where one has 80 and one 40": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 2, Memory: 60 * quantity.GiB}),
			[]predictor.Host{mixed},
			"it asks for 2 GPU with 120 GiB, and the GPUs that a host of the pool has for attempts are: 2 h100 with 80 GiB " +
				"and 40 GiB",
		},
		"one of 80 of these": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 1, Memory: 80 * quantity.GiB}), []predictor.Host{mixed}, "",
		},
		"a GPU that does not work now": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 1}), []predictor.Host{broken}, "",
		},
		"a driver that has not answered": {
			quantity.Size{}.WithGPUs(quantity.GPUs{Count: 1}), []predictor.Host{{Capacity: someRoom, GPUsUnknown: true}}, "",
		},
		"hosts are not known": {quantity.Size{CPU: 999 * quantity.Core}, nil, ""},
	} {
		err := checkSize(tt.hosts, tt.asked)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
