package digits

import (
	"context"
	"errors"
	"fmt"

	spillway "github.com/spillway-ml/spillway/workflows"
)

// A trial learns from one part in tuneShare of the training images, for tuneEpochs epochs if it comes that far: enough
// to tell a good learning rate from a bad one. On the sample's images the 39 jobs of 27 trials take ten seconds of a
// core of 2026 together, twice what the training takes.
const (
	tuneShare  = 2
	tuneEpochs = 9
)

// TuneInput is the input of the stage Tune: a trial.
type TuneInput struct {
	Data
	// Seed is that of the trial's training: all trials begin with the same weights.
	Seed int64 `json:"seed"`
	// LearningRate and Dropout are what is tried: see TrainInput.
	LearningRate float64 `json:"learning_rate"`
	Dropout      float64 `json:"dropout"`
	// Trial says how many epochs the trial has had and is to have.
	Trial spillway.Trial `json:"trial"`
}

// Tried is what a trial came to.
type Tried struct {
	// Loss (cross entropy, in nats) and Accuracy (0 to 1) are those of the best epoch on the validation images. Loss is
	// nil where training has diverged.
	Loss     *float64 `json:"loss"`
	Accuracy float64  `json:"accuracy"`
	// Epochs is how many the trial has had.
	Epochs int `json:"epochs"`
}

// search tries learning rates and dropouts, of which the best third goes on twice. All trials of a rung are compared,
// and not those that came first (ASHA), so that the same seed finds the same on machines of all speeds.
func search(data Data, in Input) spillway.Search[TuneInput, Tried] {
	data.Train.Count = max(data.Train.Count/tuneShare, min(data.Train.Count, fewestImages))
	return spillway.Search[TuneInput, Tried]{
		Space: spillway.NewSpace("learning_rate=log:2e-4..5e-2", "dropout=0.05..0.6"),
		Input: TuneInput{Data: data, Seed: in.Seed}, Loss: "loss",
		Trials: in.Trials, Least: 1, Most: tuneEpochs, Algorithm: spillway.Halving, Seed: uint64(in.Seed),
	}
}

// tune brings a trial from where its last job was to the end of this one.
func tune(ctx context.Context, in TuneInput) (Tried, error) {
	state, err := fit(ctx, TrainInput{
		Data: in.Data, Seed: in.Seed, MaxEpochs: tuneEpochs, LearningRate: in.LearningRate, Dropout: in.Dropout,
	}, int(in.Trial.To))
	if errors.Is(err, errDiverges) {
		return Tried{Epochs: state.epoch}, nil // a result: the learning rate is too large
	}
	if err != nil {
		return Tried{}, fmt.Errorf("trial %d: %w", in.Trial.Number, err)
	}
	return Tried{Loss: &state.bestLoss, Accuracy: state.bestAccuracy, Epochs: state.epoch}, nil
}

// Tuned is what a report says of the tuning.
type Tuned struct {
	// Trials is how many there were; Diverged and Failed of them told no loss.
	Trials   int `json:"trials"`
	Diverged int `json:"diverged,omitempty"`
	Failed   int `json:"failed,omitempty"`
	// Trial is the number of the best, from 0, which had this LearningRate and Dropout, and came to Loss.
	Trial        int     `json:"trial"`
	LearningRate float64 `json:"learning_rate"`
	Dropout      float64 `json:"dropout"`
	Loss         float64 `json:"loss"`
}

// tuned sums a tuning up.
func tuned(best spillway.Tuned[Tried]) *Tuned {
	return &Tuned{
		Trials: best.Tuning.Begun, Diverged: best.Tuning.Counts[spillway.TrialDiverged],
		Failed: best.Tuning.Counts[spillway.TrialFailed], Trial: best.Trial, Loss: best.Objective,
		LearningRate: best.Configuration["learning_rate"].Number, Dropout: best.Configuration["dropout"].Number,
	}
}
