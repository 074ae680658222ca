package engine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// publishWithin triggers a pipeline with a budget.
func (e *testEngine) publishWithin(pipeline, id string, input any, budget quantity.Money) (run string) {
	e.t.Helper()
	encoded, err := json.Marshal(input)
	if err != nil {
		e.t.Fatal(err)
	}
	published, err := e.client.Publish(e.t.Context(),
		web.Event{Pipeline: pipeline, ID: id, Input: encoded, Goal: &predictor.Goal{Budget: budget}})
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
	budget := cost / 100 // a warm run costs less than the first, but not that much
	narrow := e.publishWithin("fan", "narrow", fanInput{Shards: 60, Milliseconds: 20}, budget)
	view := e.wait(narrow, 2*time.Minute)
	done := 0
	for _, stage := range view.Stages {
		done += stage.Done
	}
	if view.State != predictor.RunFailed || !strings.Contains(view.Error, "--budget") || done >= 60 {
		t.Errorf("a budget of %s: got %s after %d tasks for %s: %s; want it to end before its 60 are done",
			budget, view.State, done, view.Totals.Cost, view.Error)
	}
	e.stop()
}

// TestOverheadOfAWideBudget runs 10,000 shards with a budget that bounds nothing and without one, in turn.
func TestOverheadOfAWideBudget(t *testing.T) {
	needMeasure(t)
	const shards, rounds = 10_000, 3
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--host-price", "3.6")
	succeed[fanResult](e, e.publish("fan", "warm", fanInput{Shards: 500}), 2*time.Minute).check(t, 500)
	var ratios []float64
	for i := range rounds {
		timed := func(run string) float64 {
			began := time.Now()
			succeed[fanResult](e, run, 10*time.Minute).check(t, shards)
			return time.Since(began).Seconds()
		}
		free := timed(e.publish("fan", fmt.Sprintf("free%d", i), fanInput{Shards: shards}))
		bound := timed(e.publishWithin("fan", fmt.Sprintf("bound%d", i), fanInput{Shards: shards}, 1000*quantity.USD))
		t.Logf("10,000 shards: %.1f s without a budget, %.1f s with a wide one", free, bound)
		ratios = append(ratios, bound/free)
	}
	slices.Sort(ratios)
	t.Logf("the median ratio is %.3f", ratios[rounds/2])
}
