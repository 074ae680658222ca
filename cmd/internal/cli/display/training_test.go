package display_test

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// split is a training in two parts that has ended.
func split() predictor.Training {
	return predictor.Training{
		Model: "1f2e", Executor: "torch", Schedule: "1f1b", Batch: 64, MicroBatches: 4, Steps: 400, TotalSteps: 400,
		PredictedStepSeconds: 0.12, StepSeconds: 0.131, Bubble: 0.17,
		Parts: []predictor.TrainingPart{
			{
				Device: "cpu-0", Kind: "cpu", Threads: 1, Ops: 12, First: "characters", Last: "blocks_1_network", Recompute: true,
				PredictedPeakBytes: 90 * quantity.MiB, PeakBytes: 99 * quantity.MiB, CapacityBytes: 512 * quantity.MiB,
				PredictedBusySeconds: 0.1, BusySeconds: 0.11,
			},
			{
				Device: "cpu-1", Kind: "cpu", Threads: 2, Ops: 1, First: "logits", Last: "logits",
				PredictedPeakBytes: 120 * quantity.MiB, PeakBytes: 118 * quantity.MiB, PredictedBusySeconds: 0.11,
				BusySeconds: 0.108,
			},
		},
		Alternatives: []predictor.TrainingAlternative{
			{Partitions: 1, MicroBatches: 1, StepSeconds: 0.21, PeakBytes: 190 * quantity.MiB, Reason: "75 % slower"},
			{Partitions: 3, PeakBytes: quantity.GiB, Reason: "there are 2 devices, and a model that is split into more parts " +
				"than that waits for them"},
		},
		Reason: "2 parts are 1.8 times as fast as one",
	}
}

// whole is a training that is not split and has just begun.
func whole() predictor.Training {
	return predictor.Training{
		Executor: "reference", Schedule: "gpipe", Batch: 1, MicroBatches: 1, TotalSteps: 10, PredictedStepSeconds: 0.001,
		Parts: []predictor.TrainingPart{{
			Device: "cuda:0", Kind: "cuda", Ops: 3, First: "a", Last: "c",
			PredictedPeakBytes: quantity.GiB, CapacityBytes: 2 * quantity.GiB,
		}},
	}
}

func falling(steps int) []float64 {
	losses := make([]float64, steps)
	for i := range losses {
		losses[i] = 1 + 3*math.Exp(-5*float64(i)/float64(steps))
	}
	return losses
}

func trained() display.Trained {
	return display.Trained{
		Model: "model-trained/model.pt", Checkpoint: "model-trained/checkpoints/step-400", File: "model.py",
		Function: "build",
		Loss:     1.02, Losses: falling(400), Seconds: 58.2, Training: split(),
	}
}

func TestTrainingsAreAsTheGoldenFilesHaveThem(t *testing.T) {
	t.Parallel()
	ascii := display.Style{Width: 80, ASCII: true}
	bare := trained()
	bare.Training, bare.Losses, bare.Checkpoint = whole(), nil, ""
	resumed := trained()
	resumed.Resumed, resumed.Losses = 398, falling(2)
	for name, lines := range map[string][]string{
		"training-plan":        display.TrainingPlan(split(), ascii),
		"training-plan-whole":  display.TrainingPlan(whole(), display.Style{Width: 80}),
		"training-end":         display.TrainingEnd(trained(), ascii),
		"training-end-resumed": display.TrainingEnd(resumed, ascii),
		"training-end-bare":    display.TrainingEnd(bare, display.Style{Width: 80}),
	} {
		golden(t, name+".golden", []byte(strings.Join(lines, "\n")+"\n"))
	}
}

func TestALineOfATrainingFitsAndBeginsWithTheStep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := split()
		now.TotalSteps = rapid.Int64Range(1, 1<<40).Draw(t, "total")
		now.Steps = rapid.Int64Range(0, now.TotalSteps).Draw(t, "steps")
		now.StepSeconds = rapid.Float64Range(0, 1e6).Draw(t, "seconds")
		loss := rapid.OneOf(rapid.Float64(), rapid.Just(math.NaN()), rapid.Just(math.Inf(1))).Draw(t, "loss")
		style := display.Style{Width: rapid.IntRange(0, 200).Draw(t, "width"), ASCII: rapid.Bool().Draw(t, "ASCII")}
		line := display.TrainingLine(display.TrainingNow{
			Training: now, Loss: loss, SamplesPerSecond: rapid.Float64Range(0, 1e9).Draw(t, "speed"),
		}, style)
		if n := utf8.RuneCountInString(line); n >= max(style.Width, 40) {
			t.Fatalf("%d columns on a terminal of %d: %s", n, style.Width, line)
		}
		if !strings.Contains(line, "step ") {
			t.Fatalf("there is no step in %q", line)
		}
	})
}

func TestALineOfATrainingSaysWhatIsLeftAndWhatThePlanSaid(t *testing.T) {
	t.Parallel()
	now := split()
	now.Steps = 100
	line := display.TrainingLine(display.TrainingNow{
		Training: now, Loss: 2.31, SamplesPerSecond: 488.5,
		Validation: &display.Validation{Step: 7, Numbers: map[string]float64{"validation_loss": 2.5, "accuracy": 0.75}},
	}, display.Style{Width: 160, ASCII: true})
	want := "####............  step 100/400  loss 2.31  validation_loss 2.5  accuracy 0.75  " +
		"488.5 samples/s  131 ms a step  39.3 s left  plan 120 " +
		"ms  bubble 17%"
	if line != want {
		t.Errorf("got  %q\nwant %q", line, want)
	}
}

func TestACurveHasAPointInEachColumnFromTheHighestLossToTheLowest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		losses := rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(-1e6, 1e6), rapid.Just(math.NaN()), rapid.Just(math.Inf(-1))),
			0, 200).Draw(t, "losses")
		finite := 0
		for _, loss := range losses {
			if !math.IsNaN(loss) && !math.IsInf(loss, 0) {
				finite++
			}
		}
		lines := display.LossCurve(losses, display.Style{Width: 80, ASCII: true})
		if finite < 2 {
			if lines != nil {
				t.Fatalf("a curve of %d losses: %q", finite, lines)
			}
			return
		}
		points := strings.Count(strings.Join(lines, ""), "*")
		if want := min(finite, 60); points != want {
			t.Fatalf("%d points of %d losses, want %d", points, finite, want)
		}
		if !strings.Contains(lines[0], "*") {
			t.Fatalf("no loss is the highest: %q", lines)
		}
	})
}

func TestAFallingLossFalls(t *testing.T) {
	t.Parallel()
	lines := display.LossCurve(falling(120), display.Style{Width: 80, ASCII: true})
	if first, last := strings.IndexByte(lines[0], '*'),
		strings.IndexByte(lines[len(lines)-1], '*'); first < 0 || last <= first {
		t.Errorf("the highest loss is in column %d and the lowest in %d:\n%s", first, last, strings.Join(lines, "\n"))
	}
}
