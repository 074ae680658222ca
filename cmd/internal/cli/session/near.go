package session

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// MostRuns is how many runs are looked through for those that are near or belong together: the newest.
const MostRuns = 1000

// WithNearRuns completes the error that there is no such run with the runs whose names are near one of those that were
// given.
func WithNearRuns(ctx context.Context, session *Session, err error, given ...string) error {
	refused, ok := errors.AsType[*web.Error](err)
	if !ok || refused.Status != http.StatusNotFound || refused.OnItsWay() {
		return err
	}
	known, listErr := session.Client.Runs(ctx, web.RunQuery{Limit: MostRuns})
	if listErr != nil {
		return err // the first error says more
	}
	ids := make([]string, len(known))
	for i, run := range known {
		ids[i] = run.Run
	}
	for _, name := range given {
		if slices.Contains(ids, name) || !strings.Contains(refused.Message, strconv.Quote(name)) {
			continue
		}
		if near := nearest.Names(name, ids); len(near) > 0 {
			return &web.Error{
				Status: refused.Status, Message: err.Error(),
				Hint: "did you mean " + strings.Join(near, ", ") + "?",
			}
		}
	}
	return err
}

// CheckStage returns an error when a run has no stage of this name.
func CheckStage(run ledger.RunView, stage string) error {
	var names []string
	for _, one := range run.Stages {
		if one.Name == stage {
			return nil
		}
		names = append(names, one.Name)
	}
	hint := "it has none yet"
	if near := nearest.Names(stage, names); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	} else if len(names) > 0 {
		hint = "its stages are " + strings.Join(names, ", ")
	}
	return &fault.UsageError{Problem: "run " + run.Run + " has no stage " + strconv.Quote(stage), Hint: hint}
}

// MostDead is how many dead letters are listed.
const MostDead = 1000
