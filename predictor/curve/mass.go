package curve

import "math"

// mass is a distribution over the logarithm of steps as a multiple of those seen, and never.
type mass struct {
	cells [cells]float64
	never float64
}

const (
	cells = 160
	// farthest is beyond what is told apart from never: e^8 is 3,000 times the steps seen.
	farthest = 8.0
	cell     = farthest / cells
)

// lindy is of what takes more than m times as long as what was seen with a chance of 1/m (Lindy's law; Gott, Nature
// 1993).
func lindy() mass {
	m := mass{never: math.Exp(-farthest)}
	for i := range m.cells {
		m.cells[i] = math.Exp(-float64(i)*cell) - math.Exp(-float64(i+1)*cell)
	}
	return m
}

// add puts a weight at u, shared by the cells whose middles it lies between: rounding does not move it.
func (m *mass) add(u, weight float64) {
	if !(u < farthest) {
		m.never += weight
		return
	}
	at := math.Max(0, u/cell-0.5)
	i := min(int(at), cells-2)
	part := math.Min(1, at-float64(i))
	m.cells[i] += weight * (1 - part)
	m.cells[i+1] += weight * part
}

// spread widens what was added at u to a normal distribution of a deviation; what would be before now is shared out
// over what is after.
func (m *mass) spread(deviation func(u float64) float64) mass {
	wide := mass{never: m.never}
	for i, w := range m.cells {
		if w == 0 {
			continue
		}
		u := (float64(i) + 0.5) * cell
		s := deviation(u)
		below := normal(-u / s)
		last, rest := below, 1-below
		from, to := max(0, int((u-6*s)/cell)), min(cells, int((u+6*s)/cell)+2)
		for j := from; j < to; j++ {
			edge := normal((float64(j+1)*cell - u) / s)
			if j == from && from > 0 {
				last = 0
			}
			wide.cells[j] += w * (edge - last) / rest
			last = edge
		}
		wide.never += w * (1 - last) / rest
	}
	return wide
}

func normal(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }

// end moves to never what is after the end of a run.
func (m *mass) end(u float64) {
	for i, w := range m.cells {
		if (float64(i)+0.5)*cell > u {
			m.cells[i] = 0
			m.never += w
		}
	}
}

// mix adds another distribution with a share, and keeps the rest.
func (m *mass) mix(other mass, share float64) {
	for i := range m.cells {
		m.cells[i] += share * (other.cells[i] - m.cells[i])
	}
	m.never += share * (other.never - m.never)
}

// reached is the chance of anything but never.
func (m *mass) reached() float64 {
	sum := 0.0
	for _, w := range m.cells {
		sum += w
	}
	return sum
}

// within is the u below which a chance lies; +Inf where there is not as much.
func (m *mass) within(chance float64) float64 {
	sum := 0.0
	for i, w := range m.cells {
		if w > 0 && sum+w >= chance {
			return (float64(i) + (chance-sum)/w) * cell
		}
		sum += w
	}
	return math.Inf(1)
}
