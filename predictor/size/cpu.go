package size

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

const (
	cpuStep quantity.Milli = 50
	// LeastCPU is the least share of a core that an attempt is given.
	LeastCPU quantity.Milli = 100
	// A mean rate between these uses one core whenever it may run: reading input and waiting for a neighbour keep it
	// below, a garbage collector lifts it above. A limit below one core would slow it by exactly the part it is short.
	oneCoreFrom, oneCoreTo quantity.Milli = 850, 1050
	// A stage of which one attempt used a whole core, and most at least half of one, uses one: a busy host kept the others
	// waiting, which their rates do not tell from waiting for input. A limit by such rates would slow the stage once the
	// host is idle again.
	keptWaiting quantity.Milli = 500
	// enoughRates is how many rates a share rests on.
	enoughRates = 5
)

// A stage shares cores when its slots are busy for less than shortTask of their time, and until they are for more than
// stillShort.
const shortTask, stillShort = 0.70, 0.80

// CPU is what is known of the cores that attempts of a stage use.
type CPU struct {
	// Rates are the mean rates of the latest attempts, in thousandths of a core.
	Rates usage.Series
	// Starved is the largest limit that held attempts back and still counts; 0 for none.
	Starved quantity.Milli
	// Busy is the part of a slot's time in which it runs user code.
	Busy float64
	// Held is the learned share that a slot has now; 0 for none.
	Held quantity.Milli
	// Most is what the largest host has.
	Most quantity.Milli
}

// Share is the 90th percentile of the rates in steps of 50, one core for what uses one, and at least double the limit
// that held attempts back. While too few rates are known it is otherwise.
func (c CPU) Share(otherwise quantity.Milli) quantity.Milli {
	ceiling := max(c.Most, LeastCPU)
	if len(c.Rates.Values) < enoughRates {
		if c.Starved > 0 {
			return min(max(otherwise, 2*c.Starved), ceiling)
		}
		return otherwise
	}
	rate := max(quantity.Milli(math.Ceil(c.Rates.Quantile(0.9))), 2*c.Starved)
	fastest := quantity.Milli(c.Rates.Largest())
	if rate >= oneCoreFrom && rate <= oneCoreTo || rate >= keptWaiting && rate < oneCoreFrom && fastest >= oneCoreFrom {
		rate = quantity.Core
	}
	worth := shortTask
	if c.Held > 0 && c.Held < quantity.Core {
		worth = stillShort // a stage between the two keeps what it has
	}
	if c.Busy < worth {
		rate = quantity.Milli(math.Ceil(float64(rate) * c.Busy))
	}
	return min(max(RoundUp(rate, cpuStep), LeastCPU), ceiling)
}

// CPUOf is the share for a rate that samples of running attempts tell.
func CPUOf(rate quantity.Milli) quantity.Milli {
	share := max(RoundUp(rate, cpuStep), LeastCPU)
	if share >= oneCoreFrom && share <= quantity.Core {
		return quantity.Core
	}
	return share
}
