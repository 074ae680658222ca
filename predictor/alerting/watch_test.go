package alerting_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// moment is one row of a scenario: a reading and the alert that it leads to. The run has a deadline of 100 s and a
// budget of $1 unless goal says otherwise; costs are in dollars.
type moment struct {
	elapsed float64
	finish  predictor.Interval // the zero Interval with a zero cost is not known
	cost    predictor.Interval
	spent   float64
	goal    *predictor.Goal
	asked   bool   // whether any plan meets the goal, and
	never   string // why none does
	sent    string // the ID of the alert without the run; empty when none is sent
	says    string // part of its message
}

func mid(v float64) predictor.Interval {
	return predictor.Interval{Low: 0.9 * v, Mid: v, High: 1.1 * v}
}

func limits(d, b float64) *predictor.Goal {
	return &predictor.Goal{Deadline: time.Duration(d * float64(time.Second)), Budget: quantity.USD.Times(b)}
}

func (m moment) reading() alerting.Reading {
	r := alerting.Reading{
		Run: "r", Pipeline: "digits", At: epoch.Add(time.Duration(m.elapsed * float64(time.Second))), Goal: *limits(100, 1),
		Elapsed: m.elapsed,
		Spent:   quantity.USD.Times(m.spent), Finish: m.finish, Cost: m.cost,
		Known: m.finish != predictor.Interval{} || m.cost != predictor.Interval{},
		Asked: m.asked, Impossible: m.never,
	}
	if m.goal != nil {
		r.Goal = *m.goal
	}
	return r
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, scenario := range []struct {
		name    string
		moments []moment
	}{
		{"a run that keeps its goal sends nothing", []moment{
			{elapsed: 1, finish: mid(90), cost: mid(0.5)},
			{elapsed: 50, finish: mid(95), cost: mid(0.8)},
			{elapsed: 95, finish: mid(96), cost: mid(0.99), spent: 0.98},
		}},
		{"the middle past the deadline twice in a row sends one alert", []moment{
			{elapsed: 1, finish: mid(105)},
			{
				elapsed: 2, finish: mid(105), sent: "deadline_at_risk/1",
				says: "run r is expected to end after 1m45s (1m35s to 1m56s), past its deadline of 1m40s; 2s have passed; give " +
					"it more time: spillway goal r --deadline 2m10s",
			},
			{elapsed: 3, finish: mid(106)},
			{elapsed: 4, finish: mid(150)},
		}},
		{"the middle past the deadline every other time sends nothing", []moment{
			{elapsed: 1, finish: mid(105)},
			{elapsed: 2, finish: mid(99)},
			{elapsed: 3, finish: mid(105)},
			{elapsed: 4, finish: mid(99)},
		}},
		{"even the low end past the deadline sends at once", []moment{
			{elapsed: 1, finish: predictor.Interval{Low: 101, Mid: 110, High: 120}, sent: "deadline_at_risk/1"},
		}},
		{"a deadline that has passed sends, whatever is expected", []moment{
			{elapsed: 99, finish: mid(99.5)}, {
				elapsed: 100, finish: mid(99), sent: "deadline_at_risk/1",
				says: "is past its deadline of 1m40s",
			}, {elapsed: 200, finish: mid(90)},
		}},
		{"a deadline that has passed sends when nothing is expected", []moment{
			{elapsed: 99}, {elapsed: 101, sent: "deadline_at_risk/1", says: "how long the rest takes is not known"},
		}},
		{"the budget goes as the deadline does", []moment{
			{elapsed: 1, finish: mid(50), cost: mid(1.05)},
			{
				elapsed: 2, finish: mid(50), cost: mid(1.05), spent: 0.25, sent: "budget_at_risk/1",
				says: "run r is expected to cost $1.05 ($0.9450 to $1.16), more than its budget of $1.00; $0.2500 is spent; give " +
					"it more: spillway goal r --budget 1.3",
			},
			{elapsed: 3, finish: mid(50), cost: mid(0.97)},
			{
				elapsed: 4, finish: mid(50), cost: mid(0.94), sent: "recovered/1",
				says: "is expected to cost $0.9400 ($0.8460 to $1.03) again, within its budget of $1.00",
			},
		}},
		{"a budget that is spent sends at once, and never recovers by itself", []moment{
			{elapsed: 1, spent: 1},
			{
				elapsed: 2, spent: 1.01, sent: "budget_at_risk/1",
				says: "has spent $1.01, more than its budget of $1.00, and what the rest costs is not known; give it more: " +
					"spillway goal r --budget 2.3",
			},
			{elapsed: 3, spent: 1.01, finish: mid(50), cost: mid(0.5)},
		}},
		{"a goal that no plan meets is told at once, and not that it is at risk besides", []moment{
			{
				elapsed: 1, asked: true, never: "no plan does", finish: mid(200), sent: "goal_impossible/1",
				says: "run r: no plan does",
			},
			{elapsed: 2, finish: mid(200)},
			{elapsed: 3, finish: predictor.Interval{Low: 150, Mid: 200, High: 250}},
			{elapsed: 11, asked: true, never: "no plan does", finish: mid(200)},
			{elapsed: 101, finish: mid(200), sent: "deadline_at_risk/1", says: "is past its deadline"},
		}},
		{"another goal is asked about anew", []moment{
			{elapsed: 1, asked: true, never: "no plan does", sent: "goal_impossible/1"},
			{elapsed: 2, goal: limits(110, 1), asked: true, never: "none still", sent: "goal_impossible/2", says: "none still"},
			{
				elapsed: 3, goal: limits(500, 1), asked: true, sent: "recovered/1", finish: mid(200),
				says: "has a plan that meets its goal",
			},
			{elapsed: 4, goal: limits(500, 1), finish: mid(200)},
			{
				elapsed: 5, goal: limits(150, 1), finish: predictor.Interval{Low: 151, Mid: 200, High: 250},
				sent: "deadline_at_risk/1",
			},
		}},
		{"what was told of one goal is not said of another, also where that is asked about later", []moment{
			{elapsed: 1, asked: true, never: "no plan does", sent: "goal_impossible/1"},
			{elapsed: 2, goal: limits(110, 1)},
			{elapsed: 3, goal: limits(110, 1), finish: mid(200), sent: "deadline_at_risk/1"},
			{elapsed: 4, goal: limits(110, 1), asked: true, never: "none still", sent: "goal_impossible/2", says: "none still"},
			{elapsed: 14, goal: limits(110, 1), asked: true, never: "none still"},
		}},
		{"both at once are told one after the other", []moment{
			{elapsed: 1, finish: mid(200), cost: mid(2), sent: "deadline_at_risk/1", says: "or more than its budget of $1.00"},
			{elapsed: 2, finish: mid(200), cost: mid(2), sent: "budget_at_risk/1"},
			{elapsed: 3, finish: mid(200), cost: mid(2)},
			{elapsed: 4, finish: mid(50), cost: mid(0.5), sent: "recovered/1", says: "within its deadline"},
			{elapsed: 5, finish: mid(50), cost: mid(0.5), sent: "recovered/2", says: "within its budget"},
			{elapsed: 6, finish: mid(50), cost: mid(0.5)},
		}},
		{"a run that gets late again is told again, with the next number", []moment{
			{elapsed: 1, finish: mid(200), sent: "deadline_at_risk/1"},
			{
				elapsed: 2, finish: mid(94), sent: "recovered/1",
				says: "is expected to end after 1m34s (1m25s to 1m43s) again, within its deadline of 1m40s",
			},
			{elapsed: 3, finish: mid(101)},
			{elapsed: 4, finish: mid(101), sent: "deadline_at_risk/2"},
		}},
		{"a later deadline recovers without the margin", []moment{
			{elapsed: 1, finish: mid(200), sent: "deadline_at_risk/1"},
			{elapsed: 2, finish: mid(200), goal: limits(201, 1), sent: "recovered/1"},
			{elapsed: 3, finish: mid(200), goal: limits(201, 1)},
		}},
		{"a deadline that is dropped recovers", []moment{
			{elapsed: 101, sent: "deadline_at_risk/1"}, {
				elapsed: 102, goal: limits(0, 1), sent: "recovered/1",
				says: "run r has no deadline any more",
			}, {elapsed: 103, goal: limits(0, 1)},
		}},
		{"a later deadline recovers when nothing is expected", []moment{
			{elapsed: 101, sent: "deadline_at_risk/1"}, {
				elapsed: 102, goal: limits(300, 1), sent: "recovered/1",
				says: "run r has a new deadline, 5m; 1m42s have passed",
			},
		}},
		{"a later deadline that is missed as well is told anew", []moment{
			{elapsed: 1, finish: mid(200), sent: "deadline_at_risk/1"},
			{elapsed: 2, finish: mid(200), goal: limits(190, 1)},
			{elapsed: 3, finish: mid(200), goal: limits(190, 1), sent: "deadline_at_risk/2", says: "past its deadline of 3m10s"},
		}},
		{"a goal given to a run without one counts from then on", []moment{
			{elapsed: 1, finish: mid(200), goal: limits(0, 0)},
			{elapsed: 2, finish: mid(200), goal: limits(0, 0)},
			{elapsed: 3, finish: mid(105), goal: limits(100, 0)},
			{elapsed: 4, finish: mid(105), goal: limits(100, 0), sent: "deadline_at_risk/1"},
		}},
		{"a changed budget does not touch the doubts about the deadline", []moment{
			{elapsed: 1, finish: mid(105)}, {elapsed: 2, finish: mid(105), goal: limits(100, 2), sent: "deadline_at_risk/1"},
		}},
		{"a reading without a forecast keeps the doubts", []moment{
			{elapsed: 1, finish: mid(105)}, {elapsed: 2}, {elapsed: 3, finish: mid(105), sent: "deadline_at_risk/1"},
		}},
	} {
		t.Run(scenario.name, func(t *testing.T) {
			t.Parallel()
			var w alerting.Watch
			for _, m := range scenario.moments {
				var alert alerting.Alert
				var sent bool
				w, alert, sent = alerting.Next(w, m.reading())
				want := ""
				if m.sent != "" {
					want = "r/" + m.sent
				}
				if alert.ID != want || sent != (want != "") || !strings.Contains(alert.Message, m.says) {
					t.Errorf("at %v s: alert %q %q, want %q %q", m.elapsed, alert.ID, alert.Message, want, m.says)
				}
				if r := m.reading(); sent && (alert.Run != "r" || alert.Pipeline != "digits" || alert.At != r.At ||
					alert.Goal != r.Goal || alert.FinishSeconds != r.Finish || alert.CostUSD != r.Cost) {
					t.Errorf("at %v s: %+v does not tell its reading", m.elapsed, alert)
				}
			}
		})
	}
}

