package exectest

import "github.com/spillway-ml/spillway/predictor/quantity"

// matrix holds numbers row by row; a row is a sample.
type matrix struct {
	rows, columns int
	data          []float64
}

func newMatrix(rows, columns int) *matrix {
	return &matrix{rows: rows, columns: columns, data: make([]float64, rows*columns)}
}

func (m *matrix) row(r int) []float64 { return m.data[r*m.columns : (r+1)*m.columns] }

func (m *matrix) bytes() quantity.Bytes { return quantity.Bytes(8 * len(m.data)) }

// each makes a matrix of f of every number and its index.
func (m *matrix) each(f func(i int, x float64) float64) *matrix {
	out := newMatrix(m.rows, m.columns)
	for i, x := range m.data {
		out.data[i] = f(i, x)
	}
	return out
}

// sum returns a + b, where nil is nothing.
func sum(a, b *matrix) *matrix {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return a.each(func(i int, x float64) float64 { return x + b.data[i] })
	}
}
