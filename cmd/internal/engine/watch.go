package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

const (
	// watchEvery is how often it is asked how the runs that go on will end.
	watchEvery = time.Second
	// alertsKept is how many alerts are shown, and remembered over a restart.
	alertsKept = 1000
)

// watchOver reconciles what is told of runs with Temporal and watches the goals of those that go on, once all that
// happened before is known: else runs of yesterday would seem to go on, long past their deadlines.
func (e *Engine) watchOver(ctx context.Context) {
	if e.observer.whole(ctx) != nil {
		return
	}
	e.learnAlerts(ctx)
	watches := alerting.Resume(e.alerts.Recent(alertsKept))
	e.findLost(ctx)
	reconciler := newReconciler(e)
	over := reconciler.first(ctx)
	var reconciling sync.WaitGroup
	reconciling.Go(func() { reconciler.run(ctx) })
	e.watchGoals(ctx, watches, over)
	reconciling.Wait()
}

// lookAhead keeps up what is expected of runs while another server leads, until ctx ends: who leads does so as it
// watches over goals.
func (e *Engine) lookAhead(ctx context.Context) {
	if e.observer.whole(ctx) != nil {
		return
	}
	for looks := 0; wait.For(ctx, watchEvery); looks++ {
		if e.lead.leads() {
			continue
		}
		e.observer.pass(e.now())
		if hosts, err := e.livingHosts(ctx); err == nil {
			e.observer.readings(e.snapshot(hosts), looks)
		}
	}
}

// watchGoals asks again and again how the runs that go on will end, and tells of goals at risk, until ctx ends. Of the
// runs that are over nothing is told, whatever the ledger says of them yet.
func (e *Engine) watchGoals(ctx context.Context, watches map[string]alerting.Watch, over map[string]bool) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	asked := asking{}
	for looks := 0; ; looks++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		e.observer.pass(e.now())
		hosts, err := e.livingHosts(ctx)
		if err != nil {
			e.logger.DebugContext(ctx, "look at the hosts for forecasts", "error", err)
			continue
		}
		snapshot := e.snapshot(hosts)
		going, goals := map[string]alerting.Watch{}, map[string]bool{}
		readings := e.observer.readings(snapshot, looks)
		asked.ask(readings, looks, len(hosts) > 0, func(run string, goal predictor.Goal) whatif.Answer {
			e.observer.mu.Lock()
			job := e.observer.state.Prospect(run, goal, snapshot)
			e.observer.mu.Unlock()
			return whatif.Of(job)
		})
		for _, reading := range readings {
			goals[reading.Run] = true
			if over[reading.Run] {
				continue
			}
			watch, alert, due := alerting.Next(watches[reading.Run], reading)
			going[reading.Run] = watch
			if due {
				e.logger.WarnContext(ctx, "a goal", "run", alert.Run, "kind", string(alert.Kind), "message", alert.Message)
				e.alert(alert)
			}
		}
		watches = going
		maps.DeleteFunc(over, func(run string, _ bool) bool { // the ledger has heard; the same ID may start again
			_, still := goals[run]
			return !still
		})
	}
}

// What is asked of frontiers: at most so many in a look, since each takes some ten milliseconds, and again after so
// many looks where nothing was known, or no plan met the goal.
const (
	frontiersAtOnce = 8
	frontierAgain   = 10
)

// asking is for which goals of runs it was asked whether any plan meets them, by run.
type asking map[string]askedGoal

// askedGoal is a goal that was asked about at a look; settled says that a plan meets it, unmet that none did.
type askedGoal struct {
	goal    predictor.Goal
	look    int
	settled bool
	unmet   bool
}

// ask notes in readings whether a plan meets the goal: of runs whose goal is new, and again of those of which that was
// not known or no plan did. Those that have waited longest come first. Without hosts, as in the first looks of an
// engine whose hosts have yet to come back, that no plan meets a goal is noted only when it is found again.
func (a asking) ask(
	readings []alerting.Reading, look int, hosts bool, frontier func(run string, goal predictor.Goal) whatif.Answer,
) {
	going := map[string]bool{}
	var due []*alerting.Reading
	for i := range readings {
		r := &readings[i]
		going[r.Run] = true
		before, known := a[r.Run]
		if !known || before.goal != r.Goal || !before.settled && look-before.look >= frontierAgain {
			due = append(due, r)
		}
	}
	waits := func(r *alerting.Reading) int { // since which look
		if before, known := a[r.Run]; known && before.goal == r.Goal {
			return before.look
		}
		return -1
	}
	slices.SortStableFunc(due, func(one, other *alerting.Reading) int { return cmp.Compare(waits(one), waits(other)) })
	for _, r := range due[:min(len(due), frontiersAtOnce)] {
		answer, before := frontier(r.Run, r.Goal), a[r.Run]
		promise := answer.Promise
		met := promise != nil && promise.Met
		a[r.Run] = askedGoal{r.Goal, look, met, promise != nil && !met}
		switch again := before.unmet && before.goal == r.Goal; {
		case promise == nil: // nothing is known
		case met:
			r.Asked = true
		case hosts || again:
			r.Asked, r.Impossible = true, answer.Verdict()
		}
	}
	maps.DeleteFunc(a, func(run string, _ askedGoal) bool { return !going[run] })
}

// forecastsAtOnce is how many runs are looked at before others may look and what happens is taken in, and
// forecastsInTurn how many are forecast each time: a forecast takes about half a millisecond.
const (
	forecastsAtOnce = 8
	forecastsInTurn = 256
)

// readings forecasts the runs that go on, of many some at each look, and returns what is expected of all that have a
// deadline or a budget.
func (o *observer) readings(snapshot predictor.Snapshot, look int) (readings []alerting.Reading) {
	going := o.going()
	turns := (len(going) + forecastsInTurn - 1) / forecastsInTurn
	for i := 0; i < len(going); i += forecastsAtOnce {
		due := i/forecastsAtOnce%turns == look%turns
		readings = append(readings, o.read(going[i:min(i+forecastsAtOnce, len(going))], due, snapshot)...)
	}
	return readings
}

// read is readings of some runs, which are forecast where that is due.
func (o *observer) read(runs []string, due bool, snapshot predictor.Snapshot) (readings []alerting.Reading) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, run := range runs {
		pipeline, goal, going := o.ledger.Goal(run)
		if !going {
			continue // it has just ended
		}
		if due {
			if forecast, known := o.state.Forecast(run, snapshot.Now); known {
				o.ledger.Forecast(run, snapshot.Now, forecast)
			}
		}
		if goal.Deadline > 0 || goal.Budget > 0 {
			reading := alerting.Read(pipeline, o.state.Outlook(run, goal, snapshot))
			reading.Stopped = o.ledger.Stopped(run)
			readings = append(readings, reading)
		}
	}
	return readings
}

// Alerts returns the latest alerts.
func (e *Engine) Alerts(_ context.Context, limit int) ([]alerting.Alert, error) {
	return e.alerts.Recent(limit), nil
}