func TestNoiseAroundTheGoalSendsOneAlert(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w alerting.Watch
		sent := 0
		for i, noise := range rapid.SliceOfN(rapid.Float64Range(-4.9, 4.9), 1, 200).Draw(t, "noise") {
			var told bool
			w, _, told = alerting.Next(w, moment{elapsed: float64(i) / 10, finish: mid(100 + noise)}.reading())
			if told {
				sent++
			}
		}
		if sent > 1 {
			t.Fatalf("%d alerts", sent)
		}
	})
}

// TestEveryKindTakesTurns holds that no risk is told twice without a recovery or a new goal between, that every
// recovery follows a risk, and that IDs never repeat.
func TestEveryKindTakesTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w alerting.Watch
		seen, risks, recoveries := map[string]bool{}, 0, 0
		for i := range rapid.IntRange(1, 100).Draw(t, "readings") {
			var alert alerting.Alert
			var sent bool
			w, alert, sent = alerting.Next(w, moment{
				elapsed: float64(i), finish: mid(rapid.Float64Range(50, 150).Draw(t, "finish")),
				cost: mid(rapid.Float64Range(0.5, 1.5).Draw(t, "cost")),
			}.reading())
			if !sent {
				continue
			}
			if seen[alert.ID] || alert.Message == "" {
				t.Fatalf("alert %q %q", alert.ID, alert.Message)
			}
			seen[alert.ID] = true
			if alert.Kind == alerting.KindRecovered {
				recoveries++
			} else {
				risks++
			}
			if open := risks - recoveries; open < 0 || open > 2 {
				t.Fatalf("%d risks and %d recoveries", risks, recoveries)
			}
		}
	})
}

