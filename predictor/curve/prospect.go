package curve

import "math"

// Stretch is the part of a training that a task does, in any unit that grows as its steps do, such as epochs. It begins
// at From, 0 or more, and ends at To, and the training may go on to Most; Before is below To.
type Stretch struct {
	From   float64 `json:"from,omitempty"`
	Before float64 `json:"before,omitempty"`
	To     float64 `json:"to"`
	Most   float64 `json:"most"`
}

// Prospect is what the curve of a task that did a Stretch says of the best value by Stretch.Most.
type Prospect struct {
	// Metric is the metric's name, and Value the last that was told of it.
	Metric string  `json:"metric"`
	Value  float64 `json:"value"`
	// Low and High hold the best value at the end in nine of ten cases, Low below High: with one chance in twenty it is
	// below Low, and with one in twenty above High.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Before is the best value that was told by Stretch.Before; nil where none was.
	Before *float64 `json:"before,omitempty"`
}

// leastProspect is of how many points a prospect is told at least: a shape has an offset, a scale and up to two
// parameters more.
const leastProspect = 4

// Prospect looks ahead from the last step of the trail, at which its task ended, to the end of the training; nil where
// that cannot be told: below four points, where the last value was not finite, and of a task that goes on where another
// ended but does not count its steps from there, as then nobody knows which part of the training it is.
func (t *Trail) Prospect(s Stretch) *Prospect {
	n := len(t.Points)
	if !(s.From >= 0 && s.From < s.To && s.To <= s.Most) || n < leastProspect || float64(n) <= s.To/s.From && s.From > 0 {
		return nil
	}
	first, last := t.Points[0], t.Points[n-1]
	perUnit := last.Step / s.To
	// Steps that began anew would begin with one part in n of the last one at most.
	if first.Step <= perUnit*s.From*(1-1e-6) || !finite(last.Value) {
		return nil
	}
	p, err := Fit(t.Points, Options{Direction: t.Direction(), Planned: perUnit * s.Most})
	if err != nil {
		return nil
	}
	told := &Prospect{Metric: t.Metric, Value: last.Value}
	if told.Low, told.High = p.Final().Interval(0.9); !finite(told.Low) || !finite(told.High) {
		return nil
	}
	best := math.Inf(1)
	for _, point := range t.Points {
		if point.Step <= perUnit*s.Before*(1+1e-6) && finite(point.Value) {
			best = math.Min(best, t.Direction().loss(point.Value))
		}
	}
	if finite(best) {
		best = t.Direction().loss(best)
		told.Before = &best
	}
	return told
}
