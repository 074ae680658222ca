package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// publishWithin triggers a pipeline with a budget.
func (e *engine) publishWithin(pipeline, id string, input any, budget quantity.Money) (run string) {
	e.t.Helper()
	encoded, err := json.Marshal(input)
	if err != nil {
		e.t.Fatal(err)
	}
	published, err := e.client.Publish(e.t.Context(), web.Event{Pipeline: pipeline, ID: id, Input: encoded, Goal: &predictor.Goal{Budget: budget}})
	if err != nil {
		e.t.Fatal(err)
	}
	return published.Run
}

func TestABudgetBoundsARun(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--host-price", "3.6")
	wide := e.publishWithin("fan", "wide", fanInput{Shards: 60, Milliseconds: 20}, quantity.USD)
	succeed[fanResult](e, wide, 2*time.Minute).check(t, 60)
	cost := e.wait(wide, time.Second).Totals.Cost
	narrow := e.publishWithin("fan", "narrow", fanInput{Shards: 60, Milliseconds: 20}, cost/3)
	view := e.wait(narrow, 2*time.Minute)
	if view.State != predictor.RunFailed || !strings.Contains(view.Error, "--budget") || view.Totals.Cost > cost/3+cost/10 {
		t.Errorf("a third of the %s that it costs: got %s for %s: %s; want it to fail within that", cost, view.State, view.Totals.Cost, view.Error)
	}
	t.Logf("wide %s, narrow %s of %s: %s", cost, view.Totals.Cost, cost/3, view.Error)
	e.stop()
}
