package client

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// lived gives the run digits-1 two attempts, of which one goes on, and ends a second run.
func lived(engine *webtest.Engine) {
	engine.Clock = func() time.Time { return begin.Add(time.Minute) }
	size := quantity.Size{CPU: 500, Memory: 64 << 20}
	engine.Apply("digits-1", predictor.Scheduled{Run: "digits-1", Stage: stage, Tasks: 2, At: begin},
		predictor.AttemptStarted{
			Run: "digits-1", Stage: stage, Task: "b", Attempt: 1, Venue: predictor.Function, Grant: size,
			At: begin.Add(2 * time.Second),
		},
		predictor.Record{
			Run: "digits-1", Pipeline: "digits", Stage: stage, Task: "a", Attempt: 1, Venue: predictor.Pool, Host: "h",
			Outcome: predictor.Succeeded, Grant: size, Cost: 5,
			ScheduledAt: begin, Queue: time.Second, At: begin.Add(3 * time.Second), Usage: quantity.Usage{Wall: 2 * time.Second},
		})
	engine.Apply("digits-2", predictor.RunStarted{
		Run: "digits-2", Pipeline: "digits", App: stage.App, Build: stage.Build,
		At: begin,
	},
		predictor.RunEnded{Run: "digits-2", State: predictor.RunFailed, At: begin.Add(time.Minute)})
	engine.Alert(alerting.Alert{ID: "a", Run: "digits-1", Kind: alerting.KindBudgetAtRisk, At: begin})
}

// TestAccountsComeBackAsTheEngineGivesThem asks the engine the same without HTTP.
func TestAccountsComeBackAsTheEngineGivesThem(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	lived(engine)
	ctx := t.Context()
	const run = "digits-1"
	attempts := web.AttemptQuery{Run: run, Stage: stage.Name, Outcome: ledger.Running, Limit: 7}
	bill := ledger.BillQuery{By: ledger.ByRun, Since: begin, Until: begin.Add(time.Hour), Run: run, Pipeline: "digits"}
	for name, ask := range map[string]func() (got, want any, err, none error){
		"Timeline": func() (any, any, error, error) {
			got, err := client.Timeline(ctx, run, 50)
			want, none := engine.Timeline(ctx, run, 50)
			return got, want, err, none
		},
		"Attempts": func() (any, any, error, error) {
			got, err := client.Attempts(ctx, attempts)
			want, none := engine.Attempts(ctx, attempts)
			return got, want, err, none
		},
		"Allocation": func() (any, any, error, error) {
			got, err := client.Allocation(ctx, run, 20)
			want, none := engine.Allocation(ctx, run, 20)
			return got, want, err, none
		},
		"Breakdown": func() (any, any, error, error) {
			got, err := client.Breakdown(ctx, run)
			want, none := engine.Breakdown(ctx, run)
			return got, want, err, none
		},
		"Diff": func() (any, any, error, error) {
			got, err := client.Diff(ctx, run, "digits-2")
			want, none := engine.Diff(ctx, run, "digits-2")
			return got.A.Run + got.B.Run, want.A.Run + want.B.Run, err, none
		},
		"Cost": func() (any, any, error, error) {
			got, err := client.Cost(ctx, bill)
			want, none := engine.Bill(ctx, bill)
			return got, want, err, none
		},
		"Prices": func() (any, any, error, error) {
			got, err := client.Prices(ctx)
			return got, pricing.Default().Rows(), err, nil
		},
		"Alerts": func() (any, any, error, error) {
			got, err := client.Alerts(ctx, 5)
			want, none := engine.Alerts(ctx, 5)
			return got, want, err, none
		},
	} {
		got, want, err, none := ask()
		if err := errors.Join(err, none); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-engine +client):\n%s", name, diff)
		}
	}
	if curves, err := client.Curves(ctx, run); err != nil || len(curves) != 0 {
		t.Errorf("Curves = %v, %v; want none", curves, err)
	}
	if trainings, err := client.Trainings(ctx, run); err != nil || len(trainings) != 0 {
		t.Errorf("Trainings = %v, %v; want none", trainings, err)
	}
	told := predictor.Training{
		Executor: "torch", Steps: 2, TotalSteps: 3,
		Parts: []predictor.TrainingPart{{Device: "cpu:0", PeakBytes: 5}},
	}
	engine.Apply(run, predictor.Sampled{
		Run: run, Stage: predictor.StageID{App: "digits", Build: "b", Name: "fit"},
		Task: "fit-0", Attempt: 1, At: time.Now(), Training: &told,
	})
	if trainings, err := client.Trainings(ctx, run); err != nil || len(trainings) != 1 ||
		!cmp.Equal(told, trainings[0].Training) {
		t.Errorf("Trainings = %+v, %v; want %+v", trainings, err, told)
	}
	if tunings, err := client.Tunings(ctx, run); err != nil || len(tunings) != 0 {
		t.Errorf("Tunings = %v, %v; want none", tunings, err)
	}
	engine.SetTunings(run, runs.Tuning{Name: "fit", Begun: 1, Trials: []runs.Trial{{Configuration: search.Configuration{
		"lr": {Number: 0.1}, "opt": {Text: "adam"},
	}, Jobs: []runs.TrialJob{{Objective: new(0.5), To: 3}}}}})
	if tunings, err := client.Tunings(ctx, run); err != nil || len(tunings) != 1 ||
		tunings[0].Trials[0].Configuration["opt"].Text != "adam" || *tunings[0].Trials[0].Jobs[0].Objective != 0.5 {
		t.Errorf("Tunings = %+v, %v", tunings, err)
	}
	if _, err := client.Tunings(ctx, "none"); !isStatus(err, 404) {
		t.Errorf("Tunings of no run: got %v, want 404", err)
	}
	if _, err := client.Trainings(ctx, "none"); !isStatus(err, 404) {
		t.Errorf("Trainings of no run: got %v, want 404", err)
	}
	if plan, err := client.Plan(ctx); err != nil || !cmp.Equal(plan, predictor.Plan{}) {
		t.Errorf("Plan = %+v, %v; want none", plan, err)
	}
	var text bytes.Buffer
	if err := client.CostCSV(ctx, bill, &text); err != nil || !strings.HasPrefix(text.String(), "run,attempts,") ||
		!strings.Contains(text.String(), "\ndigits-1,") {
		t.Errorf("CostCSV wrote %q, %v", text.String(), err)
	}
	if err := client.CostCSV(ctx, ledger.BillQuery{Run: "none"}, &text); !isStatus(err, 404) {
		t.Errorf("CostCSV of no run: got %v, want 404", err)
	}
}

