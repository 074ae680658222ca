package venue

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Option is a way to do a training: so many workers, somewhere.
type Option struct {
	Estimate

	// Workers is how many there are.
	Workers int
}

// Functions says that its workers are functions.
func (o Option) Functions() bool { return o.Host == "" }

// String names it for people.
func (o Option) String() string {
	switch {
	case !o.Functions():
		return fmt.Sprintf("%s on %s", words.Count(o.Workers, "worker"), o.Host)
	case o.Workers == 1:
		return fmt.Sprintf("1 function of %s", o.Class)
	}
	return fmt.Sprintf("%d functions of %s that exchange through %s (%s)", o.Workers, o.Class, o.Channel, o.Pattern)
}

// Options are all ways to do a training by 1 to most workers, in functions of every class with every channel and on
// every type of host, that no other one beats in both time and cost: from the fastest to the cheapest. One worker
// exchanges with nobody. It refuses what Choose refuses; none is possible where no host is given and a round takes
// longer than a call.
func Options(work Work, most int, functions Functions, ways Ways, pool []Hosts) ([]Option, error) {
	if err := work.check(most); err != nil {
		return nil, err
	}
	var all []Option
	for workers := 1; workers <= most; workers++ {
		for _, hosts := range pool {
			all = append(all, Option{work.OnHosts(hosts, workers), workers})
		}
		channels := ways.Channels
		if workers == 1 {
			channels = []Channel{{BytesPerSecond: math.Inf(1)}}
		}
		for _, class := range functions.Classes {
			for _, channel := range channels {
				if estimate, fits := work.InFunctions(functions, class, ways, channel, workers); fits {
					all = append(all, Option{estimate, workers})
				}
			}
		}
	}
	return pareto(all), nil
}

// pareto keeps what no other beats, from the fastest to the cheapest.
func pareto(all []Option) []Option {
	slices.SortStableFunc(all, func(a, b Option) int {
		if a.Time != b.Time {
			return int(min(1, max(-1, a.Time-b.Time)))
		}
		return int(min(1, max(-1, a.Cost-b.Cost)))
	})
	kept := all[:0]
	for _, o := range all {
		if len(kept) == 0 || o.Cost < kept[len(kept)-1].Cost {
			kept = append(kept, o)
		}
	}
	return kept
}

// Within is the cheapest of some options that takes at most a time, or the fastest that costs at most a sum; a limit of
// 0 is none. Without both it is the cheapest. It is false where none keeps to them, and then the nearest: the fastest
// that the budget allows, or the cheapest.
func Within(options []Option, time time.Duration, budget quantity.Money) (best Option, met bool) {
	if len(options) == 0 {
		return Option{}, false
	}
	best = options[len(options)-1]
	if time <= 0 && budget > 0 { // as fast as the money allows
		for _, o := range options {
			if o.Cost <= budget {
				return o, true
			}
		}
		return best, false
	}
	if time <= 0 {
		return best, true
	}
	for _, o := range slices.Backward(options) { // as cheap as the time allows
		if o.Time <= time {
			return o, budget <= 0 || o.Cost <= budget
		}
	}
	return options[0], false
}

// Refused says why functions are not what a training is done in, beside what is; empty where they are.
func Refused(work Work, most int, functions Functions, ways Ways, taken Option) string {
	if taken.Functions() {
		return ""
	}
	options, err := Options(work, most, functions, ways, nil)
	if err != nil {
		return err.Error()
	}
	if len(options) == 0 {
		return fmt.Sprintf("functions cannot take it: a round takes longer than the %s of a call",
			words.Seconds(functions.MaxDuration.Seconds()))
	}
	fast, cheap := options[0], options[len(options)-1]
	switch {
	case fast.Time > taken.Time && fast.Exchange > 0.5:
		return fmt.Sprintf("functions are slower: of a round of %s as %s, the exchange takes %.0f%%",
			words.Seconds(fast.Round.Seconds()), fast, 100*fast.Exchange)
	case cheap.Cost >= taken.Cost:
		return fmt.Sprintf("functions cost more: at least %s, as %s, beside %s", cheap.Cost, cheap, taken.Cost)
	default:
		return fmt.Sprintf("functions take longer for what they cost: %s and %s as %s, beside %s and %s",
			words.Seconds(cheap.Time.Seconds()), cheap.Cost, cheap, words.Seconds(taken.Time.Seconds()), taken.Cost)
	}
}
