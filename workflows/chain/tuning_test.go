package chain_test

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// tuned is the input of a Single whose command is tuned.
func tuned(t *testing.T, spaces ...string) chain.SingleInput {
	t.Helper()
	in := chain.SingleInput{
		Command: wire.Command{
			Arguments: []string{"python", "train.py", "--lr", "{lr}", "--momentum", "{momentum}", "--epochs", "{to}"},
			Outputs:   []wire.CommandOutput{{Name: "m", Path: "m.pt"}},
		},
		MaxAttempts: 1,
		Tuning:      &chain.Tuning{Options: search.Options{Trials: 9, Most: 9, Seed: 3}, Objective: "loss"},
	}
	for _, text := range spaces {
		p, err := search.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		in.Tuning.Space = append(in.Tuning.Space, p)
	}
	return in
}

func TestASingleIsTunedAndLeavesWhatItsBestTrialLeft(t *testing.T) {
	t.Parallel()
	c, err := chain.Single("train")
	if err != nil {
		t.Fatal(err)
	}
	in := tuned(t, "lr=log:1e-4..1e-1", "momentum=0.5..0.99")
	input, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var mutex sync.Mutex
	losses := map[string]float64{} // of the whole training, by learning rate
	env := environment(t, c, func(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult,
		error,
	) {
		if err := in.Permits(command); err != nil {
			t.Errorf("a host would refuse %q: %v", command.Arguments, err)
		}
		left, err := echo(ctx, task, command)
		lr, _ := strconv.ParseFloat(command.Arguments[3], 64)
		momentum, _ := strconv.ParseFloat(command.Arguments[5], 64)
		epochs, _ := strconv.ParseFloat(command.Arguments[7], 64)
		loss := math.Pow(math.Log10(lr)+2, 2) + momentum + 1/epochs
		if epochs == 9 {
			mutex.Lock()
			losses[command.Arguments[3]] = loss
			mutex.Unlock()
		}
		left.Values = map[string]any{"loss": loss}
		return left, err
	})
	if err := env.SetMemoOnStart(map[string]any{
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion},
	}); err != nil {
		t.Fatal(err)
	}
	env.ExecuteWorkflow(c.Name(), json.RawMessage(input))
	var result chain.Result
	if err := env.GetWorkflowResult(&result); err != nil {
		t.Fatal(err)
	}
	found, left := result.Tuned, result.Stages["train"]
	if found == nil || left.Tasks != 1 || len(left.Outputs["m"]) != 1 || left.Values[0]["loss"] != found.Objective {
		t.Fatalf("result %+v does not say what the best trial left", result)
	}
	lr := found.Configuration["lr"].String()
	if found.Objective != losses[lr] || len(losses) == 0 {
		t.Errorf("the best is %+v, of those that had all: %v", found, losses)
	}
	for _, loss := range losses {
		if loss < found.Objective {
			t.Errorf("%g is better than the best, %g", loss, found.Objective)
		}
	}
	want := []string{
		"python", "train.py", "--lr", lr, "--momentum", found.Configuration["momentum"].String(), "--epochs", "9",
	}
	if diff := cmp.Diff(want, found.Arguments); diff != "" {
		t.Errorf("its arguments (-want +got):\n%s", diff)
	}
	trials := 0
	for _, n := range found.Trials {
		trials += n
	}
	if trials != 9 || found.Trials[runs.TrialFinished] != len(losses) || found.Ended != runs.EndedDone {
		t.Errorf("trials: %+v", found)
	}
}

func TestTuningsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	spaces := []string{"lr=log:1e-4..1e-1", "momentum=0.5..0.99"}
	for name, test := range map[string]struct {
		spaces []string
		change func(*chain.SingleInput)
		want   string
	}{
		"no space":             {nil, nil, "it has no parameter"},
		"a range through zero": {[]string{"lr=log:0..1", "momentum=0..1"}, nil, "a logarithmic range is above 0"},
		"a name twice":         {[]string{"lr=0..1.0", "lr=0..2.0", "momentum=0..1"}, nil, "it is there twice"},
		"an unused parameter":  {append(slices.Clone(spaces), "layers=2..3"), nil, `"layers" is used nowhere`},
		"an unknown one":       {spaces[:1], nil, "placeholder {momentum} is unknown"},
		"the job's own name":   {append(slices.Clone(spaces), "rung=1..2"), nil, "{rung} is the job's own"},
		"a choice without end": {[]string{spaces[0], "momentum=a|" + strings.Repeat("b", 65)}, nil, "at most 64 bytes"},
		"in place": {
			spaces, func(in *chain.SingleInput) { in.Command.InPlace = "/srv" }, "copies of the directory",
		},
		"no objective": {spaces, func(in *chain.SingleInput) { in.Tuning.Objective = "" }, "no objective"},
		"no trial": {
			spaces, func(in *chain.SingleInput) { in.Tuning.Options.Trials = 0 }, "ask for at least one",
		},
		"no more for more":      {spaces, func(in *chain.SingleInput) { in.Tuning.Options.Least = 10 }, "no more than all"},
		"time that is negative": {spaces, func(in *chain.SingleInput) { in.Tuning.Time = -time.Second }, "is negative"},
		"rungs without a turn": {spaces, func(in *chain.SingleInput) {
			in.Command.Arguments = in.Command.Arguments[:6]
			in.Tuning.Options.Algorithm = search.ASHA
		}, "use {to}"},
		"a brace alone": {spaces, func(in *chain.SingleInput) { in.Command.Arguments[1] = "{" }, "is no placeholder"},
	} {
		in := tuned(t, test.spaces...)
		if test.change != nil {
			test.change(&in)
		}
		if err := in.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	if err := tuned(t, spaces...).Validate(); err != nil {
		t.Errorf("a tuning that can be is refused: %v", err)
	}
}
