package digits

import (
	"context"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// someTrainer prepares training on all images of d.
func someTrainer(tb testing.TB, d Dataset, maxEpochs int, rate float64, partitions int) *trainer {
	tb.Helper()
	r, err := newTrainer(d, TrainInput{Data: Data{Train: d.all()}, MaxEpochs: maxEpochs, LearningRate: rate})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.close(); err != nil {
			tb.Error(err)
		}
	})
	if err := r.load(tb.Context(), 1, partitions, nil); err != nil {
		tb.Fatal(err)
	}
	return r
}

// beginTraining prepares short training on a few images.
func beginTraining(t *testing.T, maxEpochs int, rate float64) (*trainer, progress) {
	t.Helper()
	d := someData(t, 300)
	return someTrainer(t, d, maxEpochs, rate, 1), start(d.Side)
}

func encoded(t *testing.T, p progress) string {
	t.Helper()
	data, err := p.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestLossFallsWhileTraining(t *testing.T) {
	t.Parallel()
	r, state := beginTraining(t, 6, DefaultLearningRate)
	var losses []float64
	if err := r.run(t.Context(), &state, r.maxEpochs, func(loss, _ float64) error {
		losses = append(losses, loss)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(losses) != 6 || losses[0] > 1.1*math.Log(classes) || losses[5] > 0.7*losses[0] {
		t.Errorf("validation losses are %v: want 6, the first about ln 10 and the last well below", losses)
	}
}

func TestResumedTrainingIsBitForBitTheSame(t *testing.T) {
	t.Parallel()
	const epochs = 4
	r, whole := beginTraining(t, epochs, DefaultLearningRate)
	var checkpoints []string
	if err := r.run(t.Context(), &whole, r.maxEpochs, func(float64, float64) error {
		checkpoints = append(checkpoints, encoded(t, whole))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for epoch, checkpoint := range checkpoints {
		resumed, _ := beginTraining(t, epochs, DefaultLearningRate)
		var state progress
		if err := state.UnmarshalBinary([]byte(checkpoint)); err != nil {
			t.Fatal(err)
		}
		if err := resumed.run(t.Context(), &state, resumed.maxEpochs, func(float64, float64) error {
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if encoded(t, state) != encoded(t, whole) {
			t.Errorf("training resumed after epoch %d ended in another state", epoch+1)
		}
	}
}

// lossesOf trains in some parts, from p on, and returns the loss of every step.
func lossesOf(t *testing.T, d Dataset, p *progress, maxEpochs, partitions int) []float64 {
	t.Helper()
	r := someTrainer(t, d, maxEpochs, DefaultLearningRate, partitions)
	var losses []float64
	err := r.run(t.Context(), p, r.maxEpochs, func(float64, float64) error {
		losses = append(losses, r.losses...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return losses
}

func TestASplitNetworkHasTheLossesOfTheUnsplitOne(t *testing.T) {
	t.Parallel()
	d := someData(t, 200)
	var all [][]float64
	for partitions := range maxPartitions {
		p := start(d.Side)
		all = append(all, lossesOf(t, d, &p, 2, partitions+1))
	}
	if len(all[0]) != 4 {
		t.Fatalf("%d losses of 2 epochs of 2 steps", len(all[0]))
	}
	near := cmpopts.EquateApprox(1e-5, 0)
	for i, losses := range all[1:] {
		if diff := cmp.Diff(all[0], losses, near); diff != "" {
			t.Errorf("losses (-unsplit +%d parts):\n%s", i+2, diff)
		}
		if diff := cmp.Diff(all[1], losses); diff != "" {
			t.Errorf("losses differ by where the network is cut (-2 parts +%d parts):\n%s", i+2, diff)
		}
	}
}

func TestACheckpointOfAnySplitGoesOnInAnyOther(t *testing.T) {
	t.Parallel()
	const epochs = 3
	d := someData(t, 200)
	whole := start(d.Side)
	want := lossesOf(t, d, &whole, epochs, 1)
	for _, test := range []struct{ before, after int }{{1, 2}, {2, 1}} {
		p := start(d.Side)
		got := lossesOf(t, d, &p, 1, test.before)
		var resumed progress
		if err := resumed.UnmarshalBinary([]byte(encoded(t, p))); err != nil {
			t.Fatal(err)
		}
		got = append(got, lossesOf(t, d, &resumed, epochs, test.after)...)
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-5, 0)); diff != "" {
			t.Errorf("losses (-never stopped +%d parts, then %d):\n%s", test.before, test.after, diff)
		}
	}
}

func TestTrainingStopsBetweenStepsWhenItIsCancelled(t *testing.T) {
	t.Parallel()
	r, state := beginTraining(t, 100, DefaultLearningRate)
	ctx, cancel := context.WithCancel(t.Context())
	err := r.run(ctx, &state, r.maxEpochs, func(float64, float64) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || state.epoch != 1 {
		t.Errorf("got error %v after %d epochs, want context.Canceled after 1", err, state.epoch)
	}
}

func TestTrainingThatDivergesSaysWhatToChange(t *testing.T) {
	t.Parallel()
	r, state := beginTraining(t, 20, 1e30)
	err := r.run(t.Context(), &state, r.maxEpochs, func(float64, float64) error { return nil })
	if !errors.Is(err, errDiverges) || !strings.Contains(err.Error(), "smaller learning_rate") {
		t.Errorf("got %v, want an error that asks for a smaller learning_rate", err)
	}
}

func TestEarlyStopping(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		losses    []float64
		maxEpochs int
		want      bool
		best      int
	}{
		{"training that has not begun is not finished", nil, 1, false, 0},
		{"the last epoch finishes", []float64{3, 2}, 2, true, 2},
		{"falling losses go on", []float64{9, 8, 7, 6, 5, 4, 3}, 30, false, 7},
		{"five epochs without a better loss go on", []float64{3, 1, 2, 2, 2, 2, 2}, 30, false, 2},
		{"six epochs without a better loss finish", []float64{3, 1, 2, 2, 2, 2, 2, 2}, 30, true, 2},
		{"an equal loss is no better one", []float64{1, 1, 1, 1, 1, 1, 1}, 30, true, 1},
		{"a better loss in time starts the count again", []float64{3, 2, 2, 2, 2, 2, 1, 2}, 30, false, 7},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := start(8)
			for _, loss := range test.losses {
				s.observe(nil, loss, 0)
			}
			if got := s.finished(test.maxEpochs); got != test.want || s.bestEpoch != test.best {
				t.Errorf("finished is %v with best epoch %d, want %v with %d", got, s.bestEpoch, test.want, test.best)
			}
		})
	}
}

func TestTheLearningRateFallsAlongHalfACosine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		epoch int
		want  float64
	}{{0, 1}, {5, 0.525}, {10, 0.05}} {
		if got := rateAt(1, test.epoch, 10); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("rateAt(1, %d, 10) = %g, want %g", test.epoch, got, test.want)
		}
	}
}

// TestAccuracy trains in full: with one seed, or with those that SPILLWAY_DIGITS_SEEDS lists, separated by commas;
// unsplit, or in as many parts as SPILLWAY_DIGITS_PARTITIONS says.
func TestAccuracy(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for 10 s")
	}
	seeds := "3"
	if listed := os.Getenv("SPILLWAY_DIGITS_SEEDS"); listed != "" {
		seeds = listed
	}
	partitions := 1
	if wanted := os.Getenv("SPILLWAY_DIGITS_PARTITIONS"); wanted != "" {
		var err error
		if partitions, err = strconv.Atoi(wanted); err != nil {
			t.Fatal(err)
		}
	}
	for field := range strings.SplitSeq(seeds, ",") {
		seed, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		m, err := sampleImages()
		if err != nil {
			t.Fatal(err)
		}
		d, err := prepare(m, seed)
		if err != nil {
			t.Fatal(err)
		}
		learn, test := split(len(d.Labels))
		r, err := newTrainer(d, TrainInput{
			Data: Data{Train: learn}, MaxEpochs: DefaultMaxEpochs,
			LearningRate: DefaultLearningRate,
		})
		if err != nil {
			t.Fatal(err)
		}
		began, state := time.Now(), start(d.Side)
		if err := r.load(t.Context(), seed, partitions, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.run(t.Context(), &state, r.maxEpochs, func(float64, float64) error { return nil }); err != nil {
			t.Fatal(err)
		}
		probabilities, err := classify(t.Context(), r.engine, state.bestSoFar, d, test)
		if err != nil {
			t.Fatal(err)
		}
		_, accuracy := measure(probabilities, d.Labels[test.First:])
		t.Logf("seed %d: accuracy %.4f, best epoch %d of %d, %.1f s, a step %.1f ms",
			seed, accuracy, state.bestEpoch, state.epoch, time.Since(began).Seconds(), 1000*r.report(state.epoch).StepSeconds)
		if accuracy < 0.97 {
			t.Errorf("seed %d: accuracy on held-out images is %.4f, want at least 0.97", seed, accuracy)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}
