// Package calm says when less than is held has been enough for a while: decisions that follow every task cost a
// reader's attention.
package calm

import "github.com/spillway-ml/spillway/predictor/fact"

// Eased is since when fewer slots than are held have been enough, by the clock, and how many at most meanwhile. The
// zero value says that they have not.
type Eased struct {
	Since fact.Instant `json:"since,omitempty"`
	Most  int          `json:"most,omitempty"`
}

// Fewer notes that so many, fewer than are held, are enough now. Once fewer were for as long as is asked, long is true,
// most is how many of them were enough all the while, and what is remembered begins anew.
func (e Eased) Fewer(enough int, clock, asked fact.Instant) (most int, long bool, then Eased) {
	clock = max(1, clock) // 0 stands for never
	if e.Since == 0 {
		e = Eased{Since: clock}
	}
	e.Most = max(e.Most, enough)
	if clock-e.Since < asked {
		return e.Most, false, e
	}
	return e.Most, true, Eased{Since: clock, Most: enough}
}