func TestAWatchResumesFromWhatWasSent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w alerting.Watch
		var alerts []alerting.Alert
		for i := range rapid.IntRange(0, 60).Draw(t, "readings") {
			var alert alerting.Alert
			var sent bool
			w, alert, sent = alerting.Next(w, moment{
				elapsed: float64(i), finish: mid(rapid.SampledFrom([]float64{80, 200}).Draw(t, "finish")),
				cost: mid(rapid.SampledFrom([]float64{0.5, 2}).Draw(t, "cost")),
			}.reading())
			if sent {
				alerts = append(alerts, alert)
			}
		}
		resumed := alerting.Resume(rapid.Permutation(alerts).Draw(t, "order"))["r"]
		// From here on, both tell the same: these readings are far from the limits, so that the doubts that were lost do not
		// count.
		for i, finish := range []float64{200, 200, 80, 80, 200, 200, 80, 80} {
			m := moment{elapsed: 60 + float64(i), finish: mid(finish), cost: mid(finish / 100)}
			var a, b alerting.Alert
			w, a, _ = alerting.Next(w, m.reading())
			resumed, b, _ = alerting.Next(resumed, m.reading())
			if diff := cmp.Diff(a, b); diff != "" && len(alerts) > 0 {
				t.Fatalf("after %+v (-went on +resumed):\n%s", alerts, diff)
			}
		}
	})
}

