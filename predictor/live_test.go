package predictor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// sampling folds one sample a second of a running attempt.
func sampling(state predictor.State, task, from, to int, memory quantity.Bytes, cpu quantity.Milli) predictor.State {
	for second := from; second < to; second++ {
		state = predictor.Fold(state, predictor.Sampled{
			Run: "r", Stage: stageNamed("train"), Task: fmt.Sprintf("train-%d", task), Attempt: 1, Venue: predictor.Pool,
			Host: "laptop",
			CPU:  cpu, Memory: memory, Grant: quantity.Size{CPU: quantity.Core, Memory: 4 * quantity.GiB},
			At: after(float64(second)),
		})
	}
	return state
}

func TestALongAttemptOfAnUnknownStageGivesBackWhatItDoesNotUse(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "train", 1, 0),
		start("r", "train", 0, 0))
	plan, state := predictor.Decide(state, laptop(1, 4))
	if s := plan.Sizings[0]; s.Base.Memory > quantity.GiB || !s.Grows() || !s.Live.IsZero() {
		t.Fatalf("at first: %+v, want a guess and nothing live", s)
	}
	state = sampling(state, 0, 0, 50, 300*quantity.MiB, 950)
	if plan, state = predictor.Decide(state, laptop(50, 4)); !plan.Sizings[0].Live.IsZero() {
		t.Errorf("after 50 samples: %s, want none yet", plan.Sizings[0].Live)
	}
	state = sampling(state, 0, 50, 300, 300*quantity.MiB, 950)
	plan, state = predictor.Decide(state, laptop(300, 4))
	live := plan.Sizings[0].Live
	if live.Memory < 300*quantity.MiB || live.Memory > 610*quantity.MiB || live.CPU != quantity.Core {
		t.Errorf("after 300 samples of 300 MiB and 0.95 cores: %s, want at most twice the memory and one core", live)
	}
	if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, "live size") ||
		!strings.Contains(told, "300 samples") {
		t.Errorf("told: %s, want the live size and its reason", told)
	}
	state = sampling(state, 0, 300, 400, 700*quantity.MiB, 950)
	plan, state = predictor.Decide(state, laptop(400, 4))
	if live := plan.Sizings[0].Live; live.Memory < 700*quantity.MiB {
		t.Errorf("once 700 MiB were used: %s, want more than that", live)
	}
	// Five attempts that have ended teach more.
	state = learn(state, "train", 5, 10)
	state = sampling(state, 0, 400, 401, 700*quantity.MiB, 950)
	plan, _ = predictor.Decide(state, laptop(402, 4))
	if s := plan.Sizings[0]; !s.Live.IsZero() || !s.Learned {
		t.Errorf("once five attempts have ended: %+v, want what they taught", s)
	}
}
