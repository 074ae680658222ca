package slottest

import (
	"context"

	"github.com/spillway-ml/spillway/predictor"
)

// Plans hands the plans of a test to whoever watches, each to one of them. It is made with make, and without a buffer
// whoever sends a plan knows that it was taken.
type Plans chan predictor.Plan

// Watch calls obey with every plan until ctx ends.
func (p Plans) Watch(ctx context.Context, obey func(predictor.Plan)) error {
	for {
		select {
		case plan := <-p:
			obey(plan)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
