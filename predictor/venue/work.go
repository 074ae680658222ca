package venue

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Work is a training by several workers: all of them compute a part of each round and then exchange the model.
type Work struct {
	// Model is what is exchanged after a round, Data what the workers read before the first, together.
	Model, Data quantity.Bytes
	// Rounds is how often they exchange: batches where gradients are averaged, epochs where models are.
	Rounds int
	// Compute is how long a round takes on one core; workers and their cores divide it.
	Compute time.Duration
	// MostCores is how many cores of one worker it uses; 0 for as many as there are.
	MostCores float64
}

// Pattern is how workers come to the sum of what all of them have computed in a round.
type Pattern int

// The patterns. ScatterReduce is LambdaML's of functions: each of w workers adds up one part of the model, which takes
// it 3w-2 transfers of a w-th of it. By AllGather each puts its own and gets those of all others, w transfers of the
// whole model, each of which takes the latency once: small models take less time so. By ParameterServer each sends its
// own and receives the sum, 2 transfers of the whole.
const (
	ScatterReduce Pattern = iota
	AllGather
	ParameterServer
)

// transfers are how many a worker makes in a round, and what part of the model each of them is.
func (p Pattern) transfers(workers int) (count, part float64) {
	switch p {
	case AllGather:
		return float64(workers), 1
	case ParameterServer:
		return 2, 1
	default:
		return float64(3*workers - 2), 1 / float64(workers)
	}
}

// String names the pattern for people.
func (p Pattern) String() string {
	switch p {
	case AllGather:
		return "all-gather"
	case ParameterServer:
		return "parameter server"
	default:
		return "scatter-reduce"
	}
}

// Channel is a way between workers.
type Channel struct {
	Name string
	// Pattern is how functions use it; hosts make a ring.
	Pattern Pattern
	// BytesPerSecond is what a worker sends or receives, Latency what each transfer takes besides.
	BytesPerSecond float64
	Latency        time.Duration
	// Shared is how many bytes all workers send or receive in a second, together; 0 where that is no limit.
	Shared float64
	// Request is what a transfer costs, Hour what the channel costs while it is there.
	Request, Hour quantity.Money
}

// ObjectStore is the channel of functions that have none but a store of objects: what LambdaML measured of S3 (see
// [Choose]), and the mean price of a PUT and a GET in us-east-1 (https://aws.amazon.com/s3/pricing/).
func ObjectStore() Channel {
	return Channel{
		Name: "an object store", BytesPerSecond: 65e6, Latency: 80 * time.Millisecond,
		Request: quantity.USD / 1_000_000 * 27 / 10,
	}
}

// Start is how long so many workers take to start at once. Between two of them it grows linearly, below the first and
// above the last in proportion to the workers.
type Start struct {
	Workers int
	Takes   time.Duration
}

// Ways are how functions that cannot reach each other work together.
type Ways struct {
	// Channels are the ways between workers.
	Channels []Channel
	// Store is where data and the model come from.
	Store Channel
	// Starts is none where they start at once.
	Starts []Start
}

// Hosts are workers that are billed by the hour and reach each other.
type Hosts struct {
	Name string
	// Cores of one worker, and what an hour of it costs.
	Cores float64
	Hour  quantity.Money
	// Network is the way between them, Store where data comes from.
	Network, Store Channel
	// Starts is none where they are held already.
	Starts []Start
}

// Estimate is what a training takes and costs somewhere.
type Estimate struct {
	// Time is from its start to its end, Cost what is billed.
	Time time.Duration
	Cost quantity.Money
	// Class, Channel and Pattern are those of functions, Host that of hosts.
	Class   quantity.Bytes
	Channel string
	Pattern Pattern
	Host    string
	// Round is how long a round takes, and Exchange which part of it the workers exchange, from 0 to 1.
	Round    time.Duration
	Exchange float64
	// Calls is how many calls each worker is, one after another; 0 on hosts.
	Calls int
}

// round is how long a round takes without the exchange, in seconds.
func (w Work) round(workers int, cores float64) float64 {
	if w.MostCores > 0 {
		cores = min(cores, w.MostCores)
	}
	return w.Compute.Seconds() / (float64(workers) * cores)
}

// ring is how long workers that reach each other take to exchange the model, in seconds: 2w-2 transfers of a w-th.
func (c Channel) ring(workers int, model quantity.Bytes) float64 {
	if workers == 1 {
		return 0 // over no channel at all
	}
	return c.take(float64(2*workers-2), 1/float64(workers), workers, model)
}

// exchange is how long functions take for that by the channel's pattern, in seconds.
func (c Channel) exchange(workers int, model quantity.Bytes) float64 {
	count, part := c.Pattern.transfers(workers)
	return c.take(count, part, workers, model)
}

// take is how long so many transfers of a part of the model take one of the workers.
func (c Channel) take(count, part float64, workers int, model quantity.Bytes) float64 {
	speed := c.BytesPerSecond
	if c.Shared > 0 {
		speed = min(speed, c.Shared/float64(workers))
	}
	return count * (part*float64(model)/speed + c.Latency.Seconds())
}

// part is which part of a whole something is; 0 of nothing.
func part(of, whole float64) float64 {
	if !(whole > 0) {
		return 0
	}
	return of / whole
}

// load is how long one worker takes for its part of the data, in seconds.
func (c Channel) load(workers int, data quantity.Bytes) float64 {
	if data == 0 {
		return 0
	}
	return float64(data) / float64(workers) / c.BytesPerSecond
}

// start is how long so many workers take to start, in seconds.
func start(starts []Start, workers int) float64 {
	if len(starts) == 0 {
		return 0
	}
	first, last := starts[0], starts[len(starts)-1]
	switch {
	case workers <= first.Workers:
		return first.Takes.Seconds() * float64(workers) / float64(first.Workers)
	case workers >= last.Workers:
		return last.Takes.Seconds() * float64(workers) / float64(last.Workers)
	}
	i := 1
	for starts[i].Workers < workers {
		i++
	}
	low, high := starts[i-1], starts[i]
	part := float64(workers-low.Workers) / float64(high.Workers-low.Workers)
	return low.Takes.Seconds() + part*(high.Takes-low.Takes).Seconds()
}

// duration is a time in seconds, at most what a Duration holds.
func duration(seconds float64) time.Duration {
	return time.Duration(min(seconds, math.MaxInt64/2/1e9) * 1e9)
}
