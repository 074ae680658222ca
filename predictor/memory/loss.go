package memory

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
)

const (
	// longestExposed bounds the time over which losses are remembered: what came before counts less and less.
	longestExposed = 100 * 24 * time.Hour
	// maxClasses bounds the device classes of which losses are remembered; the others have the usual time.
	maxClasses = 64
)

// losses is how often the attempts of a device class were lost. The zero value knows nothing.
type losses struct {
	// Exposed is for how long attempts went on together, in seconds.
	Exposed float64 `json:"exposed_seconds"`
	// Lost is how many of them were lost; old ones count for a part.
	Lost float64 `json:"lost"`
}

// add takes in an attempt that went on for so long.
func (l losses) add(lasted time.Duration, lost bool) losses {
	l.Exposed += min(max(lasted, 0), fact.MaxWall).Seconds()
	if lost {
		l.Lost++
	}
	if scale := longestExposed.Seconds() / l.Exposed; l.Exposed > 0 && scale < 1 {
		l.Exposed, l.Lost = l.Exposed*scale, l.Lost*scale
	}
	return l
}

// mean is the mean time to a loss where losses come at a constant rate, of which is known beforehand as much as one
// loss within the usual time says:
//
//	(UsualTimeToLoss + Exposed) / (1 + Lost)
//
// It is the reciprocal of the posterior mean of that rate under a gamma prior of shape 1 (Gelman, Carlin, Stern,
// Dunson, Vehtari, Rubin: Bayesian Data Analysis, 3rd edition, section 2.6).
func (l losses) mean() time.Duration {
	seconds := (plan.UsualTimeToLoss.Seconds() + l.Exposed) / (1 + l.Lost)
	steps := math.Round(2 * math.Log2(seconds/plan.UsualTimeToLoss.Seconds()))
	return time.Duration(math.Exp2(steps/2) * float64(plan.UsualTimeToLoss))
}

// exposed takes in how long an attempt at the pool went on, and whether it was lost. A Record that a later process
// wrote of an attempt which has died does not say how long; it is taken to have gone on until then.
func (m *State) exposed(e fact.Record, class string) {
	if e.Venue != fact.Pool {
		return
	}
	lost := e.Outcome == fact.Lost && (e.Cause == fact.CauseHostLost || e.Cause == fact.CauseHostMemory)
	lasted := e.Usage.Wall
	if scheduled := fact.At(e.ScheduledAt); lost && lasted <= 0 && scheduled > 0 {
		lasted = time.Duration(max(fact.At(e.At)-scheduled, 0)) - min(max(e.Queue, 0), fact.MaxWall)
	}
	known, some := m.losses[class]
	if !some && len(m.losses) >= maxClasses {
		return
	}
	m.losses[class] = known.add(lasted, lost)
}

// TimesToLoss is what is known of each device class that differs from the usual.
func (m *State) TimesToLoss() (rows []plan.TimeToLoss) {
	for _, class := range slices.Sorted(maps.Keys(m.losses)) {
		if mean := m.losses[class].mean(); mean != plan.UsualTimeToLoss {
			rows = append(rows, plan.TimeToLoss{DeviceClass: class, Mean: mean})
		}
	}
	return rows
}
