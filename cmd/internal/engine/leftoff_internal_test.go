package engine

import (
	"context"
	"errors"
	"testing"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/wire"
)

// silentTemporal answers with an error whoever reads a history.
type silentTemporal struct {
	client.Client

	err error
}

func (s silentTemporal) GetWorkflowHistory(
	context.Context, string, string, bool, enums.HistoryEventFilterType,
) client.HistoryEventIterator {
	return s
}

func (silentTemporal) HasNext() bool { return true }

func (s silentTemporal) Next() (*historypb.HistoryEvent, error) { return nil, s.err }

// TestARetryDoesNotBeginAnewWhereNobodyAnswersWhatWasKept: a history that is gone has nothing to go on from, and one
// that cannot be read now may have.
func TestARetryDoesNotBeginAnewWhereNobodyAnswersWhatWasKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		refuse bool
	}{
		"it is gone":               {serviceerror.NewNotFound("workflow execution not found"), false},
		"Temporal does not answer": {serviceerror.NewUnavailable("connection refused"), true},
	} {
		s := &stores{temporal: silentTemporal{err: c.err}}
		left, err := s.leftOff(t.Context(), "r-1", wire.RunOptions{})
		if len(left) > 0 || (err != nil) != c.refuse || c.refuse && !errors.Is(err, c.err) {
			t.Errorf("%s: got %v, %v", name, left, err)
		}
	}
}
