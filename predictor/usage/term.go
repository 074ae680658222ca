package usage

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Term is the part of a need that features explain: PerUnit Feature^Power With^WithPower, and what And adds. The zero
// value explains nothing. Terms are equal where they say the same.
//
// It travels in plans, and a host of an earlier version knows only Feature, Power (1/2, 1 and 2, all others as 1) and
// PerUnit. So Unit and WithUnit are chosen such that it grants as much or more up to the largest values that were seen,
// but for what And adds.
type Term struct {
	// Feature is its name.
	Feature string `json:"feature,omitempty"`
	// Power is 1 where the need grows with the feature, 2 where it grows with its square, as attention does with the
	// length of a sequence, and 1/2 where each more adds less, as with what is found again in an index or a cache.
	Power float64 `json:"power,omitempty"`
	// PerUnit is how many bytes each unit of feature^Power adds; 0 or more.
	PerUnit float64 `json:"per_unit,omitempty"`
	// Unit is the value of the feature at which a Power other than 1/2, 1 and 2 comes to as much as 1 does. 0 is 1.
	Unit float64 `json:"unit,omitempty"`
	// With is the name of a feature that Feature is multiplied with, as the batch is with the length; empty for none.
	With string `json:"with,omitempty"`
	// WithPower is its power, and WithUnit the value at which PerUnit is meant. 0 is 1.
	WithPower float64 `json:"with_power,omitempty"`
	WithUnit  float64 `json:"with_unit,omitempty"`
	// And are further parts; those without a Feature add nothing.
	And [MaxParts - 1]Part `json:"and,omitzero"`
	// By is the category whose levels multiply the whole need; empty for none. See [Levels].
	By string `json:"by,omitempty"`
}

// Part is one product of a Term; see there.
type Part struct {
	Feature   string  `json:"feature,omitempty"`
	Power     float64 `json:"power,omitempty"`
	PerUnit   float64 `json:"per_unit,omitempty"`
	Unit      float64 `json:"unit,omitempty"`
	With      string  `json:"with,omitempty"`
	WithPower float64 `json:"with_power,omitempty"`
	WithUnit  float64 `json:"with_unit,omitempty"`
}

// MaxParts is how many products of features add up to a need: a parameter and an input, or a category of four values.
const MaxParts = 3

// termOf is the sum of parts, of which there are MaxParts at most.
func termOf(parts []Part) (t Term) {
	if len(parts) == 0 {
		return t
	}
	first := parts[0]
	t = Term{
		Feature: first.Feature, Power: first.Power, PerUnit: first.PerUnit, Unit: first.Unit,
		With: first.With, WithPower: first.WithPower, WithUnit: first.WithUnit,
	}
	copy(t.And[:], parts[1:])
	return t
}

func (t Term) first() Part {
	return Part{t.Feature, t.Power, t.PerUnit, t.Unit, t.With, t.WithPower, t.WithUnit}
}

// parts are all that add something, in order.
func (t Term) parts() []Part {
	found := make([]Part, 0, MaxParts)
	for _, part := range append([]Part{t.first()}, t.And[:]...) {
		if part.Feature != "" {
			found = append(found, part)
		}
	}
	return found
}

// At returns what the term adds for an attempt with these features: 0 where they are not known, never negative, never
// NaN. It never falls where a feature grows.
func (t Term) At(features Features) float64 {
	sum := t.first().at(features)
	for _, part := range t.And {
		if part.Feature != "" {
			sum += part.at(features)
		}
	}
	return min(sum, mostNeed)
}

// mostNeed keeps sums of needs finite.
const mostNeed = math.MaxFloat64 / 4

func (p Part) at(features Features) float64 {
	if !(p.PerUnit > 0) {
		return 0
	}
	value := power(features.Value(p.Feature), p.Power)
	if p.Unit > 0 {
		value = p.Unit * power(features.Value(p.Feature)/p.Unit, p.Power)
	}
	if p.With != "" {
		unit := p.WithUnit
		if !(unit > 0) {
			unit = 1
		}
		value *= power(features.Value(p.With)/unit, p.WithPower)
	}
	if value *= p.PerUnit; value >= 0 { // 0 times infinity is no number
		return min(value, mostNeed/MaxParts)
	}
	return 0
}

// Scaled returns the term of factor times as much.
func (t Term) Scaled(factor float64) Term {
	t.PerUnit *= factor
	for i := range t.And {
		t.And[i].PerUnit *= factor
	}
	return t
}

// Simple reports whether the need is that of one feature alone, or of none.
func (t Term) Simple() bool { return t.With == "" && t.And == [MaxParts - 1]Part{} && t.By == "" }

// Like reports whether two terms grow with the same powers of the same features, whatever they come to.
func (t Term) Like(other Term) bool {
	for i, part := range append([]Part{t.first()}, t.And[:]...) {
		twin := append([]Part{other.first()}, other.And[:]...)[i]
		if part.Feature != twin.Feature || part.Power != twin.Power || part.With != twin.With ||
			part.WithPower != twin.WithPower {
			return false
		}
	}
	return t.By == other.By
}

// uses reports whether the need depends on a feature.
func (t Term) uses(name string) bool {
	if name == t.Feature || name == t.With || name == t.By {
		return name != ""
	}
	return slices.ContainsFunc(t.And[:], func(p Part) bool { return name != "" && (name == p.Feature || name == p.With) })
}

// Names are the features that the need depends on, each once or more.
func (t Term) Names() []string {
	var found []string
	for _, part := range t.parts() {
		if found = append(found, part.Feature); part.With != "" {
			found = append(found, part.With)
		}
	}
	if t.By != "" {
		found = append(found, t.By)
	}
	return found
}

// String says in words what the need depends on: "input_bytes", "the square of length and batch times length"; it is
// empty where on nothing known.
func (t Term) String() string {
	parts := t.parts()
	said := make([]string, 0, len(parts)+1)
	for _, part := range parts {
		text := powerInWords(part.Feature, part.Power)
		if part.With != "" {
			text += " times " + powerInWords(part.With, part.WithPower)
		}
		said = append(said, text)
	}
	if t.By != "" {
		said = append(said, strings.TrimSuffix(t.By, categorySuffix))
	}
	if len(said) > 1 {
		said = []string{strings.Join(said[:len(said)-1], ", "), said[len(said)-1]}
	}
	return strings.Join(said, " and ")
}

func powerInWords(name string, exponent float64) string {
	switch exponent {
	case 0.5:
		return "the square root of " + name
	case 1:
		return name
	case 2:
		return "the square of " + name
	}
	return fmt.Sprintf("%s to the power of %s", name, strconv.FormatFloat(exponent, 'g', 3, 64))
}

// mostPower is the largest power that is tried; see morePowers.
const mostPower = 3

// power is value^exponent; of quarters, which are what is tried, by roots, which take a tenth of the time.
func power(value, exponent float64) float64 {
	switch exponent {
	case 0.5:
		return math.Sqrt(value)
	case 1:
		return value
	case 2:
		return value * value
	}
	if value <= 0 || !(exponent > 0) { // not known; or a term of a later version
		return value
	}
	if quarters := 4 * exponent; quarters <= 4*mostPower && quarters == math.Trunc(quarters) {
		root, product := math.Sqrt(math.Sqrt(value)), 1.0
		for range int(quarters) {
			product *= root
		}
		return product
	}
	return math.Pow(value, exponent)
}
