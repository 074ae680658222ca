package fact

// Curve is how one metric of a training went in an attempt, step by step: at most [MostCurve] points, fewer the later
// they are, evenly over the logarithm of the step. The zero value tells nothing.
type Curve struct {
	// Metric is the metric's name, as the stage reports it.
	Metric string `json:"metric"`
	// Steps rise from above 0, and Values are what the metric was at each.
	Steps  []int64   `json:"steps"`
	Values []float64 `json:"values"`
	// NotFinite are the steps at which it was NaN or infinite, which JSON has not.
	NotFinite []int64 `json:"not_finite,omitempty"`
}

// MostCurve is how many points a Curve has at most: 1.5 KB of a Record.
const MostCurve = 64
