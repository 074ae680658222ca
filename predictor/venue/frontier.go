package venue

import (
	"fmt"
	"math"
	"slices"

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
