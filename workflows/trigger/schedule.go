package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// publishName names the workflow that a schedule starts, and its one activity.
	publishName = "spillway.publish"
	// schedulePrefix begins the IDs of schedules; the key of the binding follows.
	schedulePrefix = "spillway.schedule."
	// catchUp is how late a firing may be that was missed while the engine or Temporal was away.
	catchUp = time.Hour
)

// syncSchedules makes the schedules in force those of the bindings. The caller holds t.applying. When it fails, Run
// tries it again.
func (t *Trigger) syncSchedules(ctx context.Context) error {
	wanted, doomed := t.schedules()
	if t.scheduler == nil {
		if len(wanted) > 0 {
			return fmt.Errorf("make schedules of bindings %s: schedules are not available here",
				strings.Join(slices.Sorted(maps.Keys(wanted)), ", "))
		}
		return nil
	}
	t.unsettled = true
	if !t.leads() {
		return nil // whoever does makes them
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		schedule := wanted[key]
		if equalSchedules(t.scheduled[key], schedule) {
			continue
		}
		if err := t.scheduler.Put(ctx, schedule); err != nil {
			return fmt.Errorf("make schedule %q of binding %s: %w; it is tried again every few seconds", schedule.Cron, key, err)
		}
		t.scheduled[key] = schedule
	}
	existing, err := t.scheduler.Keys(ctx)
	if err != nil {
		return fmt.Errorf("list schedules: %w; it is tried again every few seconds", err)
	}
	for _, key := range append(existing, slices.Collect(maps.Keys(t.scheduled))...) {
		if _, keep := wanted[key]; keep || !doomed(key) {
			continue
		}
		if err := t.scheduler.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete schedule of binding %s: %w; it is tried again every few seconds", key, err)
		}
		delete(t.scheduled, key)
	}
	t.unsettled = false
	return nil
}

// schedules returns the schedules that are wanted, and which others may go: not those of apps that may still come back.
func (t *Trigger) schedules() (wanted map[string]Schedule, doomed func(key string) bool) {
	now := t.snapshot()
	wanted = map[string]Schedule{}
	for key, bound := range now.bounds {
		if bound.Origin != Removed && bound.Binding.Schedule != "" {
			wanted[key] = Schedule{
				Key: key, Cron: bound.Binding.Schedule, Subject: scheduledSubject(key),
				Input: bound.Binding.Input,
			}
		}
	}
	return wanted, func(key string) bool {
		bound, known := now.bounds[key]
		return !known || !t.isHeld(bound.Binding.Pipeline)
	}
}

func equalSchedules(a, b Schedule) bool {
	return a.Key == b.Key && a.Cron == b.Cron && a.Subject == b.Subject && string(a.Input) == string(b.Input)
}

// temporalScheduler is the Scheduler of production.
type temporalScheduler struct {
	client client.Client
	queue  string
}

// NewTemporalScheduler returns the Scheduler that keeps Temporal Schedules. Their firings run on queue, where a worker
// must have what RegisterSchedules registers. It does not close the client.
func NewTemporalScheduler(c client.Client, queue string) Scheduler {
	return temporalScheduler{client: c, queue: queue}
}

// Keys implements Scheduler.
func (s temporalScheduler) Keys(ctx context.Context) ([]string, error) {
	list, err := s.client.ScheduleClient().List(ctx, client.ScheduleListOptions{})
	if err != nil {
		return nil, err
	}
	var keys []string
	for list.HasNext() {
		entry, err := list.Next()
		if err != nil {
			return nil, err
		}
		if key, ours := strings.CutPrefix(entry.ID, schedulePrefix); ours {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Put implements Scheduler.
func (s temporalScheduler) Put(ctx context.Context, schedule Schedule) error {
	spec := client.ScheduleSpec{CronExpressions: []string{schedule.Cron}}
	action := &client.ScheduleWorkflowAction{
		ID: publishName + "-" + schedule.Key, Workflow: publishName, Args: []any{schedule}, TaskQueue: s.queue,
		StaticSummary: fmt.Sprintf("schedule %s of binding %s", schedule.Cron, schedule.Key),
	}
	_, err := s.client.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID: schedulePrefix + schedule.Key, Spec: spec, Action: action, Overlap: enums.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL,
		CatchupWindow: catchUp,
	})
	if !errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		return err
	}
	return s.client.ScheduleClient().GetHandle(ctx, schedulePrefix+schedule.Key).Update(ctx, client.ScheduleUpdateOptions{
		DoUpdate: func(input client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
			changed := input.Description.Schedule
			changed.Spec, changed.Action = &spec, action
			return &client.ScheduleUpdate{Schedule: &changed}, nil
		},
	})
}

// Delete implements Scheduler.
func (s temporalScheduler) Delete(ctx context.Context, key string) error {
	err := s.client.ScheduleClient().GetHandle(ctx, schedulePrefix+key).Delete(ctx)
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return nil
	}
	return err
}

// firing is the argument of the publishing activity.
type firing struct {
	Schedule Schedule `json:"schedule"`
	// ID is the ID of the event, the same at every attempt.
	ID string `json:"id"`
}

// RegisterSchedules registers what the firings of NewTemporalScheduler's schedules run: a workflow of one activity that
// publishes the event.
func RegisterSchedules(registry worker.Registry, js jetstream.JetStream) {
	registry.RegisterWorkflowWithOptions(publishWorkflow, workflow.RegisterOptions{Name: publishName})
	registry.RegisterActivityWithOptions(func(ctx context.Context, fired firing) error {
		return publishFiring(ctx, js, fired)
	}, activity.RegisterOptions{Name: publishName})
}

// publishWorkflow is one firing. The event's ID is made of the time that was scheduled, so that a firing is one event
// however often it is tried.
func publishWorkflow(ctx workflow.Context, schedule Schedule) error {
	at, found := workflow.GetTypedSearchAttributes(ctx).
		GetTime(temporal.NewSearchAttributeKeyTime("TemporalScheduledStartTime"))
	if !found {
		at = workflow.GetInfo(ctx).WorkflowStartTime
	}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 200 * time.Millisecond,
			MaximumInterval: 30 * time.Second,
		},
	})
	return workflow.ExecuteActivity(ctx, publishName, firing{Schedule: schedule, ID: firingID(schedule.Key, at)}).
		Get(ctx, nil)
}

// firingID names the event of one firing; a dash in a row or at the beginning never occurs in it, so that it shows in
// the run's name.
func firingID(key string, at time.Time) string {
	return key + "-" + at.UTC().Format("2006-01-02T15:04:05Z")
}

// publishFiring publishes the event of one firing.
func publishFiring(ctx context.Context, js jetstream.JetStream, fired firing) error {
	message := nats.NewMsg(fired.Schedule.Subject)
	message.Header.Set(wire.IDHeader, fired.ID)
	message.Data = fired.Schedule.Input
	if len(message.Data) == 0 {
		message.Data = json.RawMessage("{}")
	}
	if _, err := js.PublishMsg(ctx, message, jetstream.WithMsgID(fired.ID),
		jetstream.WithExpectStream(wire.EventStream)); err != nil {
		return fmt.Errorf("publish event %s: %w", fired.ID, err)
	}
	return nil
}
