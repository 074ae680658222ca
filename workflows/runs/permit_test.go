package runs_test

import (
	"encoding/json"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// tuned is a tuning of a command with a parameter of each kind, of which one does not always exist.
func tuned(t *testing.T) (runs.TuneRequest, wire.Command) {
	t.Helper()
	var space search.Space
	for _, text := range []string{
		"lr=log:1e-4..1e-1", "layers=2..8", "optimizer=adam|sgd", "momentum=0.5..0.99 if optimizer=sgd",
	} {
		p, err := search.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		space = append(space, p)
	}
	command := wire.Command{
		Arguments: []string{
			"python", "train.py", "--lr={lr}", "--layers", "{layers}", "--opt", "{optimizer}", "--momentum", "{momentum}",
			"--epochs", "{to}", "--tag", "{{t}-{trial}",
		},
		Environment: map[string]string{"FROM": "{from}", "PATH": "/bin"},
		Parameters:  map[string]float64{"momentum": 7},
		Code:        activities.Ref{Digest: "c", Bytes: 1},
	}
	input, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	return runs.TuneRequest{
		Stage: wire.Stage{Name: "train"}, Space: space, Options: search.Options{Trials: 4, Most: 9}, Input: input,
		Command: true, Objective: "loss",
	}, command
}

func TestATuningPermitsTheCommandsOfItsTrials(t *testing.T) {
	t.Parallel()
	q, command := tuned(t)
	for seed := range uint64(50) {
		q.Options.Seed = seed
		s, err := search.New(q.Space, q.WithDefaults().Options)
		if err != nil {
			t.Fatal(err)
		}
		job, _ := s.Next()
		for _, turn := range []runs.Turn{{To: 1}, {Number: 3000, Rung: 2, From: 0.1 + 0.2, To: 1e-7}} {
			encoded, err := json.Marshal(runs.FillCommand(command, job.Configuration, turn))
			if err != nil {
				t.Fatal(err)
			}
			var order wire.Command // as a host is asked for it
			if err := json.Unmarshal(encoded, &order); err != nil {
				t.Fatal(err)
			}
			if err := q.Permits(order); err != nil {
				t.Errorf("%v, turn %+v: %v", job.Configuration, turn, err)
			}
		}
	}
}

func TestAttackATuningPermitsNoOtherCommand(t *testing.T) {
	t.Parallel()
	q, command := tuned(t)
	configuration := search.Configuration{
		"lr": {Number: 0.01}, "layers": {Number: 3}, "optimizer": {Text: "adam"},
	}
	for name, change := range map[string]func(*wire.Command){
		"another program":     func(c *wire.Command) { c.Arguments[0] = "sh" },
		"another argument":    func(c *wire.Command) { c.Arguments = append(c.Arguments, "--evil") },
		"a text for a number": func(c *wire.Command) { c.Arguments[8] = "1; id" },
		"a value that its parameters do not say": func(c *wire.Command) {
			c.Arguments[2] = "--lr=0.02"
		},
		"a value out of its range": func(c *wire.Command) {
			c.Arguments[2], c.Parameters["lr"] = "--lr=2", 2
		},
		"part of a layer": func(c *wire.Command) { c.Arguments[4], c.Parameters["layers"] = "2.5", 2.5 },
		"another choice": func(c *wire.Command) {
			c.Arguments[6] = "$(id)"
			wire.AddCategories(c.Parameters, "optimizer", "$(id)")
		},
		"another environment": func(c *wire.Command) { c.Environment["PATH"] = "/tmp" },
		"one more variable":   func(c *wire.Command) { c.Environment["LD_PRELOAD"] = "x" },
		"other code":          func(c *wire.Command) { c.Code.Digest = "d" },
		"another directory":   func(c *wire.Command) { c.InPlace = "/" },
		"one more file":       func(c *wire.Command) { c.Files = []wire.CommandFile{{Path: "x"}} },
		"one more parameter":  func(c *wire.Command) { c.Parameters["x"] = 1 },
	} {
		order := runs.FillCommand(command, configuration, runs.Turn{To: 3})
		change(&order)
		if err := q.Permits(order); err == nil {
			t.Errorf("%s is permitted: %+v", name, order)
		}
	}
	q.Command = false
	if err := q.Permits(runs.FillCommand(command, configuration, runs.Turn{To: 3})); err == nil {
		t.Error("a tuning of a function permits a command")
	}
}
