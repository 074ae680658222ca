package search

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
)

// Kind is what values a parameter has.
type Kind string

// The kinds of parameters.
const (
	// Float is any number of a range.
	Float Kind = "float"
	// Int is any whole number of a range, its ends too.
	Int Kind = "int"
	// Choice is one of a list of texts.
	Choice Kind = "choice"
)

// Parameter is one of the values that a trial is given.
type Parameter struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Low and High are the ends of a range, for Float and Int.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	// Log says that equal factors are equally likely, and not equal differences. The range is above 0 then.
	Log bool `json:"log,omitempty"`
	// Choices are the texts of a Choice.
	Choices []string `json:"choices,omitempty"`
	// When is what the parameter exists under; nil is always.
	When *Condition `json:"when,omitempty"`
}

// Condition holds where a Choice that comes before has one of some values.
type Condition struct {
	Parameter string   `json:"parameter"`
	Values    []string `json:"values"`
}

// Space is what is searched: parameters, each after those that it depends on.
type Space []Parameter

// Value is that of a parameter: a number, or a text where Text is not empty. The zero value is 0.
type Value struct {
	Number float64
	Text   string
}

// String writes a value as a program is given it: a whole number without an exponent, which no parser of whole numbers
// reads.
func (v Value) String() string {
	if v.Text != "" {
		return v.Text
	}
	if v.Number == math.Trunc(v.Number) && math.Abs(v.Number) <= 1<<53 {
		return strconv.FormatFloat(v.Number, 'f', -1, 64)
	}
	return strconv.FormatFloat(v.Number, 'g', -1, 64)
}

// MarshalJSON writes a number or a string.
func (v Value) MarshalJSON() ([]byte, error) {
	if v.Text != "" {
		return json.Marshal(v.Text)
	}
	return json.Marshal(v.Number)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (v *Value) UnmarshalJSON(data []byte) error {
	*v = Value{}
	if json.Unmarshal(data, &v.Text) == nil {
		return nil
	}
	return json.Unmarshal(data, &v.Number)
}

// Configuration is what a trial is given: the values of those parameters that exist for it, by name.
type Configuration map[string]Value

// ErrSpace says that a space cannot be searched.
var ErrSpace = errors.New("the search space is wrong")

// Check reports everything that is wrong with a space; the errors wrap ErrSpace.
func (s Space) Check() error {
	if len(s) == 0 {
		return fmt.Errorf("%w: it has no parameter", ErrSpace)
	}
	var wrong []error
	for i, p := range s {
		if err := p.check(s[:i]); err != nil {
			wrong = append(wrong, fmt.Errorf("%w: parameter %q: %w", ErrSpace, p.Name, err))
		}
	}
	return errors.Join(wrong...)
}

func (p Parameter) check(before Space) error {
	switch {
	case p.Name == "":
		return errors.New("it has no name")
	case slices.ContainsFunc(before, func(q Parameter) bool { return q.Name == p.Name }):
		return errors.New("it is there twice")
	}
	switch p.Kind {
	case Choice:
		if len(p.Choices) == 0 || slices.Contains(p.Choices, "") {
			return errors.New("give at least one choice, and no empty one")
		}
		if sorted := slices.Sorted(slices.Values(p.Choices)); len(slices.Compact(sorted)) < len(p.Choices) {
			return errors.New("a choice is there twice")
		}
	case Float, Int:
		if err := p.checkRange(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("there is no kind %q: use float, int or choice", p.Kind)
	}
	return p.When.check(before)
}

func (p Parameter) checkRange() error {
	switch {
	case math.IsNaN(p.Low-p.High) || math.IsInf(p.High-p.Low, 0):
		return fmt.Errorf("%g to %g is no range of numbers", p.Low, p.High)
	case p.Low > p.High:
		return fmt.Errorf("%g to %g: the lower end comes first", p.Low, p.High)
	case p.Log && p.Low <= 0:
		return fmt.Errorf("%g to %g: a logarithmic range is above 0", p.Low, p.High)
	case p.Kind == Int && (p.Low != math.Trunc(p.Low) || p.High != math.Trunc(p.High)):
		return fmt.Errorf("%g to %g: the ends of whole numbers are whole", p.Low, p.High)
	case p.Kind == Int && max(-p.Low, p.High) > 1<<53:
		return fmt.Errorf("%g to %g: whole numbers beyond 2^53 are not exact", p.Low, p.High)
	}
	return nil
}

func (c *Condition) check(before Space) error {
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(before, func(q Parameter) bool { return q.Name == c.Parameter })
	if i < 0 || before[i].Kind != Choice {
		return fmt.Errorf("it depends on %q, which is no choice before it", c.Parameter)
	}
	if len(c.Values) == 0 {
		return fmt.Errorf("it depends on no value of %q", c.Parameter)
	}
	for _, value := range c.Values {
		if !slices.Contains(before[i].Choices, value) {
			return fmt.Errorf("it depends on %s=%s, which %q never is", c.Parameter, value, c.Parameter)
		}
	}
	return nil
}

// Size is how many configurations a space has, those counted too that differ in what does not exist: at least as many
// as there are. It is infinite where a range of numbers has no whole ends.
func (s Space) Size() float64 {
	size := 1.0
	for _, p := range s {
		switch {
		case p.Kind == Choice:
			size *= float64(len(p.Choices))
		case p.Low == p.High: // one value
		case p.Kind == Int:
			size *= p.High - p.Low + 1
		default:
			return math.Inf(1)
		}
	}
	return size
}

// exists reports whether p exists in a configuration whose parameters before p are known.
func (p Parameter) exists(c Configuration) bool {
	if p.When == nil {
		return true
	}
	value, known := c[p.When.Parameter]
	return known && slices.Contains(p.When.Values, value.Text)
}

// at is the value at a place between 0 and 1, of which equal parts are equally likely.
func (p Parameter) at(place float64) Value {
	switch p.Kind {
	case Choice:
		return Value{Text: p.Choices[min(int(place*float64(len(p.Choices))), len(p.Choices)-1)]}
	case Int:
		// Each whole number has a part of its own, those at the ends too.
		low, high := p.Low-0.5, p.High+0.5
		return Value{Number: max(p.Low, min(p.High, math.Round(between(low, high, place, p.Log))))}
	default:
		return Value{Number: max(p.Low, min(p.High, between(p.Low, p.High, place, p.Log)))}
	}
}

// place is the inverse of at: the middle of what becomes the value.
func (p Parameter) place(v Value) float64 {
	switch p.Kind {
	case Choice:
		return (float64(slices.Index(p.Choices, v.Text)) + 0.5) / float64(len(p.Choices))
	case Int:
		low, high := p.Low-0.5, p.High+0.5
		return where(low, high, v.Number, p.Log)
	default:
		return where(p.Low, p.High, v.Number, p.Log)
	}
}

func between(low, high, place float64, logarithmic bool) float64 {
	if logarithmic {
		return low * math.Exp(place*math.Log(high/low))
	}
	return low + place*(high-low)
}

func where(low, high, value float64, logarithmic bool) float64 {
	switch {
	case high == low:
		return 0.5
	case logarithmic:
		return math.Log(value/low) / math.Log(high/low)
	default:
		return (value - low) / (high - low)
	}
}

// draw draws a configuration, of which all parts of the space are equally likely.
func (s Space) draw(r *rand.Rand) Configuration {
	c := Configuration{}
	for _, p := range s {
		place := r.Float64() // also of those that do not exist, so that the others stay as they are
		if p.exists(c) {
			c[p.Name] = p.at(place)
		}
	}
	return c
}
