package digits

import (
	"errors"
	"fmt"
	"math"
)

const (
	// validationShare is the part of the training images that early stopping watches: one in validationShare.
	validationShare = 10
	// patience is how many epochs may pass without a better validation loss.
	patience = 6
)

// errDiverges is wrapped when the loss is no longer a number.
var errDiverges = errors.New("training diverges")

// progress is everything that training is between two epochs. Encoded it is the checkpoint: training that is resumed
// from it takes exactly the steps that it would have taken, into however many parts the network is split.
type progress struct {
	side                   int
	epoch                  int // finished ones
	bestEpoch              int
	bestLoss, bestAccuracy float64
	bestSoFar              []float32 // the parameters of the best epoch; none before the first
	// what the stages of the split exported after the last epoch, in the format of package state; none before the first
	parts [][]byte
}

// start returns training before its first epoch.
func start(side int) progress { return progress{side: side, bestLoss: math.Inf(1)} }

// finished reports whether training is over: its epochs are used up or the last ones brought no better validation loss.
func (t *progress) finished(maxEpochs int) bool {
	return t.epoch >= maxEpochs || t.epoch-t.bestEpoch >= patience
}

// observe ends an epoch with its parameters and their result on the validation images.
func (t *progress) observe(parameters []float32, loss, accuracy float64) {
	t.epoch++
	if loss < t.bestLoss {
		t.bestEpoch, t.bestLoss, t.bestAccuracy, t.bestSoFar = t.epoch, loss, accuracy, parameters
	}
}

// rateAt returns the learning rate of an epoch: it falls along half a cosine to a twentieth
// (Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983, equation 5).
func rateAt(rate float64, epoch, maxEpochs int) float64 {
	const floor = 0.05
	return rate * (floor + (1-floor)*(1+math.Cos(math.Pi*float64(epoch)/float64(maxEpochs)))/2)
}

// measure returns the mean cross entropy in nats, and the share of images whose likeliest class is their label.
func measure(probabilities []float32, labels []byte) (loss, accuracy float64) {
	const least = 1e-12 // keeps the logarithm finite
	right := 0
	for i, label := range labels {
		one := probabilities[i*classes : (i+1)*classes]
		loss -= math.Log(max(float64(one[label]), least))
		if likeliest(one) == int(label) {
			right++
		}
	}
	return loss / float64(len(labels)), float64(right) / float64(len(labels))
}

// likeliest returns the first class of the highest probability.
func likeliest(probabilities []float32) int {
	best := 0
	for i, p := range probabilities {
		if p > probabilities[best] {
			best = i
		}
	}
	return best
}

// MarshalBinary encodes the state as a checkpoint.
func (t progress) MarshalBinary() ([]byte, error) {
	size := 128 + 4*len(t.bestSoFar)
	for _, part := range t.parts {
		size += 8 + len(part)
	}
	e := newEncoder("DGT2", size)
	e.integer(t.side, t.epoch, t.bestEpoch)
	e.number(t.bestLoss, t.bestAccuracy)
	e.floats(t.bestSoFar)
	e.integer(len(t.parts))
	for _, part := range t.parts {
		e.bytes(part)
	}
	return e.data, nil
}

// UnmarshalBinary decodes what MarshalBinary wrote and refuses all else.
func (t *progress) UnmarshalBinary(data []byte) error {
	d := newDecoder("DGT2", data)
	t.side, t.epoch, t.bestEpoch = d.integer(), d.integer(), d.integer()
	t.bestLoss, t.bestAccuracy = d.number(), d.number()
	t.bestSoFar = d.floats()
	t.parts = nil
	for left := d.integer(); left > 0 && d.err == nil; left-- {
		t.parts = append(t.parts, d.bytes())
	}
	if err := d.close(); err != nil {
		return err
	}
	if err := checkSide(t.side); err != nil {
		return err
	}
	if t.bestEpoch < 1 || t.bestEpoch > t.epoch || len(t.parts) == 0 {
		return fmt.Errorf("best epoch %d of %d, %d parts: %w", t.bestEpoch, t.epoch, len(t.parts), errEncoding)
	}
	if want := (network{t.side}).size(); len(t.bestSoFar) != want {
		return fmt.Errorf("%d parameters for images of side %d, expected %d: %w", len(t.bestSoFar), t.side, want, errEncoding)
	}
	return nil
}
