package trigger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

func TestAFiringPublishesOneEventHoweverOftenItIsTried(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	environment := suite.NewTestWorkflowEnvironment()
	environment.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: time.Minute}) // the machine may be busy
	environment.RegisterWorkflowWithOptions(publishWorkflow, workflow.RegisterOptions{Name: publishName})
	var ids []string
	environment.RegisterActivityWithOptions(func(_ context.Context, fired firing) error {
		if ids = append(ids, fired.ID); len(ids) == 1 {
			return errors.New("NATS is away")
		}
		return nil
	}, activity.RegisterOptions{Name: publishName})
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	key := temporal.NewSearchAttributeKeyTime("TemporalScheduledStartTime")
	if err := environment.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes(key.ValueSet(at))); err != nil {
		t.Fatal(err)
	}
	environment.ExecuteWorkflow(publishName, Schedule{
		Key: "digits-1", Cron: "@daily",
		Subject: "spillway.scheduled.digits-1",
	})
	if err := environment.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	want := []string{"digits-1-2026-01-02T03:00:00Z", "digits-1-2026-01-02T03:00:00Z"}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("IDs: -want +got:\n%s", diff)
	}
}
