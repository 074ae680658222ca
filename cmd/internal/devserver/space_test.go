package devserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/space"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// held is a workflow whose one activity writes an artifact, and whose code stops for a while when it is told to: what
// comes meanwhile Temporal keeps back from the history.
type held struct {
	store                    *artifact.Files
	written                  chan activities.Ref
	finish, stalled, release chan struct{}
}

func (h *held) workflow(ctx workflow.Context, _ string) (activities.Ref, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 10 * time.Minute})
	making := workflow.ExecuteActivity(ctx, h.activity)
	workflow.GetSignalChannel(ctx, "stall").Receive(ctx, nil)
	if !workflow.IsReplaying(ctx) {
		close(h.stalled)
		<-h.release
	}
	var ref activities.Ref
	err := making.Get(ctx, &ref)
	return ref, err
}

func (h *held) activity(ctx context.Context) (activities.Ref, error) {
	ref, err := h.store.Put(ctx, strings.NewReader("what the activity has made"))
	h.written <- ref
	<-h.finish
	return ref, err
}

// TestWhatTemporalKeepsBackFromAHistoryIsHeld collects while a workflow task is on its way: the end of an activity is
// then neither in the history nor is the activity pending any more, and its result names an artifact all the same.
func TestWhatTemporalKeepsBackFromAHistoryIsHeld(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Dir: t.TempDir(), NoUI: true})
	nc, err := s.ConnectNATS("test")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	store, err := artifact.Open(filepath.Join(dir, "artifacts"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: s.TemporalAddress(), Namespace: Namespace, Credentials: client.NewAPIKeyStaticCredentials(s.Keys().Token()),
		ConnectionOptions: client.ConnectionOptions{TLSDisabled: true}, ExternalStorage: artifact.Offload(store, 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := []byte(`{"since":"2020-01-01T00:00:00Z"}`) // nothing here is of an earlier version
	if err := os.WriteFile(filepath.Join(dir, "given-back.json"), began, 0o600); err != nil {
		t.Fatal(err)
	}
	collector, err := space.New(t.Context(), space.Options{
		StateDir: dir, Store: store, Temporal: c, JetStream: js, Chains: filepath.Join(dir, "chains"),
		Policy: retention.Policy{KeepFor: time.Hour, KeepBytes: quantity.GiB},
		Runs: func(context.Context, time.Time) ([]space.KnownRun, error) { // Temporal's list may not have it yet
			return []space.KnownRun{{Run: "held", Started: time.Now(), Told: time.Now()}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	put := func(text string) string {
		t.Helper()
		ref, err := store.Put(t.Context(), strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return ref.Digest
	}
	nobodys, inInput := put("nobody's"), put("named by the input")
	for _, digest := range []string{nobodys, inInput} { // before the attempt began, whatever the clock was turned back by
		name, then := filepath.Join(store.Dir(), digest[:2], digest[2:]), time.Now().Add(-2*time.Hour)
		if err := os.Chtimes(name, then, then); err != nil {
			t.Fatal(err)
		}
	}
	h := &held{
		store: store, written: make(chan activities.Ref, 1), finish: make(chan struct{}), stalled: make(chan struct{}),
		release: make(chan struct{}),
	}
	w := worker.New(c, "held", worker.Options{DeadlockDetectionTimeout: 10 * time.Minute})
	w.RegisterWorkflow(h.workflow)
	w.RegisterActivity(h.activity)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	large := inInput + strings.Repeat(" ", artifact.OffloadThreshold) // it is an artifact, which the history names
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: "held", TaskQueue: "held", WorkflowTaskTimeout: 2 * time.Minute,
	}, h.workflow, large)
	if err != nil {
		t.Fatal(err)
	}
	made := (<-h.written).Digest
	wanted := func(when string) {
		t.Helper()
		if _, err := collector.Collect(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		for name, digest := range map[string]string{"what its input names": inInput, "what the activity has made": made} {
			if _, err := activities.ReadAll(t.Context(), store, digest); err != nil {
				t.Fatalf("%s, %s: %v", when, name, err)
			}
		}
	}
	wanted("while the activity goes on")
	if err := c.SignalWorkflow(t.Context(), "held", "", "stall", nil); err != nil {
		t.Fatal(err)
	}
	<-h.stalled
	close(h.finish)
	for pending := 1; pending > 0; time.Sleep(10 * time.Millisecond) {
		described, err := c.DescribeWorkflowExecution(t.Context(), "held", "")
		if err != nil {
			t.Fatal(err)
		}
		pending = len(described.GetPendingActivities())
	}
	wanted("while the end of the activity is kept back")
	close(h.release)
	if err := run.Get(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wanted("after the end of the run")
	if _, err := activities.ReadAll(t.Context(), store, nobodys); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("what nobody names: %v, want that it is gone", err)
	}
}
