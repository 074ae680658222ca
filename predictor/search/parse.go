package search

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Parse reads a parameter as people write it:
//
//	lr=log:1e-4..1e-1          a number, by equal factors
//	dropout=0..0.5             a number: an end has a point or an exponent
//	layers=2..8                a whole number
//	width=log:16..1024         a whole number, by equal factors
//	optimizer=adam|sgd         a choice
//	momentum=0.5..0.99 if optimizer=sgd
//
// It does not say what Space.Check says.
func Parse(text string) (Parameter, error) {
	name, rest, found := strings.Cut(text, "=")
	name = strings.TrimSpace(name)
	if !found || name == "" {
		return Parameter{}, fmt.Errorf("%w: %q: write NAME=LOW..HIGH, NAME=log:LOW..HIGH or NAME=ONE|TWO", ErrSpace, text)
	}
	p := Parameter{Name: name}
	rest, condition, conditional := strings.Cut(rest, " if ")
	if conditional {
		on, values, found := strings.Cut(condition, "=")
		if !found {
			return Parameter{}, fmt.Errorf("%w: %q: write NAME=… if OTHER=VALUE|VALUE", ErrSpace, text)
		}
		p.When = &Condition{Parameter: strings.TrimSpace(on), Values: choices(values)}
	}
	rest = strings.TrimSpace(rest)
	ends, logarithmic := strings.CutPrefix(rest, "log:")
	low, high, isRange := strings.Cut(ends, "..")
	if !isRange {
		if logarithmic {
			return Parameter{}, fmt.Errorf("%w: %q: write log:LOW..HIGH", ErrSpace, text)
		}
		p.Kind, p.Choices = Choice, choices(rest)
		return p, nil
	}
	low, high = strings.TrimSpace(low), strings.TrimSpace(high)
	p.Kind, p.Log = Float, logarithmic
	if whole(low) && whole(high) {
		p.Kind = Int
	}
	var errLow, errHigh error
	p.Low, errLow = strconv.ParseFloat(low, 64)
	p.High, errHigh = strconv.ParseFloat(high, 64)
	if err := errors.Join(errLow, errHigh); err != nil {
		return Parameter{}, fmt.Errorf("%w: %q: the ends of a range are numbers", ErrSpace, text)
	}
	return p, nil
}

func whole(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}

func choices(text string) (all []string) {
	for choice := range strings.SplitSeq(text, "|") {
		all = append(all, strings.TrimSpace(choice))
	}
	return all
}
