package spill

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// MaxPayload is what an invoke takes, and what it returns.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
const MaxPayload = 6 * quantity.MiB

const (
	// mostBatch bounds a batch: of the price of requests, 64 tasks leave 1.6 percent.
	mostBatch = 64
	// requestShare is the part of the price of its tasks below which the price of an invoke is not worth to be shared
	// further. With it a batch lasts seconds at most: what an environment that dies takes with it.
	requestShare = 0.01
	// slackShare is the part of what a deadline leaves that a batch may use up.
	slackShare = 0.1
	// envelope is what a task takes of a payload besides its input.
	envelope = 4 * quantity.KiB
	// unbilled is what an invoke is billed in the mean and does not use: bills are whole milliseconds.
	unbilled = 500 * time.Microsecond
	// batchCalm is how many times as large or small as another a batch must be to replace it: one that is half or twice
	// what a moment asks for costs little more, and the next moment asks for it again.
	batchCalm = 4
)

// Parcel is what the batch of a stage's invokes is chosen by: the offer of functions, as many as were chosen, and what
// the runs want whose tasks wait.
//
// An invoke has a price, s, whatever it carries: that of the request, and of the half millisecond that it is billed
// for and does not use. Of B tasks an invoke, N tasks pay it N/B times. On the other side the tasks of a batch are
// answered together: while a backlog lasts every slot works and nothing is lost by that, and at its end the last batch
// ends up to (B-1) f later than its tasks would have one by one, and again as much where it waited for others before,
// which it does for no longer than they would take. For an hour that is worth v, in seconds,
//
//	C(B) = N s/B + v/3600 2 (B-1) f,   least at   B = sqrt( N s / (2 f v/3600) )
//
// as the economic order quantity is (Harris, How many parts to make at once, 1913,
// https://doi.org/10.1287/opre.38.6.947).
// B is a power of two, which costs at most six percent more (Roundy, 98%-effective integer-ratio lot-sizing, 1985,
// https://doi.org/10.1287/mnsc.31.11.1416) and changes seldom.
//
// Runs that minimise cost, and those whose deadline the backlog meets, have v = 0: the limits decide. Those that
// minimise latency pay whatever it costs, and have no batch.
//
// As with Clipper (Crankshaw et al., NSDI 2017) and BATCH (Ali et al., SC 2020) the latency that is asked for bounds
// the batch and the wait: 2 (B-1) times what the longest task takes is within a tenth of what deadlines leave. A task
// more than that is one that another slot would run meanwhile, so B is at most N/n; n B at most what windows let be in
// flight; the batch within the limits of an invoke: its time, and its payload. Memory bounds nothing: tasks run one
// after another, so an environment needs that of the largest.
//
// Worked: N = 2,000, f = 5 ms, v = $1/h, a request at $0.0000002 and 512 MiB at $0.0000166667 a GiB-second, so
// s = $0.000000204: B = sqrt(2000 x 0.000000204 x 3600 / 0.01) = 12, of powers of two 16. The 2,000 requests of $0.0004
// become 125, for an end that is up to 150 ms later, worth $0.00004. TestABatchIsTheCheapest holds the choice against
// brute force.
type Parcel struct {
	Offer
	// Chosen is n, how many invokes go on at a time.
	Chosen int
	// Value is v, what an hour is worth to the run that values it most; Hurry says that a run pays whatever it costs.
	Value quantity.Money
	Hurry bool
	// Slack is how many seconds deadlines leave once the backlog is done; +Inf where there are none.
	Slack float64
	// InFlight is how many tasks may be in flight at functions.
	InFlight int
	// Input is the largest input of a task.
	Input quantity.Bytes
	// Held is the batch that the stage has.
	Held plan.Batch
}

