package provision

import (
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/words"
)

// Advice is how much capacity of one type would be held beside functions, for people who hold it themselves.
type Advice struct {
	// Held is how many hosts of the type pay, Now how many there are.
	Held int `json:"held"`
	Now  int `json:"now"`
	// Day is what a day like the forecast would cost with Held, DayNow with Now: hosts, and functions for the rest.
	Day    Daily `json:"day"`
	DayNow Daily `json:"day_now"`
	// Others are numbers that were not chosen.
	Others []AdvisedOther `json:"others"`
	// Busy is for which part of the time another host must be busy to pay, c_pool / c_function; above 1 none ever does.
	Busy float64 `json:"busy_to_pay"`
	// Bound is by how much at most that costs more than hindsight would, in the long run, where capacity is decided anew
	// in each step by [Hedge], however wrong forecasts are.
	Bound float64 `json:"bound"`
	// Reason says why, for people.
	Reason string `json:"reason"`
}

// Daily is what a day costs, in US dollars: the mean, and where the load of every step is at its quantile of 10 and of
// 90 percent.
type Daily struct {
	Low  float64 `json:"low_usd"`
	Mean float64 `json:"mean_usd"`
	High float64 `json:"high_usd"`
}

// AdvisedOther is a number of hosts that was not chosen.
type AdvisedOther struct {
	Held int    `json:"held"`
	Day  Daily  `json:"day"`
	What string `json:"what"`
}

// Advise says how many hosts of the one type in terms pay beside functions by the forecast, as [Decide] would launch
// them where none is held, beside what the number that there is costs. A step takes so long. An error wraps ErrTerms.
func Advise(terms Terms, now int, step time.Duration, forecast Forecast) (Advice, error) {
	if len(terms.Hosts) != 1 || now < 0 || step <= 0 {
		return Advice{}, fmt.Errorf("advice on %d types of hosts, of which %d are held, by steps of %s: %w; give one type, "+
			"a number that is not negative and a time above 0", len(terms.Hosts), now, step, ErrTerms)
	}
	decision, err := Decide(terms, nil, forecast)
	if err != nil {
		return Advice{}, err
	}
	if err := forecast.validate(len(forecast.Steps)); err != nil {
		return Advice{}, err
	}
	host, perDay := terms.Hosts[0], float64(24*time.Hour)/float64(step)
	day := func(held int) Daily { return terms.daily(held, perDay, forecast) }
	a := Advice{
		Held: decision.Launch[0], Now: now, DayNow: day(now), Bound: Hedge{}.Factor(terms),
		Busy: math.Inf(1),
	}
	if terms.Function > 0 {
		a.Busy = host.Step.USD() / (terms.Function.USD() * host.Tasks)
	}
	a.Busy = min(a.Busy, math.MaxFloat64)
	a.Day = day(a.Held)
	peak := 0.0
	for _, quantiles := range forecast.Steps {
		peak = max(peak, quantiles[len(quantiles)-1])
	}
	told, others := map[int]bool{a.Held: true}, []AdvisedOther{}
	for _, other := range []AdvisedOther{
		{Held: 0, What: "functions alone"},
		{Held: a.Held - 1, What: "one less"},
		{Held: a.Held + 1, What: "one more"},
		{Held: int(math.Ceil(peak / host.Tasks)), What: "the busiest minute without functions"},
	} {
		if other.Held < 0 || told[other.Held] {
			continue
		}
		told[other.Held], other.Day = true, day(other.Held)
		others = append(others, other)
	}
	a.Others, a.Reason = others, a.reason(terms)
	return a, nil
}

// Plus is the advice with so many more hosts that are held in any case, of which there are some.
func (a Advice) Plus(always, there int, terms Terms, step time.Duration) Advice {
	each := terms.Hosts[0].Step.USD() * float64(24*time.Hour) / float64(step)
	cost := float64(always) * each
	a.Held, a.Day = a.Held+always, a.Day.plus(cost)
	a.Now, a.DayNow = a.Now+there, a.DayNow.plus(float64(there)*each)
	others := make([]AdvisedOther, 0, len(a.Others))
	for _, other := range a.Others {
		if other.Held == 0 && always > 0 {
			other.What = "functions for all that they can run"
		}
		others = append(others, AdvisedOther{Held: other.Held + always, Day: other.Day.plus(cost), What: other.What})
	}
	a.Others = others
	return a
}

func (d Daily) plus(usd float64) Daily {
	return Daily{Low: d.Low + usd, Mean: d.Mean + usd, High: d.High + usd}
}

// daily is what a day costs with so many hosts.
func (t Terms) daily(held int, perDay float64, forecast Forecast) Daily {
	hosts := float64(held) * t.Hosts[0].Step.USD()
	capacity, price := float64(held)*t.Hosts[0].Tasks, t.Function.USD()
	var sum Daily
	for _, quantiles := range forecast.Steps {
		load := served(forecast.Levels, quantiles, quantiles[len(quantiles)-1])
		sum.Mean += hosts + price*(load-served(forecast.Levels, quantiles, capacity))
		sum.Low += hosts + price*max(0, quantileAt(forecast.Levels, quantiles, 0.1)-capacity)
		sum.High += hosts + price*max(0, quantileAt(forecast.Levels, quantiles, 0.9)-capacity)
	}
	scale := perDay / float64(len(forecast.Steps))
	return Daily{Low: sum.Low * scale, Mean: sum.Mean * scale, High: sum.High * scale}
}

// quantileAt reads a quantile between those that are known, on the line between them.
func quantileAt(levels, quantiles []float64, level float64) float64 {
	for i, known := range levels {
		if level > known {
			continue
		}
		if i == 0 || level == known {
			return quantiles[i]
		}
		part := (level - levels[i-1]) / (known - levels[i-1])
		return quantiles[i-1] + part*(quantiles[i]-quantiles[i-1])
	}
	return quantiles[len(quantiles)-1]
}

func (a Advice) reason(terms Terms) string {
	if a.Busy >= 1 {
		return fmt.Sprintf("functions do in a minute for %s what %s costs held: none pays, however busy",
			terms.Function.Times(terms.Hosts[0].Tasks), terms.Hosts[0].Step)
	}
	return fmt.Sprintf("held, it costs %s a minute, and %s in functions when busy: the last of them pays where it is "+
		"busy for %s of the time", terms.Hosts[0].Step, terms.Function.Times(terms.Hosts[0].Tasks), words.Percent(a.Busy))
}
