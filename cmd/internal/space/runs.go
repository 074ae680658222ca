package space

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities/retention"
)

const (
	// readers is how many histories are read at a time.
	readers = 4
	// listed is how many workflows are listed at a time.
	listed = 1000
)

// run is what Temporal says of a run, its child workflows among it.
type run struct {
	open  bool      // it, or a child, goes on
	ended time.Time // when the last of it ended
	names []retention.Digest
}

// runReader finds out what the histories of runs, and the heartbeats of their attempts, name. The history of what has
// ended is read once.
type runReader struct {
	temporal Histories
	over     map[string][]retention.Digest // by Temporal's run ID
}

func newRunReader(temporal Histories) *runReader {
	return &runReader{temporal: temporal, over: map[string][]retention.Digest{}}
}

// read returns all runs by name, and when the oldest attempt that goes on began.
func (r *runReader) read(ctx context.Context) (runs map[string]*run, busy time.Time, err error) {
	executions, err := r.list(ctx)
	if err != nil {
		return nil, busy, err
	}
	found := make([]execution, len(executions))
	reading, readCtx := errgroup.WithContext(ctx)
	reading.SetLimit(readers)
	for i, info := range executions {
		if names, known := r.over[info.GetExecution().GetRunId()]; known {
			found[i].names = names
			continue
		}
		reading.Go(func() (err error) {
			found[i], err = r.readOne(readCtx, info)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, busy, err
	}
	runs, over := map[string]*run{}, map[string][]retention.Digest{}
	for i, info := range executions {
		name := info.GetRootExecution().GetWorkflowId()
		if name == "" {
			name = info.GetExecution().GetWorkflowId()
		}
		one := runs[name]
		if one == nil {
			one = &run{}
			runs[name] = one
		}
		one.names = append(one.names, found[i].names...)
		if isOpen(info) {
			one.open = true
			busy = earliest(busy, found[i].busy)
			continue
		}
		over[info.GetExecution().GetRunId()] = found[i].names
		if ended := info.GetCloseTime().AsTime(); ended.After(one.ended) {
			one.ended = ended
		}
	}
	r.over = over
	return runs, busy, nil
}

// earliest returns the earlier of two times, of which the zero time is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func isOpen(info *workflowpb.WorkflowExecutionInfo) bool {
	return info.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING ||
		info.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_PAUSED
}

// list returns all workflows that Temporal knows.
func (r *runReader) list(ctx context.Context) (all []*workflowpb.WorkflowExecutionInfo, err error) {
	var page []byte
	for {
		answer, err := r.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			PageSize:      listed,
			NextPageToken: page,
		})
		if err != nil {
			return nil, fmt.Errorf("list the runs: %w", err)
		}
		all = append(all, answer.GetExecutions()...)
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return all, nil
		}
	}
}

// execution is what one workflow names.
type execution struct {
	names []retention.Digest
	busy  time.Time // when the oldest of its attempts that go on began
}

// readOne reads one workflow. Its attempts come before its history: one that ends in between is in the latter.
func (r *runReader) readOne(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) (found execution, err error) {
	id, runID := info.GetExecution().GetWorkflowId(), info.GetExecution().GetRunId()
	var scanner retention.Scanner
	if isOpen(info) {
		described, err := r.temporal.DescribeWorkflowExecution(ctx, id, runID)
		if err != nil {
			return found, ignoreGone(fmt.Errorf("look at run %s: %w", id, err))
		}
		for _, attempt := range described.GetPendingActivities() {
			if attempt.GetState() != enums.PENDING_ACTIVITY_STATE_SCHEDULED {
				found.busy = earliest(found.busy, attempt.GetLastStartedTime().AsTime())
			}
		}
		if err := scanMessage(&scanner, described); err != nil {
			return found, fmt.Errorf("look at run %s: %w", id, err)
		}
	}
	history := r.temporal.GetWorkflowHistory(ctx, id, runID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for history.HasNext() {
		event, err := history.Next()
		if err == nil {
			err = scanMessage(&scanner, event)
		}
		if err != nil {
			return execution{}, ignoreGone(fmt.Errorf("read the history of run %s: %w", id, err))
		}
	}
	found.names = scanner.Names()
	return found, nil
}

// ignoreGone returns nil for a workflow that was deleted meanwhile.
func ignoreGone(err error) error {
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return nil
	}
	return err
}

// scanMessage looks for digests in all texts of a message.
func scanMessage(scanner *retention.Scanner, message proto.Message) error {
	text, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	_, err = scanner.Write(append(text, 0)) // what comes next is another text
	return err
}
