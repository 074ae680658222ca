package digits

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

const (
	// batch is the number of images that are computed together.
	batch = 64
	// validationShare is the part of the training images that early stopping watches: one in validationShare.
	validationShare = 10
	// patience is how many epochs may pass without a better validation loss.
	patience = 6
	// dropRate is the part of the features that dropout silences (Srivastava et al., 2014, https://jmlr.org/papers/v15/srivastava14a.html).
	dropRate = 0.3
)

// The constants of Adam as its authors recommend them (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980, algorithm 1).
const (
	adamFirst   = 0.9
	adamSecond  = 0.999
	adamEpsilon = 1e-8
)

// errDiverges is wrapped when the loss is no longer a number.
var errDiverges = errors.New("training diverges")

// training is everything that training is between two epochs. Encoded it is the checkpoint: training that is resumed from it takes
// exactly the steps that it would have taken.
type training struct {
	side                                 int
	epoch, step                          int // finished ones
	bestEpoch                            int
	bestLoss, bestAccuracy               float64
	parameters, first, second, bestSoFar []float32 // first and second are Adam's moments
	random                               *rand.PCG
}

// start returns training before its first epoch.
func start(n network, seed int64) training {
	source := rand.NewPCG(uint64(seed), streamTraining)
	parameters := n.initial(rand.New(source))
	return training{
		side: n.side, bestLoss: math.Inf(1), parameters: parameters, random: source,
		first: make([]float32, n.size()), second: make([]float32, n.size()), bestSoFar: append([]float32(nil), parameters...),
	}
}

// finished reports whether training is over: its epochs are used up or the last ones brought no better validation loss.
func (t *training) finished(maxEpochs int) bool {
	return t.epoch >= maxEpochs || t.epoch-t.bestEpoch >= patience
}

// observe ends an epoch with its result on the validation images.
func (t *training) observe(loss, accuracy float64) {
	t.epoch++
	if loss < t.bestLoss {
		t.bestEpoch, t.bestLoss, t.bestAccuracy = t.epoch, loss, accuracy
		copy(t.bestSoFar, t.parameters)
	}
}

// adam takes one step of Adam.
func (t *training) adam(gradient []float32, rate float64) {
	t.step++
	correct1 := float32(1 / (1 - math.Pow(adamFirst, float64(t.step))))
	correct2 := float32(1 / (1 - math.Pow(adamSecond, float64(t.step))))
	for i, g := range gradient {
		t.first[i] = adamFirst*t.first[i] + (1-adamFirst)*g
		t.second[i] = adamSecond*t.second[i] + (1-adamSecond)*g*g
		deviation := float32(math.Sqrt(float64(t.second[i] * correct2)))
		t.parameters[i] -= float32(rate) * t.first[i] * correct1 / (deviation + adamEpsilon)
	}
}

// rateAt returns the learning rate of an epoch: it falls along half a cosine to a twentieth
// (Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983, equation 5).
func rateAt(rate float64, epoch, maxEpochs int) float64 {
	const floor = 0.05
	return rate * (floor + (1-floor)*(1+math.Cos(math.Pi*float64(epoch)/float64(maxEpochs)))/2)
}

// trainer takes training through its epochs on one set of images.
type trainer struct {
	engine          *engine
	data            Dataset
	learn, validate Span
	maxEpochs       int
	rate            float64

	pixels, mask, gradient []float32
	labels                 []int32
}

// newTrainer prepares training on the images of span: the first tenth validates, the rest is learnt.
func newTrainer(e *engine, d Dataset, span Span, maxEpochs int, rate float64) (*trainer, error) {
	if err := d.within(span); err != nil {
		return nil, err
	}
	held := max(1, span.Count/validationShare)
	learn := Span{span.First + held, span.Count - held}
	if learn.Count < 1 {
		return nil, fmt.Errorf("train on %d image: give at least %d images", span.Count, fewestImages)
	}
	size := min(batch, learn.Count)
	return &trainer{
		engine: e, data: d, learn: learn, validate: Span{span.First, held}, maxEpochs: maxEpochs, rate: rate,
		pixels: make([]float32, size*d.Side*d.Side), mask: make([]float32, size*e.network.features()),
		gradient: make([]float32, e.network.size()), labels: make([]int32, size),
	}, nil
}

