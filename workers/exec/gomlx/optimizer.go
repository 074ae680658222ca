package gomlx

import (
	"math"
	"runtime"
	"sync"

	"github.com/spillway-ml/spillway/workers/exec"
)

// optimizer updates parameters by the formulas of torch.optim (https://pytorch.org/docs/stable/optim.html), in float32.
type optimizer struct {
	exec.Optimizer
	slots []string // names of the arrays that it keeps for each parameter
}

// newOptimizer puts defaults in place of zeros and refuses what no optimizer can do.
func newOptimizer(o exec.Optimizer) (optimizer, error) {
	o, err := o.Filled()
	if err != nil {
		return optimizer{}, err
	}
	var slots []string
	switch o.Kind {
	case exec.Momentum:
		slots = []string{"momentum_buffer"}
	case exec.Adam, exec.AdamW:
		slots = []string{"exp_avg", "exp_avg_sq"}
	}
	return optimizer{o, slots}, nil
}

// counts says that the formulas need the number of the update.
func (o optimizer) counts() bool { return o.Kind == exec.Adam || o.Kind == exec.AdamW }

// grain is how many parameters one thread updates at least: it takes about 20 microseconds.
const grain = 1 << 14

// step updates parameters, whose gradients are first multiplied by scale; slots holds what o.slots names. count is that
// of this update, from 1, and factor is on the learning rate.
func (o optimizer) step(
	parameters, gradients []float32, slots [][]float32, count int64, scale, factor float64, threads int,
) {
	if threads < 1 {
		threads = runtime.GOMAXPROCS(0)
	}
	threads = min(threads, max(1, len(parameters)/grain))
	var wait sync.WaitGroup
	for t := range threads {
		begin, end := len(parameters)*t/threads, len(parameters)*(t+1)/threads
		pieces := make([][]float32, len(slots))
		for i, slot := range slots {
			pieces[i] = slot[begin:end]
		}
		work := func() { o.piece(parameters[begin:end], gradients[begin:end], pieces, count, scale, factor) }
		if t == threads-1 {
			work()
		} else {
			wait.Go(work)
		}
	}
	wait.Wait()
}

func (o optimizer) piece(parameters, gradients []float32, slots [][]float32, count int64, scale, factor float64) {
	rate := o.LearningRate * factor
	switch o.Kind {
	case exec.SGD:
		descend(parameters, gradients, float32(scale), float32(rate), float32(o.WeightDecay))
	case exec.Momentum:
		roll(parameters, gradients, slots[0], float32(scale), float32(rate), float32(o.WeightDecay), float32(o.Momentum))
	default:
		a := adam{
			scale: float32(scale), decay: float32(o.WeightDecay), shrink: 1,
			beta1: float32(o.Beta1), rest1: float32(1 - o.Beta1), beta2: float32(o.Beta2), rest2: float32(1 - o.Beta2),
			epsilon: float32(o.Epsilon),
			size:    float32(rate / (1 - math.Pow(o.Beta1, float64(count)))),
			correct: float32(1 / math.Sqrt(1-math.Pow(o.Beta2, float64(count)))),
		}
		if o.Kind == exec.AdamW {
			a.decay, a.shrink = 0, float32(1-rate*o.WeightDecay)
		}
		a.descend(parameters, gradients, slots[0], slots[1])
	}
}

// descend is gradient descent: p = p - rate*(g + decay*p).
func descend(parameters, gradients []float32, scale, rate, decay float32) {
	gradients = gradients[:len(parameters)]
	for i, p := range parameters {
		parameters[i] = p - rate*(scale*gradients[i]+decay*p)
	}
}

// roll is gradient descent with momentum: b = momentum*b + g + decay*p; p = p - rate*b.
func roll(parameters, gradients, buffer []float32, scale, rate, decay, momentum float32) {
	gradients, buffer = gradients[:len(parameters)], buffer[:len(parameters)]
	for i, p := range parameters {
		b := momentum*buffer[i] + scale*gradients[i] + decay*p
		buffer[i], parameters[i] = b, p-rate*b
	}
}

// adam holds the constants of one update by Adam (D. Kingma and J. Ba, 2015, https://arxiv.org/abs/1412.6980, algorithm
// 1) or AdamW (I. Loshchilov and F. Hutter, 2019, https://arxiv.org/abs/1711.05101, algorithm 2).
type adam struct {
	scale, decay, shrink       float32 // g = scale*gradient + decay*p, after p = shrink*p
	beta1, rest1, beta2, rest2 float32 // m = beta1*m + rest1*g and v = beta2*v + rest2*g*g
	size, correct, epsilon     float32 // p = p - size*m / (sqrt(v)*correct + epsilon)
}

func (a adam) descend(parameters, gradients, first, second []float32) {
	gradients, first, second = gradients[:len(parameters)], first[:len(parameters)], second[:len(parameters)]
	for i, p := range parameters {
		p *= a.shrink
		g := a.scale*gradients[i] + a.decay*p
		m := a.beta1*first[i] + a.rest1*g
		v := a.beta2*second[i] + a.rest2*g*g
		first[i], second[i] = m, v
		parameters[i] = p - a.size*m/(float32(math.Sqrt(float64(v)))*a.correct+a.epsilon)
	}
}
