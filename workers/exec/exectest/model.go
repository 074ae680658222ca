package exectest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Sizes of the reference's models.
const (
	features = 8
	width    = 16
	classes  = 4
)

// operation is a layer with a name, and the names of the operations it reads; none is the batch's inputs.
type operation struct {
	id    string
	layer layer
	reads []string
}

// model is a list of operations, each after those that it reads. The last one is the loss.
type model []operation

// newModel returns a model by name. In "mlp" the first hidden layer is also read at the end, so that a tensor crosses
// several cuts.
func newModel(name string) (model, error) {
	switch name {
	case "mlp":
		return model{
			{"dense1", dense{features, width}, nil},
			{"tanh1", tanh{}, []string{"dense1"}},
			{"dropout1", dropout{"dropout1", 0.1}, []string{"tanh1"}},
			{"dense2", dense{width, width}, []string{"dropout1"}},
			{"tanh2", tanh{}, []string{"dense2"}},
			{"dropout2", dropout{"dropout2", 0.1}, []string{"tanh2"}},
			{"add", add{}, []string{"dropout1", "dropout2"}},
			{"dense3", dense{width, classes}, []string{"add"}},
			{"loss", crossEntropy{}, []string{"dense3"}},
		}, nil
	case "batchnorm":
		return model{
			{"dense1", dense{features, width}, nil},
			{"norm1", batchNorm{width}, []string{"dense1"}},
			{"tanh1", tanh{}, []string{"norm1"}},
			{"dropout1", dropout{"dropout1", 0.1}, []string{"tanh1"}},
			{"dense2", dense{width, width}, []string{"dropout1"}},
			{"norm2", batchNorm{width}, []string{"dense2"}},
			{"tanh2", tanh{}, []string{"norm2"}},
			{"dense3", dense{width, classes}, []string{"tanh2"}},
			{"loss", crossEntropy{}, []string{"dense3"}},
		}, nil
	default:
		return nil, fmt.Errorf("the reference has no model %q; it has mlp and batchnorm", name)
	}
}

// digest is Probe.Model: the SHA-256 of "name shape type" of parameters and buffers, sorted.
func (m model) digest() string {
	var lines []string
	for _, op := range m {
		for _, d := range op.layer.declare() {
			lines = append(lines, fmt.Sprintf("%s.%s %v F64\n", op.id, d.name, d.shape))
		}
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:])
}

// parameter is a trained array, or a buffer.
type parameter struct {
	declaration
	name            string
	value, gradient []float64
	slots           map[string][]float64 // of the optimizer; torch.optim's names
}

// newParameter makes a parameter as seed and name say, whatever else there is.
func newParameter(op string, d declaration, seed uint64) *parameter {
	n := 1
	for _, size := range d.shape {
		n *= size
	}
	p := &parameter{declaration: d, name: op + "." + d.name, value: make([]float64, n), slots: map[string][]float64{}}
	random := rand.New(rand.NewPCG(seed, key(p.name)))
	for i := range p.value {
		p.value[i] = d.center + d.spread*(2*random.Float64()-1)
	}
	return p
}

// add adds a micro-batch's gradient up.
func (p *parameter) add(gradient []float64) {
	if p.gradient == nil {
		p.gradient = make([]float64, len(p.value))
	}
	for i, g := range gradient {
		p.gradient[i] += g
	}
}

// dataset is a classification that can be learnt: the class is the teacher's largest answer.
type dataset struct {
	inputs  *matrix
	targets []int
}

// newDataset makes the same samples every time.
func newDataset(samples int) dataset {
	random := rand.New(rand.NewPCG(17, 4))
	teacher := newMatrix(classes, features)
	for i := range teacher.data {
		teacher.data[i] = random.NormFloat64()
	}
	d := dataset{inputs: newMatrix(samples, features), targets: make([]int, samples)}
	for r := range samples {
		best, row := 0.0, d.inputs.row(r)
		for i := range row {
			row[i] = random.NormFloat64()
		}
		for c := range classes {
			score := 0.0
			for i, w := range teacher.row(c) {
				score += w * row[i]
			}
			if c == 0 || score > best {
				best, d.targets[r] = score, c
			}
		}
	}
	return d
}

// batch returns the samples of a step: each epoch is a permutation of its own, and the last incomplete batch is left
// out.
func (d dataset) batch(seed uint64, step int64, size int) (*matrix, []int) {
	steps := int64(d.inputs.rows / size)
	order := rand.New(rand.NewPCG(seed, key("epoch", step/steps))).Perm(d.inputs.rows)
	inputs, targets := newMatrix(size, features), make([]int, size)
	for r := range size {
		from := order[int(step%steps)*size+r]
		copy(inputs.row(r), d.inputs.row(from))
		targets[r] = d.targets[from]
	}
	return inputs, targets
}
