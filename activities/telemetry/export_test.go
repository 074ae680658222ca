package telemetry

import "time"

// SetLimit sets how many stages have series of their own.
func (m *Metrics) SetLimit(stages int) { m.limit = stages }

// SetNow sets the clock by which exemplars are left.
func (m *Metrics) SetNow(now time.Time) { m.now = func() time.Time { return now } }
