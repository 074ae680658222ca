package venue

import (
	"errors"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
)

// ErrWork is wrapped by every refusal of a training, and where nobody can take it.
var ErrWork = errors.New("cannot be estimated")

// Choice is where a training goes, and what was weighed.
type Choice struct {
	// Spill says that functions take it.
	Spill bool
	// Functions and Pool are the cheapest ways; Possible says whether functions can take it at all.
	Functions, Pool Estimate
	Possible        bool
}

// Choose gives a training of so many workers to the side that costs less, by the model of LambdaML (J. Jiang et al.,
// "Towards Demystifying Serverless Machine Learning Training", SIGMOD 2021, section 5): on w workers it takes
//
//	t = start(w) + data / (w B_store) + rounds x (exchange(w) + compute / (w cores))
//	exchange(w) = (3w-2) ((model/w) / B + L)      functions, which reduce through a channel that is neither of them, or
//	              as their channel's Pattern says
//	exchange(w) = (2w-2) ((model/w) / B + L)      hosts, in a ring
//
// and costs w t times what a worker costs in a second, requests besides. A cache that is one host is shared by the
// workers, which the paper's formula leaves out: at its constants, 200 functions would exchange a model five times as
// fast as 200 hosts. A call that comes to its limit is followed by another, which reads data and model again; a round
// is not cut. All sizes of memory and all channels are tried, and all types of hosts. At equal cost the pool takes
// it, which has it no later than that.
func Choose(work Work, workers int, functions Functions, ways Ways, pool []Hosts) (Choice, error) {
	if err := work.check(workers); err != nil {
		return Choice{}, err
	}
	if len(pool) == 0 {
		return Choice{}, fmt.Errorf("a training without a type of host: %w; name at least one", ErrWork)
	}
	choice := Choice{Pool: work.OnHosts(pool[0], workers)}
	for _, hosts := range pool[1:] {
		if other := work.OnHosts(hosts, workers); other.Cost < choice.Pool.Cost {
			choice.Pool = other
		}
	}
	choice.Functions, choice.Possible = work.Cheapest(functions, ways, workers)
	choice.Spill = choice.Possible && choice.Functions.Cost < choice.Pool.Cost
	return choice, nil
}

func (w Work) check(workers int) error {
	if w.Rounds < 1 || w.Compute < 0 || w.Model < 0 || w.Data < 0 || workers < 1 || w.MostCores < 0 {
		return fmt.Errorf("a training of %d rounds by %d workers, %s of model: %w; give at least 1 round and 1 "+
			"worker, and no size or time below 0", w.Rounds, workers, w.Model, ErrWork)
	}
	return nil
}

// OnHosts is what the training takes and costs on hosts of one type.
func (w Work) OnHosts(hosts Hosts, workers int) Estimate {
	exchange := hosts.Network.ring(workers, w.Model)
	round := exchange + w.round(workers, hosts.Cores)
	seconds := start(hosts.Starts, workers) + hosts.Store.load(workers, w.Data) + float64(w.Rounds)*round
	return Estimate{
		Time: duration(seconds), Host: hosts.Name, Cost: hosts.Hour.Times(float64(workers) * seconds / 3600),
		Round: duration(round), Exchange: part(exchange, round),
	}
}

// Cheapest is what the training takes and costs in functions of the class, and with the channel, that cost least, of
// equal ones the first; possible is false where it fits none.
func (w Work) Cheapest(f Functions, ways Ways, workers int) (best Estimate, possible bool) {
	for _, class := range f.Classes {
		for _, channel := range ways.Channels {
			other, fits := w.InFunctions(f, class, ways, channel, workers)
			if fits && (!possible || other.Cost < best.Cost) {
				best, possible = other, true
			}
		}
	}
	return best, possible
}

// InFunctions is what the training takes and costs in functions of one class with one channel; fits is false where one
// round takes longer than a call may.
func (w Work) InFunctions(
	f Functions, class quantity.Bytes, ways Ways, channel Channel, workers int,
) (estimate Estimate, fits bool) {
	exchange := channel.exchange(workers, w.Model)
	round := exchange + w.round(workers, size.ClassCores(class))
	load := ways.Store.load(workers, w.Data)
	resume := load + ways.Store.load(1, w.Model)
	first := rounds(f.MaxDuration.Seconds()-start(ways.Starts, workers)-load, round)
	later := rounds(f.MaxDuration.Seconds()-resume, round)
	left := float64(w.Rounds) - first
	if first < 1 || left > 0 && later < 1 {
		return Estimate{}, false
	}
	calls := 1.0
	if left > 0 {
		calls += math.Ceil(left / later)
	}
	seconds := start(ways.Starts, workers) + load + (calls-1)*resume + float64(w.Rounds)*round
	gib := float64(class) / float64(quantity.GiB)
	each, _ := channel.Pattern.transfers(workers)
	transfers := float64(w.Rounds) * float64(workers) * each
	cost := f.PerGiBSecond.Times(float64(workers) * seconds * gib).Plus(f.PerRequest.Times(calls * float64(workers))).
		Plus(channel.Request.Times(transfers)).Plus(channel.Hour.Times(seconds / 3600))
	return Estimate{
		Time: duration(seconds), Cost: cost, Class: class, Channel: channel.Name, Pattern: channel.Pattern,
		Calls: int(min(calls, math.MaxInt32)), Round: duration(round), Exchange: part(exchange, round),
	}, true
}

// rounds is how many whole rounds fit into a time.
func rounds(seconds, round float64) float64 {
	if seconds < 0 {
		return 0
	}
	if round == 0 {
		return math.Inf(1)
	}
	return math.Floor(seconds / round * (1 + 1e-12))
}
