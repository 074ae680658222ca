package forecast

import "gonum.org/v1/gonum/mat"

// ridge is a linear regression without intercept that forgets: rows of half an age count half.
//
// With rows x, targets y and weights w it minimises sum w (y - bx)^2 + ridgePenalty |b|^2, which is the posterior mean
// of b where the weights are one over the variance of y and each coefficient is normal around 0 with a standard
// deviation of 1/2 before (Hoerl and Kennard, Technometrics 1970, https://doi.org/10.1080/00401706.1970.10488634).
type ridge struct {
	// Gram is the upper triangle of sum w x x', row by row.
	Gram [predictorCount * (predictorCount + 1) / 2]float64
	// Moment is sum w x y.
	Moment [predictorCount]float64
	// Slope is b as of the last solve, Age how many rows came since.
	Slope [predictorCount]float64
	Age   int64
}

const (
	ridgePenalty = 4
	// ridgeFade lets rows count half after about 7,000 buckets: five days of minutes, so that ten coefficients rest on
	// hundreds of independent rows, while an old daily rhythm is forgotten within weeks.
	ridgeFade = 1 - 1.0/10_000
	// solveEvery is how many rows are gathered between two solves: coefficients that rest on hundreds do not move in 16.
	solveEvery = 16
)

func (r *ridge) observe(looks *[predictorCount]float32, y, weight float64) {
	var x [predictorCount]float64
	for i, look := range looks {
		x[i] = float64(look)
	}
	at := 0
	for i := range predictorCount {
		wx := weight * x[i]
		r.Moment[i] = r.Moment[i]*ridgeFade + wx*y
		for j := i; j < predictorCount; j++ {
			r.Gram[at] = r.Gram[at]*ridgeFade + wx*x[j]
			at++
		}
	}
	if r.Age++; r.Age >= solveEvery {
		r.Age = 0
		r.solve()
	}
}

// solve keeps the slope of before where the equations are too near to singular.
func (r *ridge) solve() {
	var dense [predictorCount * predictorCount]float64
	at := 0
	for i := range predictorCount {
		for j := i; j < predictorCount; j++ {
			dense[i*predictorCount+j] = r.Gram[at]
			at++
		}
		dense[i*predictorCount+i] += ridgePenalty
	}
	var cholesky mat.Cholesky
	if !cholesky.Factorize(mat.NewSymDense(predictorCount, dense[:])) {
		return
	}
	slope := mat.NewVecDense(predictorCount, r.Slope[:])
	before := r.Slope
	if err := cholesky.SolveVecTo(slope, mat.NewVecDense(predictorCount, r.Moment[:])); err != nil {
		r.Slope = before
	}
}

func (r *ridge) at(looks *[predictorCount]float32) float64 {
	sum := 0.0
	for i, slope := range r.Slope {
		sum += slope * float64(looks[i])
	}
	return sum
}

// forget drops what rows told about predictor k, whose meaning changed.
func (r *ridge) forget(k int) {
	at := 0
	for i := range predictorCount {
		for j := i; j < predictorCount; j++ {
			if i == k || j == k {
				r.Gram[at] = 0
			}
			at++
		}
	}
	r.Moment[k], r.Slope[k] = 0, 0
}

// fade lets everything count the part that is given.
func (r *ridge) fade(part float64) {
	for i := range r.Gram {
		r.Gram[i] *= part
	}
	for i := range r.Moment {
		r.Moment[i] *= part
	}
}
