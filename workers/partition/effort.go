package partition

import "time"

// stepsPerSecond is how many steps a search takes in a second of one core. A step is about a nanosecond, and every kind
// of work says how many it is worth. On a shared core of 2.5 GHz, searches of wide graphs of 300 to 3,000 operations
// take 0.6 to 0.95 s of its time for a budget of a second.
const stepsPerSecond = 600_000_000

// defaultBudget is that of a Problem which names none.
const defaultBudget = time.Second

// effort is what is left of a budget. Work is counted and the clock is never read, so that the same problem with the
// same budget has the same plan on every machine.
type effort struct{ left float64 }

func newEffort(p Problem) *effort {
	return &effort{left: p.budget().Seconds() * stepsPerSecond}
}

// budget is the problem's with its default.
func (p Problem) budget() time.Duration {
	if p.Budget == 0 {
		return defaultBudget
	}
	return p.Budget
}

func (e *effort) spend(steps float64) { e.left -= steps }

func (e *effort) spent() bool { return e.left <= 0 }

// part is a share of what is left, from 0 to 1.
func (e *effort) part(share float64) float64 { return max(0, e.left*share) }
