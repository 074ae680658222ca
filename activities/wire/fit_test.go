package wire_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestWhatKeepsACommandOffFunctionsIsSaid(t *testing.T) {
	t.Parallel()
	plain := wire.Command{Arguments: []string{"python3", "fit.py"}, Imports: []string{}}
	with := func(change func(*wire.Command)) wire.Command {
		changed := plain
		change(&changed)
		return changed
	}
	of := wire.Stage{Name: "fit", Command: true}
	for name, c := range map[string]struct {
		stage   wire.Stage
		command wire.Command
		want    string
	}{
		"a program and the standard library": {of, plain, ""},
		"of whose imports nothing is known":  {of, with(func(c *wire.Command) { c.Imports = nil }), ""},
		"a program that it brings along":     {of, with(func(c *wire.Command) { c.Arguments = []string{"./fit"} }), ""},
		"in place": {
			of, with(func(c *wire.Command) { c.InPlace = "/home/ada" }), "it runs in place, in a directory of this host",
		},
		"an image": {
			of, with(func(c *wire.Command) { c.Image = "python:3.12" }), "it runs in the container image python:3.12",
		},
		"requirements": {
			of, with(func(c *wire.Command) { c.Requirements = ref }),
			"it has Python requirements, which each new function would install again",
		},
		"a module of others": {
			of, with(func(c *wire.Command) { c.Imports = []string{"numpy"} }),
			"it imports numpy, which functions do not have",
		},
		"many modules": {
			of, with(func(c *wire.Command) { c.Imports = []string{"a", "b", "c", "d"} }),
			"it imports a, b, c and others, which functions do not have",
		},
		"a path of this host": {
			of, with(func(c *wire.Command) { c.Arguments = []string{"python3", "fit.py", "--data=/srv/rows.csv"} }),
			"it names /srv/rows.csv, a path of this host",
		},
		"a path of this host in a script": {
			of, with(func(c *wire.Command) { c.Arguments = []string{"sh", "-c", "sort </srv/rows.csv >out"} }),
			"it names /srv/rows.csv, a path of this host",
		},
		"a path of this host in its environment": {
			of, with(func(c *wire.Command) { c.Environment = map[string]string{"DATA": "/srv"} }),
			"it names /srv, a path of this host",
		},
		"the PATH of the shell that sent it": {
			of, with(func(c *wire.Command) { c.Environment = map[string]string{"PATH": "/home/me/bin:/usr/bin"} }), "",
		},
		"its interpreter by its path": {
			of, with(func(c *wire.Command) { c.Arguments = []string{"/opt/py/bin/python3", "fit.py"} }),
			"it names /opt/py/bin/python3, a path of this host",
		},
		"paths that are everywhere": {
			of, with(func(c *wire.Command) {
				c.Arguments = []string{"/bin/sh", "-c", "echo a/b 1/2 https://example.org/x > /dev/null; ls /tmp; sed s/a/b/"}
			}), "",
		},
		"a GPU": {
			wire.Stage{Command: true, Declared: quantity.Size{GPU: quantity.Core}},
			plain,
			"it needs a GPU, which functions do not have",
		},
		"a long time": {
			wire.Stage{Command: true, Timeout: time.Hour}, plain, "it may take 1h0m0s, and a function 15m0s",
		},
		"a function's whole time": {wire.Stage{Command: true, Timeout: wire.FunctionTime}, plain, ""},
		"the word of its author": {
			wire.Stage{Command: true, PoolOnly: true}, with(func(c *wire.Command) { c.Image = "x" }), "",
		},
		"no command": {wire.Stage{}, with(func(c *wire.Command) { c.Image = "x" }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			input, err := json.Marshal(c.command)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.stage.PoolOnlyFor(input); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if why := of.PoolOnlyFor(json.RawMessage(`[]`)); why != "" {
		t.Errorf("no command at all: got %q, want that whoever runs it says so", why)
	}
}

func TestWhatACommandBringsAlongIsAddedUp(t *testing.T) {
	t.Parallel()
	c := wire.Command{
		Code:  activities.Ref{Digest: "a", Bytes: 10},
		Files: []wire.CommandFile{{Artifact: activities.Ref{Bytes: 3}}, {Artifact: activities.Ref{Bytes: -5}}},
	}
	if got := c.Room(activities.Ref{Bytes: 100}); got != 123 {
		t.Errorf("got %d, want the code twice, the files and the checkpoint: 123", got)
	}
	for range 5 {
		c.Files = append(c.Files, wire.CommandFile{Artifact: activities.Ref{Bytes: math.MaxInt64}})
	}
	if got := c.Room(activities.Ref{}); got < wire.FunctionDisk {
		t.Errorf("of files of any size: got %d, want more than a function has", got)
	}
	if got := []string{c.Runs(), (wire.Command{Arguments: []string{"/usr/bin/python3.12"}}).Runs(), (wire.Command{
		Arguments: []string{"sh", "-c", "python3 fit.py"}, Program: "python3",
	}).Runs()}; !cmp.Equal(got, []string{"", "python3.12", "python3"}) {
		t.Errorf("what runs: got %q", got)
	}
}

func TestNotesComeOutOfALogAsTheyWentIn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var log, printed strings.Builder
		var want wire.FunctionNote
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			line := rapid.StringMatching(`[ -~]{0,40}`).Draw(t, "line") + "\n"
			log.WriteString(line)
			printed.WriteString(line)
			var note wire.FunctionNote
			if rapid.Bool().Draw(t, "a checkpoint") {
				note.Checkpoint = &activities.Ref{Digest: rapid.StringMatching(`[0-9a-f]{64}`).Draw(t, "digest"), Bytes: 7}
				want.Checkpoint = note.Checkpoint
			}
			if rapid.Bool().Draw(t, "progress") {
				note.Progress = &wire.Progress{Step: rapid.IntRange(0, 9).Draw(t, "step"), Metrics: map[string]float64{"a": 1}}
				want.Progress = note.Progress
			}
			log.WriteString(note.Line())
		}
		got, rest := wire.CutFunctionNotes(log.String())
		if diff := cmp.Diff(want, got); diff != "" || rest != printed.String() {
			t.Errorf("(-want +got):\n%s\nthe rest %q, want %q", diff, rest, printed.String())
		}
	})
	metrics := map[string]float64{}
	for i := range 500 {
		metrics[strings.Repeat("m", i%20+1)+string(rune('a'+i%26))] = float64(i)
	}
	line := wire.FunctionNote{Progress: &wire.Progress{Step: 3, Metrics: metrics}}.Line()
	if note, _ := wire.CutFunctionNotes(line); len(line) > 1100 || note.Progress == nil || note.Progress.Step != 3 {
		t.Errorf("a note with many metrics: got %d bytes and %+v, want the step alone", len(line), note.Progress)
	}
	if _, rest := wire.CutFunctionNotes("spillway-note: nonsense\n"); rest != "spillway-note: nonsense\n" {
		t.Errorf("what is no note: got %q, want it kept", rest)
	}
}
