package activities

import (
	"context"

	"github.com/spillway-ml/spillway/predictor"
)

// Trained reports how a split training goes beside its plan; the newest report replaces all before it and is kept in
// the attempt's Record. Outside an attempt it is dropped.
func Trained(ctx context.Context, training predictor.Training) {
	attempt, err := FromContext(ctx)
	if err != nil || attempt.Trained == nil {
		return
	}
	attempt.Trained(training)
}

// PastTrainings returns what earlier attempts of the stage in ctx reported, newest first: what came of their plans
// corrects the next one. It is empty outside an attempt.
func PastTrainings(ctx context.Context) []predictor.Training {
	attempt, err := FromContext(ctx)
	if err != nil {
		return nil
	}
	return attempt.Past
}
