package series

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Curve is a training's loss or metric over its steps, as it was recorded.
type Curve struct {
	// Run names the training; empty where a file holds one.
	Run string
	// Steps do not go backwards. Values are as recorded; NaN where the training gave none.
	Steps, Values []float64
}

// CurveColumns says which columns of a table hold curves. Others are not looked at.
type CurveColumns struct {
	// Run is the column that names the training; with "" the whole file is one.
	Run string
	// Step and Value are the columns of a point.
	Step, Value string
	// Kind and Only restrict the rows to those with Only in the column Kind; with "" all count.
	Kind, Only string
}

// Curves returns a reader of rows of points, those of several trainings mixed, the columns in any order below a header.
// Trainings are in the order of their first rows, and the points of each in that of their steps.
func Curves(columns CurveColumns) func(io.Reader) ([]Curve, error) {
	wanted := []string{columns.Step, columns.Value}
	if columns.Run != "" {
		wanted = append(wanted, columns.Run)
	}
	if columns.Kind != "" {
		wanted = append(wanted, columns.Kind)
	}
	return func(source io.Reader) ([]Curve, error) {
		rows, at, err := within(source, wanted...)
		if err != nil {
			return nil, err
		}
		var all []Curve
		known := map[string]int{}
		for row, err := range rows {
			if err != nil {
				return nil, err
			}
			if columns.Kind != "" && row.fields[at[len(at)-1]] != columns.Only {
				continue
			}
			name := ""
			if columns.Run != "" {
				name = row.fields[at[2]]
			}
			i, found := known[name]
			if !found {
				name = strings.Clone(name)
				i, known[name], all = len(all), len(all), append(all, Curve{Run: name})
			}
			if err := all[i].add(row, at); err != nil {
				return nil, err
			}
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line 2: %w: no point below the header", ErrFormat)
		}
		return sorted(all), nil
	}
}

// add takes the step and the value of a row, which are in the first two columns of at.
func (c *Curve) add(row row, at []int) error {
	step, err := row.number(at[0])
	if err != nil {
		return err
	}
	value, err := row.measured(at[1])
	if err != nil {
		return err
	}
	c.Steps, c.Values = append(c.Steps, step), append(c.Values, value)
	return nil
}

// sorted puts the points of all in the order of their steps.
func sorted(all []Curve) []Curve {
	for i := range all {
		all[i].sort()
	}
	return all
}

// sort puts the points in the order of their steps; those of one step stay as they were.
func (c *Curve) sort() {
	if slices.IsSorted(c.Steps) {
		return
	}
	order := make([]int, len(c.Steps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.Steps[a], c.Steps[b]) })
	steps, values := make([]float64, len(order)), make([]float64, len(order))
	for to, from := range order {
		steps[to], values[to] = c.Steps[from], c.Values[from]
	}
	c.Steps, c.Values = steps, values
}

// measured reads a loss or metric: any number; nothing, "nan" and what is infinite is NaN.
func (r row) measured(column int) (float64, error) {
	text := r.fields[column]
	if text == "" {
		return math.NaN(), nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, r.fault("%q is not a number", text)
	}
	if math.IsInf(value, 0) {
		return math.NaN(), nil
	}
	return value, nil
}

// Labels is what a table says of one thing.
type Labels struct {
	Name   string
	Values []string
}

// LabelsOf returns a reader of the column that names things and of others, the columns in any order below a header.
func LabelsOf(name string, values ...string) func(io.Reader) ([]Labels, error) {
	return func(source io.Reader) ([]Labels, error) {
		rows, at, err := within(source, append([]string{name}, values...)...)
		if err != nil {
			return nil, err
		}
		var all []Labels
		for row, err := range rows {
			if err != nil {
				return nil, err
			}
			one := Labels{Name: strings.Clone(row.fields[at[0]])}
			for _, column := range at[1:] {
				one.Values = append(one.Values, strings.Clone(row.fields[column]))
			}
			all = append(all, one)
		}
		return all, nil
	}
}

// within returns the rows below a header in which the wanted columns must be, and where each of them is.
func within(source io.Reader, wanted ...string) (rowsOrError, []int, error) {
	reader, _, at, err := headed(source, wanted...)
	if err != nil {
		return nil, nil, err
	}
	return read(reader), at, nil
}