func isStatus(err error, status int) bool {
	refused, ok := errors.AsType[*web.Error](err)
	return ok && refused.Status == status
}

func TestSteeringReachesTheEngine(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	lived(engine)
	engine.OnOutlook = func(run string, goal predictor.Goal) predictor.Outlook {
		return predictor.Outlook{Run: run, Goal: goal, Known: true, Feasible: goal.Budget != 1, Summary: "it costs more"}
	}
	ctx := t.Context()
	goal := predictor.Goal{Deadline: time.Hour, Budget: 2, Minimise: predictor.Latency}
	if outlook, err := client.SetGoal(ctx, "digits-1", goal); err != nil || outlook.Goal != goal {
		t.Errorf("SetGoal = %+v, %v", outlook, err)
	}
	for _, test := range []struct{ asked, want *predictor.Goal }{
		{nil, &goal},
		{&predictor.Goal{}, &predictor.Goal{}},
		{&predictor.Goal{Deadline: 1}, &predictor.Goal{Deadline: 1}},
	} {
		if outlook, err := client.Outlook(ctx, "digits-1", test.asked); err != nil || outlook.Goal != *test.want {
			t.Errorf("Outlook under %+v is about %+v, %v; want %+v", test.asked, outlook.Goal, err, *test.want)
		}
	}
	if _, err := client.SetGoal(ctx, "digits-1", predictor.Goal{Budget: 1}); !isStatus(err, 422) ||
		err.Error() != "it costs more" {
		t.Errorf("an impossible goal: got %v, want 422 and why", err)
	}
	if retried, err := client.Retry(ctx, "digits-2", web.Retry{}); err != nil || retried.Run != "digits-2-again" {
		t.Errorf("Retry = %+v, %v", retried, err)
	}
	if _, err := client.Retry(ctx, "digits-1", web.Retry{}); !isStatus(err, 409) {
		t.Errorf("a retry of a run that goes on: got %v, want 409", err)
	}
}

func TestAnEventPassesThroughWhole(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	var got web.Event
	engine.OnPublish = func(event web.Event, _ string) { got = event }
	want := web.Event{Pipeline: "digits", ID: "7", Input: []byte(`{"a":1}`), Goal: &predictor.Goal{Budget: 3}, Cache: true}
	if _, err := client.Publish(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-sent +taken):\n%s", diff)
	}
}

func TestFollowTellsAlertsOnce(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	lived(engine)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var told []string
	var raise sync.Once
	err := client.Follow(ctx, "digits-1", func(message Message) error {
		raise.Do(func() {
			engine.Alert(alerting.Alert{ID: "other", Run: "digits-2"})
			engine.Alert(alerting.Alert{ID: "b", Run: "digits-1"})
			engine.Alert(alerting.Alert{ID: "b", Run: "digits-1"})
			engine.Alert(alerting.Alert{ID: "c", Run: "digits-1"})
		})
		if message.Alert != nil {
			told = append(told, message.Alert.ID)
			if message.Alert.ID == "c" {
				return ErrStop
			}
		}
		return nil
	})
	if diff := cmp.Diff([]string{"a", "b", "c"}, told); diff != "" || err != nil {
		t.Errorf("%v; alerts told (-want +got):\n%s", err, diff)
	}
}