// run trains until t is finished. After every epoch it calls save with the loss and the accuracy on the validation images.
func (r *trainer) run(ctx context.Context, t *training, save func(loss, accuracy float64) error) error {
	for !t.finished(r.maxEpochs) {
		if err := r.pass(ctx, t); err != nil {
			return fmt.Errorf("train epoch %d: %w", t.epoch+1, err)
		}
		probabilities, err := classify(ctx, r.engine, t.parameters, r.data, r.validate)
		if err != nil {
			return fmt.Errorf("validate epoch %d: %w", t.epoch+1, err)
		}
		loss, accuracy := measure(probabilities, r.data.Labels[r.validate.First:][:r.validate.Count])
		t.observe(loss, accuracy)
		if err := save(loss, accuracy); err != nil {
			return fmt.Errorf("save epoch %d: %w", t.epoch, err)
		}
	}
	return nil
}

// pass learns from every image once, in random order and each in a random view. Images that do not fill a batch wait for another epoch.
func (r *trainer) pass(ctx context.Context, t *training) error {
	random := rand.New(t.random)
	order := random.Perm(r.learn.Count)
	rate := rateAt(r.rate, t.epoch, r.maxEpochs)
	for size := len(r.labels); len(order) >= size; order = order[size:] {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.fill(random, order[:size])
		loss, err := r.engine.gradient(t.parameters, r.pixels, r.labels, r.mask, r.gradient)
		if err != nil {
			return err
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("the loss is %g after %d steps: %w: give a smaller learning_rate than %g", loss, t.step, errDiverges, r.rate)
		}
		t.adam(r.gradient, rate)
	}
	return nil
}

// fill prepares the next batch: random views of the chosen images, their labels, and which features dropout keeps.
func (r *trainer) fill(random *rand.Rand, chosen []int) {
	size := r.data.Side * r.data.Side
	for i, c := range chosen {
		image := r.learn.First + c
		randomView(random, r.data.Side).apply(r.data.image(image), r.data.Side, r.pixels[i*size:(i+1)*size])
		r.labels[i] = int32(r.data.Labels[image])
	}
	for i := range r.mask {
		r.mask[i] = 0
		if random.Float32() >= dropRate {
			r.mask[i] = 1 / (1 - dropRate)
		}
	}
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
func (t training) MarshalBinary() ([]byte, error) {
	random, err := t.random.MarshalBinary()
	if err != nil {
		return nil, err
	}
	e := newEncoder("DGT1", 128+16*len(t.parameters))
	e.integer(t.side, t.epoch, t.step, t.bestEpoch)
	e.number(t.bestLoss, t.bestAccuracy)
	e.bytes(random)
	for _, values := range [][]float32{t.parameters, t.first, t.second, t.bestSoFar} {
		e.floats(values)
	}
	return e.data, nil
}

// UnmarshalBinary decodes what MarshalBinary wrote and refuses all else.
func (t *training) UnmarshalBinary(data []byte) error {
	d := newDecoder("DGT1", data)
	t.side, t.epoch, t.step, t.bestEpoch = d.integer(), d.integer(), d.integer(), d.integer()
	t.bestLoss, t.bestAccuracy = d.number(), d.number()
	random := d.bytes()
	t.parameters, t.first, t.second, t.bestSoFar = d.floats(), d.floats(), d.floats(), d.floats()
	if err := d.close(); err != nil {
		return err
	}
	if err := checkSide(t.side); err != nil {
		return err
	}
	if t.step < 0 || t.bestEpoch < 0 || t.bestEpoch > t.epoch {
		return fmt.Errorf("best epoch %d of %d, %d steps: %w", t.bestEpoch, t.epoch, t.step, errEncoding)
	}
	for _, values := range [][]float32{t.parameters, t.first, t.second, t.bestSoFar} {
		if want := (network{t.side}).size(); len(values) != want {
			return fmt.Errorf("%d parameters for images of side %d, expected %d: %w", len(values), t.side, want, errEncoding)
		}
	}
	t.random = new(rand.PCG)
	if err := t.random.UnmarshalBinary(random); err != nil {
		return fmt.Errorf("random state: %w: %w", err, errEncoding)
	}
	return nil
}
