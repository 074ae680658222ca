package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// mostResumed bounds the checkpoints that a retry names: they come with its event.
const mostResumed = 256

// leftOff returns the newest checkpoints of the tasks that a run which has ended did not finish, of those stages of
// which the options take something, in the order in which the tasks were scheduled. Shards of a Map, and jobs of
// tunings, are tasks of other workflows: they are not among them.
func (s *stores) leftOff(
	ctx context.Context, run string, options loopwire.RunOptions,
) (left []loopwire.Resumption, err error) {
	tasks := newUnfinished()
	history := s.temporal.GetWorkflowHistory(ctx, run, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for history.HasNext() {
		event, err := history.Next()
		if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
			return nil, nil // which the input of the run tells
		}
		if err != nil { // what is not read would begin anew without a word
			return nil, fmt.Errorf("read how far run %s came: %w", run, err)
		}
		tasks.take(event)
	}
	for _, one := range tasks.left(func(m proto.Message) error { return artifact.Restore(ctx, s.store, m) }) {
		if !options.Reuses(loopwire.Stage{Name: one.Stage}) || len(left) == mostResumed {
			continue
		}
		switch kept, err := s.keeps(ctx, one.Checkpoint.Digest); {
		case err != nil:
			return nil, err
		case !kept:
			return nil, web.Gone("begin it anew: spillway retry "+run+" --from "+one.Stage,
				"the checkpoint from which stage %s would go on is gone: %s", one.Stage, one.Checkpoint.Digest)
		}
		left = append(left, one)
	}
	return left, nil
}

// unfinished are the tasks of a run that have no result, as its history tells.
type unfinished struct {
	scheduled map[int64]string // IDs of tasks, by the event that scheduled them
	order     []string
	tasks     map[string]*task // by ID
}

// task is one of them.
type task struct {
	scheduled  *historypb.ActivityTaskScheduledEventAttributes
	checkpoint activities.Ref // the newest that is told of; the zero Ref without one
}

func newUnfinished() *unfinished {
	return &unfinished{scheduled: map[int64]string{}, tasks: map[string]*task{}}
}

// take takes the next event of the history in.
func (u *unfinished) take(event *historypb.HistoryEvent) {
	if scheduled := event.GetActivityTaskScheduledEventAttributes(); scheduled != nil {
		// One that a venue has given up comes again under another ID.
		id := strings.TrimSuffix(scheduled.GetActivityId(), runs.PoolSuffix)
		u.scheduled[event.GetEventId()] = id
		if u.tasks[id] == nil {
			u.order, u.tasks[id] = append(u.order, id), &task{scheduled: scheduled}
		}
	}
	if completed := event.GetActivityTaskCompletedEventAttributes(); completed != nil {
		delete(u.tasks, u.scheduled[completed.GetScheduledEventId()])
	}
	if failed := event.GetActivityTaskFailedEventAttributes(); failed != nil {
		for f := failed.GetFailure(); f != nil; f = f.GetCause() { // a cancellation may be within another failure
			u.end(failed.GetScheduledEventId(), f.GetApplicationFailureInfo().GetDetails(), 0)
			u.end(failed.GetScheduledEventId(), f.GetCanceledFailureInfo().GetDetails(), 1) // after the message
		}
	}
	if cancelled := event.GetActivityTaskCanceledEventAttributes(); cancelled != nil {
		u.end(cancelled.GetScheduledEventId(), cancelled.GetDetails(), 1)
	}
	if silent := event.GetActivityTaskTimedOutEventAttributes(); silent != nil { // nobody was heard of again
		u.end(silent.GetScheduledEventId(), silent.GetFailure().GetTimeoutFailureInfo().GetLastHeartbeatDetails(), 0)
	}
}

// end notes the checkpoint that details name of a task, in the one with this number: of a failure, or of a heartbeat,
// which call it alike.
func (u *unfinished) end(scheduled int64, details *commonpb.Payloads, number int) {
	ended := u.tasks[u.scheduled[scheduled]]
	if ended == nil || len(details.GetPayloads()) <= number {
		return
	}
	var detail slot.Failure
	err := converter.GetDefaultDataConverter().FromPayload(details.GetPayloads()[number], &detail)
	if err == nil && detail.Checkpoint.Digest != "" {
		ended.checkpoint = detail.Checkpoint
	}
}

// left are those with a checkpoint, in the order in which they were scheduled; restore brings back what was taken out
// of a message. Of what cannot be read nothing is known: such a task begins anew.
func (u *unfinished) left(restore func(proto.Message) error) (all []loopwire.Resumption) {
	for _, id := range u.order {
		one := u.tasks[id]
		if one == nil {
			continue
		}
		var of loopwire.Task
		var input json.RawMessage
		if restore(one.scheduled) != nil || len(one.scheduled.GetInput().GetPayloads()) != 2 ||
			converter.GetDefaultDataConverter().FromPayloads(one.scheduled.GetInput(), &of, &input) != nil {
			continue
		}
		checkpoint := cmp.Or(one.checkpoint, of.Resume)
		if checkpoint.Digest == "" {
			continue
		}
		all = append(all, loopwire.Resumption{
			Stage: of.Stage.Name, Content: loopwire.NewResultKey(of.Stage, of.Command, of.CacheVersion, input).Content,
			Checkpoint: checkpoint,
		})
	}
	return all
}
