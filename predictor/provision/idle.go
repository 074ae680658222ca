package provision

import (
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Idle are the terms on which something that has nothing to do is kept, as a child process for the next task, or given
// back and started again when there is work.
//
// Keeping it costs a price for as long as it is kept, giving it back a start when the next task comes, and when that
// will be nobody knows: the ski rental, once for each time in which there is nothing to do. With
//
//	T = Start / price
//
// the time for which keeping it costs as much as one start, it is kept for at least Trust T and given back after
// T/Trust at the latest. Between these the forecast decides, at any moment anew.
//
// Theorem. Let x be how long there is nothing to do, with x known before, the cost is least at O = min(x price, Start).
// Whatever is forecast, what is paid is at most 1 + 1/Trust times O.
//
// Proof. Let it be given back after w, Trust T <= w <= T/Trust. Where x < w, x price is paid: O where x <= T, and else
// O = Start and x price < w price <= Start/Trust. Where x >= w, w price + Start is paid. For w <= T then O >= w price,
// as x >= w and T >= w, and the ratio is 1 + T/w <= 1 + 1/Trust. For w > T, O = Start, and it is 1 + w/T <= 1 +
// 1/Trust.
//
// So the rule needs to remember nothing, and no forecast can break it. One that is certain and right leads to at most
// 1 + Trust times O: it is given back at Trust T only where the rest of x is longer than T, for (1 + Trust) Start, and
// kept otherwise, for x price, of which the part after Trust T is less than Start
// (TestAPerfectForecastOfIdleTimesCostsWhatItIsWorth). Both are the factors of R. Kumar, M. Purohit and Z. Svitkina
// ("Improving online algorithms via ML predictions", NeurIPS 2018, Theorem 2.2). What is given back and never started
// again is charged a start that nobody pays: then O is 0, and Start/Trust at most is lost, once. Who decides at ticks
// gives back up to a tick later, and pays the price of that in addition.
//
// The zero value has no price: see [Idle.BreakEven].
type Idle struct {
	// Start is what it costs to start it again; not negative.
	Start quantity.Money
	// Hour is what it costs to keep it for an hour; not negative.
	Hour quantity.Money
	// Trust is how far the forecast is followed, in (0, 1]; 0 means DefaultTrust. At 1 the forecast is not asked.
	Trust float64
}

// Step is a part of the time to come in which the next task comes with the same chance at any moment.
type Step struct {
	// Lasts is how long it is, more than 0.
	Lasts time.Duration
	// Chance is how likely something comes in it where nothing has come before it, from 0 to 1.
	Chance float64
}

// Stay is whether something is kept at this moment.
type Stay struct {
	// Kept is false where it is given back.
	Kept bool
	// Within is the time ahead that the forecast was asked for, Chance how likely something comes within it. Both are 0
	// where it was not asked, because the bounds decide, or where there is none.
	Within time.Duration
	Chance float64
}

// longestIdle is what no time of keeping passes: a hundred years.
const longestIdle = 100 * 365 * 24 * time.Hour

// BreakEven is T, the time for which keeping it costs as much as a start: 0 where a start costs nothing, and a hundred
// years where keeping it does not.
func (i Idle) BreakEven() time.Duration {
	switch {
	case i.Start <= 0:
		return 0
	case i.Hour <= 0:
		return longestIdle
	}
	return span(i.Start.USD() / i.Hour.USD() * float64(time.Hour))
}

// Least is for how long it is kept at least.
func (i Idle) Least() time.Duration { return span(float64(i.BreakEven()) * i.trust()) }

// Most is for how long it is kept at most.
func (i Idle) Most() time.Duration { return span(float64(i.BreakEven()) / i.trust()) }

func (i Idle) trust() float64 {
	if !(i.Trust > 0 && i.Trust <= 1) {
		return DefaultTrust
	}
	return i.Trust
}

// span is a time in nanoseconds, from 0 to longestIdle.
func span(nanoseconds float64) time.Duration {
	return time.Duration(math.Min(math.Max(0, nanoseconds), float64(longestIdle)))
}

// Decide says whether it is kept once it has had nothing to do for age, where the next steps bring what is forecast.
// Without steps it is kept until T.
//
// By the forecast it is kept if there is a time from now on over which that pays,
//
//	sum over k <= n of  S(k) ( q(k) Start - t(k) price )  > 0  for an n
//
// with q(k) the chance of step k, S(k) that nothing comes before it, and t(k) how long it is kept in it in the mean:
// the best that can be done where the chances are right, because nothing else is learned until something comes. What
// comes after T/Trust does not count.
func (i Idle) Decide(age time.Duration, steps []Step) Stay {
	switch {
	case age < i.Least():
		return Stay{Kept: true}
	case age >= i.Most():
		return Stay{}
	case len(steps) == 0:
		return Stay{Kept: age < i.BreakEven()}
	}
	start, price := i.Start.USD(), i.Hour.USD()/float64(time.Hour)
	left, sum, nothing := i.Most()-age, 0.0, 1.0
	stay := Stay{}
	for _, step := range steps {
		if left <= 0 || step.Lasts <= 0 {
			break
		}
		chance, kept := step.until(left)
		sum += nothing * (chance*start - kept*price)
		nothing *= 1 - chance
		stay.Within += min(left, step.Lasts)
		left -= step.Lasts
		if sum > start*1e-9 { // more than rounding
			stay.Kept = true
			break
		}
	}
	stay.Chance = 1 - nothing
	return stay
}

// until is the chance that something comes in the first part of the step, and for how long, in nanoseconds, nothing
// has come in it in the mean.
func (s Step) until(left time.Duration) (chance, kept float64) {
	lasts := float64(min(left, s.Lasts))
	whole := 0.0
	if s.Chance > 0 { // NaN is not
		whole = math.Min(s.Chance, 1-1e-12)
	}
	rate := -math.Log1p(-whole) / float64(s.Lasts) // per nanosecond
	if rate*lasts < 1e-9 {
		return rate * lasts, lasts
	}
	chance = -math.Expm1(-rate * lasts)
	return chance, chance / rate
}

// Describe says why it is kept, or is not, for people; started is how long a start takes.
func (i Idle) Describe(stay Stay, started time.Duration) string {
	worth := fmt.Sprintf("a start takes %s, which is worth %s of an idle slot", words.Seconds(started.Seconds()),
		words.Seconds(i.BreakEven().Seconds()))
	if stay.Within == 0 {
		return worth
	}
	return fmt.Sprintf("%s, and a task comes within %s with a chance of %s", worth, words.Seconds(stay.Within.Seconds()),
		words.Percent(stay.Chance))
}
