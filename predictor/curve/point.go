package curve

import (
	"errors"
	"fmt"
	"math"
)

// Direction says which values are better. The zero value is Minimise.
type Direction int8

// The directions: losses are minimised, accuracies maximised.
const (
	Minimise Direction = iota
	Maximise
)

// Point is one measurement of a training.
type Point struct {
	// Step counts steps, epochs or samples, whichever the training counts: 0 or more, finite. All steps of a run and of
	// earlier runs are in the same unit; no result depends on which.
	Step float64
	// Value is the loss or metric there, in the training's own unit. NaN and infinite values say that it diverged.
	Value float64
}

// The errors of what cannot be used.
var (
	// ErrStep means a step that is negative or not finite.
	ErrStep = errors.New("a step is no finite number of 0 or more")
	// ErrOrder means a step below the one before. A training that resumed repeats steps: leave the repeated ones out.
	ErrOrder = errors.New("steps go backwards")
	// ErrDirection means a direction that is neither Minimise nor Maximise, or that of another workload.
	ErrDirection = errors.New("no such direction")
)

// check says what is wrong with points.
func check(points []Point) error {
	for i, point := range points {
		if !(point.Step >= 0) || math.IsInf(point.Step, 0) {
			return fmt.Errorf("point %d of %d has the step %v: %w", i+1, len(points), point.Step, ErrStep)
		}
		if i > 0 && point.Step < points[i-1].Step {
			return fmt.Errorf("point %d of %d has the step %v after %v: %w", i+1, len(points), point.Step,
				points[i-1].Step, ErrOrder)
		}
	}
	return nil
}

// check says whether there is such a direction.
func (d Direction) check() error {
	if d != Minimise && d != Maximise {
		return fmt.Errorf("the direction %d: %w", d, ErrDirection)
	}
	return nil
}

// loss is a value of which less is better; it is its own inverse.
func (d Direction) loss(value float64) float64 {
	if d == Maximise {
		return -value
	}
	return value
}
