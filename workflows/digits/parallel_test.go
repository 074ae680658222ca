package digits

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/exchange"
)

// trainedTogether trains by some workers at once and returns the training loss of every epoch, of one of them.
func trainedTogether(t *testing.T, d Dataset, epochs, workers int, average string) []float64 {
	t.Helper()
	files, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var losses []float64
	var all sync.WaitGroup
	for number := range workers {
		all.Go(func() {
			m, err := newTogether(d, TrainInput{
				Data: Data{Train: d.all()}, Seed: 1, MaxEpochs: epochs, LearningRate: DefaultLearningRate, Average: average,
			}, workers)
			if err != nil {
				t.Error(err)
				return
			}
			defer m.close()
			m.each = func(_ int, loss float64) error {
				if number == 0 {
					losses = append(losses, loss)
				}
				return nil
			}
			ctx := activities.NewContext(t.Context(), &activities.Attempt{Store: files})
			if _, err := exchange.Train(ctx, exchange.Job{
				Board: files, Group: "digits", Worker: number, Workers: workers, Rounds: m.rounds(), Every: 3,
				Patience: time.Minute,
			}, m); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return losses
}

// TestWorkersThatAverageGradientsLearnWhatOneLearns is synchronous averaging: the loss after every epoch is that of one
// process that has whole batches.
func TestWorkersThatAverageGradientsLearnWhatOneLearns(t *testing.T) {
	t.Parallel()
	d := someData(t, 300)
	const epochs = 4
	want := trainedTogether(t, d, epochs, 1, averageGradients)
	if len(want) != epochs || want[epochs-1] > 0.8*want[0] {
		t.Fatalf("losses %v: want %d that fall", want, epochs)
	}
	for _, workers := range []int{2, 3} {
		got := trainedTogether(t, d, epochs, workers, averageGradients)
		if len(got) != epochs {
			t.Fatalf("%d workers: losses %v", workers, got)
		}
		for epoch := range want {
			if !(math.Abs(got[epoch]-want[epoch]) <= 1e-5*want[epoch]) {
				t.Errorf("%d workers: loss %v after epoch %d, one has %v", workers, got[epoch], epoch+1, want[epoch])
			}
		}
	}
}

func TestWorkersThatAverageModelsLearn(t *testing.T) {
	t.Parallel()
	losses := trainedTogether(t, someData(t, 300), 6, 2, averageModels)
	if len(losses) != 6 || losses[5] > 0.8*losses[0] {
		t.Errorf("losses %v: want 6 that fall", losses)
	}
}

func TestTheGradientIsThatOfTheLoss(t *testing.T) {
	t.Parallel()
	d := someData(t, 40)
	m, err := newTogether(d, TrainInput{
		Data: Data{Train: d.all()}, Seed: 1, MaxEpochs: 1, LearningRate: DefaultLearningRate,
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	_, gradient, err := m.gradient(m.parameters, 0, 0, 16)
	if err != nil {
		t.Fatal(err)
	}
	// Along the gradient itself the loss changes by its square, by central differences.
	square := 0.0
	for _, g := range gradient {
		square += float64(g) * float64(g)
	}
	step := 1e-3 / math.Sqrt(square)
	at := func(sign float64) float64 {
		moved := append([]float32(nil), m.parameters...)
		for i, g := range gradient {
			moved[i] += float32(sign * step * float64(g))
		}
		loss, _, err := m.gradient(moved, 0, 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		return loss
	}
	if slope := (at(1) - at(-1)) / (2 * step); !(math.Abs(slope-square) <= 0.02*square) {
		t.Errorf("the loss changes by %v along the gradient, whose square is %v", slope, square)
	}
}

func TestAWorkerThatIsCutOffResumesWithinAnEpoch(t *testing.T) {
	t.Parallel()
	d := someData(t, 300)
	in := TrainInput{Data: Data{Train: d.all()}, Seed: 1, MaxEpochs: 2, LearningRate: DefaultLearningRate}
	var states [][]byte
	var losses []float64
	train := func(from int, state []byte) {
		m, err := newTogether(d, in, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		m.each = func(_ int, loss float64) error { losses = append(losses, loss); return nil }
		if state != nil {
			if err := m.UnmarshalBinary(state); err != nil {
				t.Fatal(err)
			}
		}
		for round := from; round < m.rounds(); round++ {
			part, err := m.Part(t.Context(), round, 0, 1)
			if err == nil {
				err = m.Apply(t.Context(), round, part)
			}
			if err != nil {
				t.Fatal(err)
			}
			if state == nil {
				encoded, err := m.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				states = append(states, encoded)
			}
		}
	}
	train(0, nil)
	whole := losses
	losses = nil
	train(6, states[5]) // in the middle of the second epoch
	if len(losses) != 1 || losses[0] != whole[1] {
		t.Errorf("loss %v of the epoch that was gone on with, want %v", losses, whole[1])
	}
	var m together
	if err := m.UnmarshalBinary(states[5][:40]); err == nil {
		t.Error("a state that is cut off was taken")
	}
}