func TestAReadingIsWhatTheNextTickWillDo(t *testing.T) {
	t.Parallel()
	o := predictor.Outlook{
		Run: "r", Goal: *limits(100, 1), At: epoch, Elapsed: 7, Spent: 0.25, Known: true,
		Chosen:  predictor.Alternative{FinishSeconds: mid(90), CostUSD: mid(0.5)},
		Present: predictor.Alternative{FinishSeconds: mid(900), CostUSD: mid(5)},
	}
	want := alerting.Reading{
		Run: "r", Pipeline: "digits", At: epoch, Goal: o.Goal, Elapsed: 7, Spent: quantity.USD / 4, Known: true,
		Finish: mid(90), Cost: mid(0.5),
	}
	if diff := cmp.Diff(want, alerting.Read("digits", o)); diff != "" {
		t.Errorf("reading (-want +got):\n%s", diff)
	}
}

func ExampleNext() {
	var watch alerting.Watch
	for elapsed := range 3 {
		var alert alerting.Alert
		var sent bool
		watch, alert, sent = alerting.Next(watch, alerting.Reading{
			Run: "digits-7", Goal: predictor.Goal{Deadline: 2 * time.Minute}, Elapsed: float64(elapsed), Known: true,
			Finish: predictor.Interval{Low: 115, Mid: 130, High: 145},
		})
		if sent {
			fmt.Println(strings.ReplaceAll(alert.ID+" "+alert.Message, "; ", ";\n"))
		}
	}
	// Output:
	// digits-7/deadline_at_risk/1 run digits-7 is expected to end after 2m10s (1m55s to 2m25s), past its deadline of 2m;
	// 1s have passed;
	// give it more time: spillway goal digits-7 --deadline 2m40s
}

// A run that is stopped at its budget costs less than was expected because it does less: that is no recovery.
func TestABudgetThatStopsARunDoesNotRecover(t *testing.T) {
	t.Parallel()
	reading := moment{elapsed: 1, finish: mid(50), cost: mid(2)}.reading()
	w, alert, sent := alerting.Next(alerting.Watch{}, reading)
	if !sent || alert.Kind != alerting.KindBudgetAtRisk {
		t.Fatalf("got %+v, want an alert about the budget", alert)
	}
	reading.Cost, reading.Stopped = mid(0.5), true
	if w, alert, sent = alerting.Next(w, reading); sent {
		t.Errorf("a run that was stopped is told to have recovered: %+v", alert)
	}
	reading.Goal.Budget *= 3
	if _, alert, sent = alerting.Next(w, reading); !sent || alert.Kind != alerting.KindRecovered {
		t.Errorf("with a larger budget: got %+v, want that it recovers", alert)
	}
}

// TestACostThatLeavesTasksOutIsNoAllClear has a budget that was at risk, and a cost of what is spent only.
func TestACostThatLeavesTasksOutIsNoAllClear(t *testing.T) {
	t.Parallel()
	reading := func(cost, budget float64, unpriced bool) alerting.Reading {
		r := moment{elapsed: 5, finish: mid(50), cost: mid(cost), goal: limits(100, budget)}.reading()
		r.Unpriced = unpriced
		return r
	}
	var w alerting.Watch
	for i, row := range []struct {
		reading alerting.Reading
		sent    string
		says    string
	}{
		{reading: reading(2, 1, false), sent: "r/budget_at_risk/1"},
		{reading: reading(0.1, 1, true)},
		{reading: reading(0.1, 1, true)},
		{reading: reading(0.5, 1, false), sent: "r/recovered/1", says: "again, within its budget"},
		{reading: reading(2, 1, false), sent: "r/budget_at_risk/2"},
		{reading: reading(0.1, 3, true), sent: "r/recovered/2", says: "has a new budget"},
	} {
		var alert alerting.Alert
		w, alert, _ = alerting.Next(w, row.reading)
		if alert.ID != row.sent || !strings.Contains(alert.Message, row.says) {
			t.Errorf("reading %d sends %q: %q; want %q with %q", i, alert.ID, alert.Message, row.sent, row.says)
		}
	}
}
