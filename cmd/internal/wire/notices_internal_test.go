package wire

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.temporal.io/api/common/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
)

func TestManyBlockedRunsAreExplainedAFewAtATime(t *testing.T) {
	t.Parallel()
	const runs = 2*measureMost + 1
	var listed []*workflowpb.WorkflowExecutionInfo
	for i := range runs {
		id := fmt.Sprintf("run-%d", i)
		listed = append(listed, &workflowpb.WorkflowExecutionInfo{Execution: &common.WorkflowExecution{WorkflowId: id, RunId: id}})
	}
	reads := map[string]int{}
	n := &notices{reason: func(_ context.Context, execution *common.WorkflowExecution) (string, error) {
		reads[execution.GetRunId()]++
		if execution.GetRunId() == "run-0" {
			return "", errors.New("it has just ended")
		}
		return "a mismatch", nil
	}}
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	sweep := func(wantReads int) {
		t.Helper()
		clear(reads)
		n.explain(t.Context(), listed, now)
		if len(reads) != wantReads {
			t.Errorf("%d runs were looked at, want %d", len(reads), wantReads)
		}
		now = now.Add(noticeEvery)
	}
	sweep(measureMost)
	sweep(measureMost)
	sweep(2) // the last, and again the one that could not be read
	sweep(1)
	for _, info := range listed[1:] {
		if id := info.GetExecution().GetRunId(); n.reasons[id].why != "a mismatch" {
			t.Errorf("run %s has the reason %q", id, n.reasons[id].why)
		}
	}
	now = now.Add(measureAgain)
	sweep(measureMost)
	listed = listed[:2]
	sweep(1)
	if len(n.reasons) != len(listed) {
		t.Errorf("%d reasons are kept of %d runs that are blocked", len(n.reasons), len(listed))
	}
}
