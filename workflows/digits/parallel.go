package digits

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	spillway "github.com/spillway-ml/spillway/workflows"
)

// Ways to average what workers compute; see Input.Average.
const (
	averageGradients = "gradients"
	averageModels    = "models"
)

// trainTogether is one worker of a training: after each round it goes on with the mean of what all have computed.
func trainTogether(ctx context.Context, in TrainInput, worker spillway.Worker) (_ Model, err error) {
	d, err := datasetOf(ctx, in.Images)
	if err != nil {
		return Model{}, err
	}
	t, err := newTogether(d, in, worker.Count)
	if err != nil {
		return Model{}, err
	}
	defer t.close()
	t.each = func(epoch int, loss float64) error {
		if worker.Number > 0 {
			return nil // one tells of it
		}
		_, accuracy, err := t.look(ctx)
		spillway.Progress(ctx, epoch, map[string]float64{"loss": loss, "accuracy": accuracy})
		return err
	}
	err = worker.Train(ctx, spillway.Rounds{Count: t.rounds(), Every: t.roundsPerEpoch()}, t)
	if errors.Is(err, errDiverges) {
		return Model{}, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	if err != nil || worker.Number > 0 {
		return Model{}, err
	}
	loss, accuracy, err := t.look(ctx)
	if err != nil {
		return Model{}, err
	}
	stored, err := spillway.Put(ctx, Weights{Side: d.Side, Parameters: t.parameters})
	return Model{
		Weights: stored, Epochs: in.MaxEpochs, BestEpoch: in.MaxEpochs, Loss: loss, Accuracy: accuracy,
	}, err
}

// together is the network in training by several workers, one of them. It is trained for all of its epochs: whether the
// loss still falls would be one more thing to agree on.
type together struct {
	*trainer

	seed       int64
	models     bool // are averaged, after each epoch, and not gradients after each batch
	workers    int
	backend    compute.Backend
	gradients  *graph.Exec // parameters, images, labels -> loss, gradient
	parameters []float32
	first      []float32 // Adam's moments
	second     []float32
	updates    int
	lossSum    float64 // over the rounds of an epoch so far
	order      []int   // of the images in an epoch
	orderOf    int
	each       func(epoch int, loss float64) error // is called at the end of each epoch
}

func newTogether(d Dataset, in TrainInput, workers int) (*together, error) {
	trainer, err := newTrainer(d, in)
	if err == nil && trainer.size() < workers {
		err = fmt.Errorf("a batch of %d images for %d workers: give fewer workers", trainer.size(), workers)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	n := network{d.Side}
	t := &together{
		trainer: trainer, seed: in.Seed, models: in.Average == averageModels, workers: workers,
		parameters: n.initial(in.Seed), first: make([]float32, n.size()), second: make([]float32, n.size()), orderOf: -1,
	}
	if t.engine, err = newEngine(n); err != nil {
		return nil, err
	}
	if t.backend, err = gobackend.New(""); err == nil {
		t.gradients, err = graph.NewExec(t.backend, n.gradientGraph)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("prepare the gradients: %w", err)
	}
	return t, nil
}

func (t *together) close() {
	if t.gradients != nil {
		t.gradients.Finalize()
	}
	if t.backend != nil {
		t.backend.Finalize()
	}
	t.engine.close()
}

// initial returns parameters before training: weights by K. He et al., 2015 (https://arxiv.org/abs/1502.01852), and no
// biases.
func (n network) initial(seed int64) []float32 {
	random := newRandom(seed, streamInitial)
	parameters := make([]float32, 0, n.size())
	for _, a := range n.arrays() {
		deviation := 0.0
		if len(a.dimensions) > 1 {
			deviation = math.Sqrt(2 / float64(a.dimensions[0]))
		}
		for range product(a.dimensions) {
			parameters = append(parameters, float32(deviation*random.NormFloat64()))
		}
	}
	return parameters
}

// gradientGraph builds the graph from a batch to its mean cross entropy in nats, and to that's gradient.
func (n network) gradientGraph(parameters, images, labels *graph.Node) (loss, gradient *graph.Node) {
	logits := n.logitsGraph(parameters, images)
	likely := graph.LogSoftmax(logits, -1)
	right := graph.OneHot(labels, classes, dtypes.Float32)
	loss = graph.Neg(graph.ReduceAllMean(graph.ReduceSum(graph.Mul(likely, right), -1)))
	return loss, graph.Gradient(loss, parameters)[0]
}

// roundsPerEpoch is how many rounds see every image once.
func (t *together) roundsPerEpoch() int {
	if t.models {
		return 1
	}
	return int(t.stepsPerEpoch())
}

func (t *together) rounds() int { return t.maxEpochs * t.roundsPerEpoch() }

// Part computes the gradient over a part of a batch; or where models are averaged, the state after an epoch over a part
// of the images. The last value is the loss.
func (t *together) Part(ctx context.Context, round, part, parts int) (spillway.Part, error) {
	epoch, step := round/t.roundsPerEpoch(), round%t.roundsPerEpoch()
	if !t.models {
		first := step * t.size()
		from, to := first+t.size()*part/parts, first+t.size()*(part+1)/parts
		loss, gradient, err := t.gradient(t.parameters, epoch, from, to)
		return spillway.Part{Weight: float64(to - from), Values: append(gradient, float32(loss))}, err
	}
	own := &together{ // its state alone
		trainer: t.trainer, parameters: append([]float32(nil), t.parameters...),
		first: append([]float32(nil), t.first...), second: append([]float32(nil), t.second...), updates: t.updates,
	}
	steps, sum := int(t.stepsPerEpoch()), 0.0
	for s := range steps {
		if err := ctx.Err(); err != nil {
			return spillway.Part{}, err
		}
		first := s * t.size()
		loss, gradient, err := t.gradient(own.parameters, epoch, first+t.size()*part/parts, first+t.size()*(part+1)/parts)
		if err != nil {
			return spillway.Part{}, err
		}
		sum += loss / float64(steps)
		own.update(gradient, epoch)
	}
	values := append(append(append(own.parameters, own.first...), own.second...), float32(sum))
	return spillway.Part{Weight: 1, Values: values}, nil
}

// Apply makes one step of Adam with the mean gradient, or takes over the mean state.
func (t *together) Apply(_ context.Context, round int, mean spillway.Part) error {
	epoch, last := round/t.roundsPerEpoch(), len(mean.Values)-1
	loss := float64(mean.Values[last])
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("%w: the loss is not a number: give a smaller learning_rate than %g", errDiverges, t.rate)
	}
	if t.models {
		n := len(t.parameters)
		copy(t.parameters, mean.Values[:n])
		copy(t.first, mean.Values[n:2*n])
		copy(t.second, mean.Values[2*n:3*n])
		t.updates += int(t.stepsPerEpoch())
	} else {
		t.update(mean.Values[:last], epoch)
	}
	t.lossSum += loss / float64(t.roundsPerEpoch())
	if (round+1)%t.roundsPerEpoch() > 0 {
		return nil
	}
	sum := t.lossSum
	t.lossSum = 0
	return t.each(epoch+1, sum)
}

// update is one step of Adam (D. Kingma and J. Ba, 2015, https://arxiv.org/abs/1412.6980, algorithm 1).
func (t *together) update(gradient []float32, epoch int) {
	const beta1, beta2, epsilon = 0.9, 0.999, 1e-8
	t.updates++
	rate := rateAt(t.rate, epoch, t.maxEpochs)
	correct1, correct2 := 1-math.Pow(beta1, float64(t.updates)), 1-math.Pow(beta2, float64(t.updates))
	for i, g := range gradient {
		t.first[i] = beta1*t.first[i] + (1-beta1)*g
		t.second[i] = beta2*t.second[i] + (1-beta2)*g*g
		t.parameters[i] -= float32(rate * float64(t.first[i]) / correct1 /
			(math.Sqrt(float64(t.second[i])/correct2) + epsilon))
	}
}

// gradient is the mean loss over images from a first to before a last one of an epoch, each in a view of its own, and
// its gradient. Images and views are those of the epoch, whoever computes on them.
func (t *together) gradient(parameters []float32, epoch, from, to int) (float64, []float32, error) {
	if t.orderOf != epoch {
		t.order, t.orderOf = newRandom(t.seed, streamOrder+uint64(epoch)).Perm(t.learn.Count), epoch
	}
	side, size := t.data.Side, t.data.Side*t.data.Side
	pixels, labels := make([]float32, (to-from)*size), make([]int32, to-from)
	for i := range to - from {
		image := t.learn.First + t.order[from+i]
		random := newRandom(t.seed, streamViews+uint64(epoch*t.learn.Count+from+i))
		randomView(random, side).apply(t.data.image(image), side, pixels[i*size:(i+1)*size])
		labels[i] = int32(t.data.Labels[image])
	}
	inputs := []*tensors.Tensor{
		t.engine.network.parameterTensor(parameters), t.engine.network.imageTensor(pixels),
		tensors.FromFlatDataAndDimensions(labels, len(labels)),
	}
	results, err := t.gradients.Call(inputs[0], inputs[1], inputs[2])
	defer func() {
		for _, tensor := range append(results, inputs...) {
			_ = tensor.FinalizeAll() // the garbage collector has it else
		}
	}()
	if err != nil {
		return 0, nil, fmt.Errorf("compute gradients: %w", err)
	}
	loss, err := tensors.CopyFlatData[float32](results[0])
	if err != nil {
		return 0, nil, err
	}
	gradient, err := tensors.CopyFlatData[float32](results[1])
	return float64(loss[0]), gradient, err
}

// look classifies the validation images.
func (t *together) look(ctx context.Context) (loss, accuracy float64, err error) {
	probabilities, err := classify(ctx, t.engine, t.parameters, t.data, t.validate)
	if err != nil {
		return 0, 0, err
	}
	loss, accuracy = measure(probabilities, t.data.Labels[t.validate.First:][:t.validate.Count])
	return loss, accuracy, nil
}

// MarshalBinary encodes the state between two rounds.
func (t *together) MarshalBinary() ([]byte, error) {
	e := newEncoder("DGP1", 64+12*len(t.parameters))
	e.integer(t.data.Side, t.updates)
	e.number(t.lossSum)
	e.floats(t.parameters)
	e.floats(t.first)
	e.floats(t.second)
	return e.data, nil
}

// UnmarshalBinary decodes what MarshalBinary wrote and refuses all else.
func (t *together) UnmarshalBinary(data []byte) error {
	d := newDecoder("DGP1", data)
	side, updates, sum := d.integer(), d.integer(), d.number()
	parameters, first, second := d.floats(), d.floats(), d.floats()
	if err := d.close(); err != nil {
		return err
	}
	if n := len(t.parameters); side != t.data.Side || len(parameters) != n || len(first) != n || len(second) != n {
		return fmt.Errorf("a state of %d parameters for images of side %d, expected %d for %d: %w", len(parameters), side,
			len(t.parameters), t.data.Side, errEncoding)
	}
	t.updates, t.lossSum, t.parameters, t.first, t.second = updates, sum, parameters, first, second
	return nil
}