// Batch picks how many tasks an invoke carries and for how long the first of them waits for others, and says why. The
// zero Batch is one task an invoke. A batch that is held stays until another is four times or a quarter as large, a
// limit is below it, or it costs twice what single tasks do; it waits no longer than its tasks take now.
func (p Parcel) Batch() (batch plan.Batch, reason string) {
	most, limit := p.most()
	tasks := 1 << (bits.Len(uint(most)) - 1) // the largest power of two
	switch {
	case p.Hurry:
		return plan.Batch{}, "a run minimises latency, and a task is answered first that has an invoke for itself"
	case most > 1 && p.Value > 0:
		if largest := tasks; p.cheapest(most) < largest {
			tasks, limit = p.cheapest(most), ""
		}
	}
	if held := p.Held.Tasks; held > 1 && held <= most && tasks < batchCalm*held && held < batchCalm*tasks &&
		p.cost(held) <= 2*p.cost(1) { // which is about as good
		return plan.Batch{Tasks: held, Wait: min(p.Held.Wait, p.wait(held))}, ""
	}
	if tasks <= 1 {
		if limit == "" {
			return plan.Batch{}, fmt.Sprintf("to wait for another task costs more than the %s of an invoke", p.request())
		}
		return plan.Batch{}, limit
	}
	batch = plan.Batch{Tasks: tasks, Wait: p.wait(tasks)}
	reason = fmt.Sprintf("%s take %s each, and an invoke has a price of %s whatever it carries: batches save %s, and the "+
		"last ends up to %s later", words.Count(int(p.Tasks), "task"), words.Seconds(p.Function), p.request(),
		p.saves(tasks), words.Seconds(2*float64(tasks-1)*p.Function))
	if limit != "" {
		reason += "; " + limit
	}
	return batch, reason
}

// request is s.
func (p Parcel) request() quantity.Money {
	return p.Venue.PerRequest + p.Venue.PerGiBSecond.Prorated(
		quantity.Fraction{Of: int64(p.Class), In: int64(quantity.GiB)},
		quantity.Fraction{Of: int64(unbilled), In: int64(time.Second)})
}

// saves is what batches of so many tasks save of the price of a request each.
func (p Parcel) saves(tasks int) quantity.Money {
	return p.request().Times(p.Tasks * (1 - 1/float64(tasks)))
}

// cost is C(B).
func (p Parcel) cost(tasks int) float64 {
	b := float64(tasks)
	return p.Tasks*float64(p.request())/b + float64(p.Value)/3600*2*(b-1)*p.Function
}

// cheapest is the power of two up to most of the least cost, of equal ones the smallest.
func (p Parcel) cheapest(most int) int {
	best := 1
	for b := 2; b <= most; b *= 2 {
		if p.cost(b) < p.cost(best) {
			best = b
		}
	}
	return best
}

// wait is for how long the first task of a batch waits for others: as long as they would take at most.
func (p Parcel) wait(tasks int) time.Duration {
	return max(Span(float64(tasks-1)*p.Function).Truncate(100*time.Microsecond), 100*time.Microsecond)
}

// most is the largest batch that limits allow, at least 1, and which one is the first to bind; empty where none of
// them is worth a word.
func (p Parcel) most() (most int, limit string) {
	most = mostBatch
	below := func(n float64, why string) {
		if n < float64(most) {
			most, limit = int(max(math.Floor(n), 1)), why
		}
	}
	if p.Chosen < 1 || p.Tasks < 1 || p.Function <= 0 {
		return 1, "nothing is known of its tasks"
	}
	task := p.Venue.Price(p.Class, Span(p.Function)) - p.Venue.PerRequest
	if task > 0 {
		below(float64(p.request())/(requestShare*float64(task)),
			"the price of an invoke is small beside that of its tasks then")
	}
	below(float64(p.Tasks)/float64(p.Chosen), "there is no more for "+words.Count(p.Chosen, "function slot"))
	below(float64(p.InFlight)/float64(p.Chosen), "windows let no more be in flight")
	below(float64(MaxPayload)/float64(max(p.Input, 0)+envelope), fmt.Sprintf("inputs of up to %s come to the %s that an "+
		"invoke takes", p.Input, MaxPayload))
	highest := max(p.Highest, p.Function)
	if p.Venue.MaxDuration > 0 {
		below(durationShare*p.Venue.MaxDuration.Seconds()/highest, "more might not end within the limit of "+
			words.Seconds(p.Venue.MaxDuration.Seconds()))
	}
	below(1+slackShare*max(p.Slack, 0)/(2*highest), fmt.Sprintf("a deadline leaves %s", words.Seconds(max(p.Slack, 0))))
	return most, limit
}
