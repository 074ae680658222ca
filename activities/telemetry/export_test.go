package telemetry

// SetLimit sets how many stages have series of their own.
func (m *Metrics) SetLimit(stages int) { m.limit = stages }
