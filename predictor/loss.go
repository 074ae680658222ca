package predictor

import (
	"maps"
	"math"
	"slices"
	"time"
)

// TimeToLoss is how long an attempt on devices of a class goes on in the mean before it is lost with its host.
type TimeToLoss struct {
	// DeviceClass is that of the size which attempts hold; empty is the CPU's.
	DeviceClass string `json:"device_class,omitempty"`
	// Mean is more than 0. It is rounded to a power of the square root of two, so that it changes seldom.
	Mean time.Duration `json:"mean_ns"`
}

// UsualTimeToLoss is how long an attempt goes on in the mean before it is lost where nothing is known: a host that is
// started anew each day.
const UsualTimeToLoss = 24 * time.Hour

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
	l.Exposed += min(max(lasted, 0), maxWall).Seconds()
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
	seconds := (UsualTimeToLoss.Seconds() + l.Exposed) / (1 + l.Lost)
	steps := math.Round(2 * math.Log2(seconds/UsualTimeToLoss.Seconds()))
	return time.Duration(math.Exp2(steps/2) * float64(UsualTimeToLoss))
}

// exposed takes in how long an attempt at the pool went on, and whether it was lost. A Record that a later process
// wrote of an attempt which has died does not say how long; it is taken to have gone on until then.
func (m *memory) exposed(e Record, class string) {
	if e.Venue != Pool {
		return
	}
	lost := e.Outcome == Lost && (e.Cause == CauseHostLost || e.Cause == CauseHostMemory)
	lasted := e.Usage.Wall
	if scheduled := at(e.ScheduledAt); lost && lasted <= 0 && scheduled > 0 {
		lasted = time.Duration(max(at(e.At)-scheduled, 0)) - min(max(e.Queue, 0), maxWall)
	}
	known, some := m.losses[class]
	if !some && len(m.losses) >= maxClasses {
		return
	}
	m.losses[class] = known.add(lasted, lost)
}

// timesToLoss adds what is known of each device class that differs from the usual.
func (d *decider) timesToLoss() {
	for _, class := range slices.Sorted(maps.Keys(d.memory.losses)) {
		if mean := d.memory.losses[class].mean(); mean != UsualTimeToLoss {
			d.plan.TimesToLoss = append(d.plan.TimesToLoss, TimeToLoss{DeviceClass: class, Mean: mean})
		}
	}
}
