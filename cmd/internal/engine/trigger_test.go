package engine_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// runsOf lists the runs of a pipeline.
func (e *testEngine) runsOf(pipeline string) (running, ended int) {
	e.t.Helper()
	runs, err := e.client.Runs(e.t.Context(), web.RunQuery{Limit: 1000, Pipeline: pipeline})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, run := range runs {
		if run.State == predictor.RunRunning {
			running++
		} else {
			ended++
		}
	}
	return running, ended
}

func TestWhatIsNotThereIsSaidOnce(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	_, replayErr := e.client.Replay(t.Context(), 99)
	for _, test := range []struct {
		err        error
		text, hint string
	}{
		{replayErr, "there is no dead letter 99", "`spillway dead list` shows the sequences"},
		{e.client.Unbind(t.Context(), "nosuch"), `there is no binding "nosuch"`, "`spillway bindings` lists the keys"},
	} {
		refused, ok := errors.AsType[*web.Error](test.err)
		if !ok || refused.Status != http.StatusNotFound || refused.Message != test.text || refused.Hint != test.hint {
			t.Errorf("got %v, want 404, %q and the hint %q", test.err, test.text, test.hint)
		}
	}
}

func TestAScheduleStartsRunsUntilItIsUnbound(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	bound, err := e.client.Bind(t.Context(), wire.Binding{
		Pipeline: "echo", Schedule: "@every 1s",
		Input: json.RawMessage(`{"index":7}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, ended := e.runsOf("echo"); ended >= 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a schedule of one run a second started fewer than two in a minute")
		}
	}
	if err := e.client.Unbind(t.Context(), bound.Key); err != nil {
		t.Error(err)
	}
	bindings, err := e.client.Bindings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, binding := range bindings {
		if binding.Key == bound.Key {
			t.Errorf("the binding is still there: %+v", binding)
		}
	}
}

func TestACapHoldsEventsBackAndEveryRunTellsItsEnd(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	if _, err := e.client.Bind(t.Context(), wire.Binding{Pipeline: "count", Subject: "events.capped", MaxRuns: 1}); err !=
		nil {
		t.Fatal(err)
	}
	connection := e.dialNATS()
	defer connection.Close()
	told := make(chan *nats.Msg, 16)
	if _, err := connection.ChanSubscribe(wire.DoneSubject("count"), told); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c"} {
		e.publishRaw("events.capped", id, `{"steps":10,"milliseconds":20}`)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		running, ended := e.runsOf("count")
		if running > 1 {
			t.Fatalf("%d runs go on at a time, above the cap of 1", running)
		}
		if ended == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d of 3 runs have ended", ended)
		}
	}
	for range 3 {
		select {
		case message := <-told:
			var done wire.Done
			if err := json.Unmarshal(message.Data, &done); err != nil || done.State != predictor.RunSucceeded ||
				done.Event == "" {
				t.Errorf("completion event %s: %v", message.Data, err)
			}
		case <-time.After(patience):
			t.Fatal("a run ended without a completion event")
		}
	}
}
