package spill

import (
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Offer is what functions would do for the backlog of one stage.
//
// With N tasks that wait or are known to come, P pool slots at w seconds a task, and n function slots at f seconds a
// task after a start of c seconds, both venues taking tasks from the same queue as they become free, the pool from W
// seconds on, when a host has room for one of them:
//
//	T(0) = W + N w/P
//	T(n) = max( min( (N + P W/w + n c/f) / (P/w + n/f),  c + N f/n ),  c + f )     seconds until the backlog is done
//	k(n) = min( n (T(n) - c) / f,  N )                                             tasks that functions take
//	M(n) = k(n) price(class, f) + n price(class, c)              their marginal price: initialisation is billed, too
//
// The second term of the minimum is that functions are done before the pool has room, that of the maximum the
// straggler: a function that takes a task of the last moment ends c + f later.
// The marginal price of the pool is 0 while its hosts are held anyway, so nothing is subtracted from M.
//
// Without a goal the best n is the one that maximises (T(0) - T(n)) v/3600 - M(n) for v, the value of an hour. It needs
// no search for a stopping point: all n up to the limit are tried, at most a thousand.
//
// Worked: N = 240, P = 1, w = f = 0.1 s, c = 0, class 1 GiB at $0.0000166667 per GiB-second and $0.0000002 per request.
// T(0) = 24 s, T(1) = 240 / (10 + 10) = 12 s, k(1) = 120, M(1) = 120 x $0.00000187 = $0.000224. Twelve seconds at $1 an
// hour are worth $0.0033, so one slot pays; at a price a thousand times as high, M(1) = $0.224, and none does.
// TestSpillChoice holds the choice without a goal against brute force; how a deadline chooses, Scatter tells.
type Offer struct {
	Tasks          float64 // N
	Slots          int     // P
	Wall           float64 // w
	Wait           float64 // W
	Function, Cold float64 // f, c
	Highest        float64 // seconds that a task at functions took or may take at most
	Class          quantity.Bytes
	Venue          venue.Functions
	Most           int // the largest n that limits allow
	// Scatter is how run times differ; only the chances of deadlines need it.
	Scatter Scatter
}

// NoPool stands for the time that no pool slot needs for anything: long enough to be avoided, short enough to be
// compared.
const NoPool = 24 * 3600.0

// Duration is T(n).
func (o Offer) Duration(n int) float64 {
	rate := float64(o.Slots)/o.Wall + float64(n)/o.Function
	if rate == 0 {
		return NoPool
	}
	together := (o.Tasks + float64(o.Slots)*o.Wait/o.Wall + float64(n)*o.Cold/o.Function) / rate
	if n > 0 {
		alone := o.Cold + o.Tasks*o.Function/float64(n) // before the pool has room
		together = max(min(together, alone), o.Cold+o.Function)
	}
	return together
}

// spilled is k(n).
func (o Offer) spilled(n int) float64 {
	return max(0, min(float64(n)*(o.Duration(n)-o.Cold)/o.Function, o.Tasks))
}

// Price is M(n).
func (o Offer) Price(n int) quantity.Money {
	return o.priceAt(n, o.Function)
}

// UpperPrice is M(n) if every task at functions took as long as the longest may.
func (o Offer) UpperPrice(n int) quantity.Money {
	return o.priceAt(n, o.Highest)
}

func (o Offer) priceAt(n int, wall float64) quantity.Money {
	if n <= 0 {
		return 0
	}
	return o.Bill(o.spilled(n), n, wall)
}

// Bill is the price of so many tasks of wall seconds each at functions, and of starting so many environments.
func (o Offer) Bill(tasks float64, starts int, wall float64) quantity.Money {
	task := o.Venue.Price(o.Class, Span(wall))
	start := o.Venue.Price(o.Class, Span(o.Cold)) - o.Venue.PerRequest
	return min(task.Times(math.Ceil(tasks-1e-9)), fact.MaxCost) + min(start.Times(float64(starts)), fact.MaxCost)
}

// worth is what finishing in T(n) instead of T(0) is worth, less its price.
func (o Offer) worth(n int, perHour quantity.Money) float64 {
	return o.value(n, perHour) - float64(o.Price(n))
}

// value is what finishing in T(n) instead of T(0) is worth.
func (o Offer) value(n int, perHour quantity.Money) float64 {
	return (o.Duration(0) - o.Duration(n)) / 3600 * float64(perHour)
}

// best returns the smallest n among those of the greatest worth; 0 when none is worth its price.
func (o Offer) best(perHour quantity.Money) int {
	best, greatest := 0, 0.0
	for n := 1; n <= o.Most; n++ {
		if worth := o.worth(n, perHour); worth > greatest {
			best, greatest = n, worth
		}
	}
	return best
}

// fastest returns the smallest n that finishes first.
func (o Offer) fastest() int {
	best := 0
	for n := 1; n <= o.Most; n++ {
		if o.Duration(n) < o.Duration(best)*(1-1e-9) {
			best = n
		}
	}
	return best
}

// affordable returns the largest m up to n whose upper price is within money; the tasks that a share of the stage's
// runs holds cost that share of it.
func (o Offer) affordable(n int, money quantity.Money, part float64) int {
	for ; n > 0; n-- {
		if float64(o.UpperPrice(n))*part <= float64(money) {
			return n
		}
	}
	return 0
}

// Span is so many seconds, as far as they can be.
func Span(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0), fact.MaxWall.Seconds()) * float64(time.Second))
}

// WorthTelling is how many seconds of backlog are worth a word.
const WorthTelling = 1.0

// told tells how long the tasks wait, and for what.
func (o Offer) told() string {
	tasks, room := int(o.Tasks), ""
	if o.Never(0) {
		return words.Waiting(tasks) + ", and no host has room at the pool"
	}
	if o.Wait >= WorthTelling {
		room = fmt.Sprintf(", which has no room for %s", words.Seconds(o.Wait))
	}
	if tasks == 1 {
		return fmt.Sprintf("1 task waits %s at %s%s", words.Seconds(o.Duration(0)), words.Count(o.Slots, "pool slot"), room)
	}
	return fmt.Sprintf("%d tasks wait %s at %s%s", tasks, words.Seconds(o.Duration(0)),
		words.Count(o.Slots, "pool slot"), room)
}

// sooner tells by how much sooner they are done with n slots.
func (o Offer) sooner(n int) string { return words.Seconds(o.Duration(0) - o.Duration(n)) }

// Never reports whether T(n) is [NoPool] and not a time that anybody expects.
func (o Offer) Never(n int) bool {
	return o.Duration(n) >= NoPool && (o.Wait >= NoPool || o.Slots == 0)
}

// Spread is the interval around the time that n tasks take together, whose own times vary by variation: the middle 80
// percent of a normal distribution (z = 1.2816) around the sum, and five percent for what the model leaves out.
func Spread(mid, variation, n float64) fact.Interval {
	if math.IsInf(mid, 0) || math.IsNaN(mid) {
		return fact.Interval{}
	}
	around := min(1.2816*variation/math.Sqrt(max(n, 1))+0.05, 1)
	return fact.Interval{Low: mid * (1 - around), Mid: mid, High: mid * (1 + around)}
}
