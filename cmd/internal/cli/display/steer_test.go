package display_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// bill is one of two stages, with hosts that nobody held for a while.
func bill() ledger.Bill {
	return ledger.Bill{
		By: ledger.ByStage, Since: time.Date(2026, 11, 20, 9, 0, 0, 0, time.Local),
		Until:    time.Date(2026, 11, 20, 10, 0, 0, 0, time.Local),
		Attempts: 3_500_000_000, Pool: 1_500_000_000, Function: 2_000_000_000, Idle: 900_000_000, Unused: 400_000_000,
		Total: 4_400_000_000,
		Lines: []ledger.Line{
			{
				Name: "digits/score", Count: 322, Tasks: 320, Reused: 12, Held: 93 * time.Second, Pool: 500_000_000,
				Function: 2_000_000_000, Idle: 100_000_000, Total: 2_600_000_000, Wasted: 35_000_000,
			},
			{
				Name: "digits/a-stage-of-a-pipeline-with-a-very-long-name", Count: 1, Tasks: 1, Held: 9800 * time.Millisecond,
				Pool: 1_000_000_000, Idle: 400_000_000, Total: 1_400_000_000,
			},
			{Idle: 400_000_000, Total: 400_000_000},
		},
	}
}

// outlook is that of a run which goes on at the pool.
func outlook() predictor.Outlook {
	way := func(name string, finish, cost float64) predictor.Alternative {
		return predictor.Alternative{
			Name:          name,
			FinishSeconds: predictor.Interval{Low: finish * 0.9, Mid: finish, High: finish * 1.3},
			CostUSD:       predictor.Interval{Low: cost * 0.9, Mid: cost, High: cost * 1.2},
		}
	}
	o := predictor.Outlook{
		Run: "digits-7f3a9c", Goal: predictor.Goal{Deadline: 10 * time.Minute, Minimise: predictor.Cost}, At: begin,
		Elapsed: 14.2, Spent: 0.00021, Known: true, Feasible: true,
		Summary: "ends after 4m10s (3m45s to 5m25s) for $0.0120", Present: way("pool only", 700, 0.004),
		Chosen:       way("4 functions for score", 250, 0.012),
		Alternatives: []predictor.Alternative{way("4 functions for score", 250, 0.012)},
	}
	for n := range 30 {
		o.Alternatives = append(o.Alternatives, way(fmt.Sprintf("%d functions for score", n+5), 240-float64(n),
			0.013+float64(n)/1000))
	}
	return o
}

// impossible is what is said of a goal that cannot be met.
func impossible() predictor.Outlook {
	o := outlook()
	o.Goal, o.Feasible = predictor.Goal{Deadline: 2 * time.Minute}, false
	o.Summary = "a deadline of 2m cannot be met: 1m30s have passed and even with 40 functions 2m10s more are needed; " +
		"give 3m45s or more"
	o.Alternatives = nil
	return o
}

// unknown is what is said of the first run of a pipeline.
func unknown() predictor.Outlook {
	return predictor.Outlook{
		Run: "digits-1", Elapsed: 3, Spent: 0.0001, Feasible: true,
		Why: "the first run of this pipeline: nothing is known of the stages after score",
	}
}

// compared are two runs, of which the second lost an attempt and has another stage.
func compared() ledger.Diff {
	a, b := ended().Run, ended().Run
	b.Run, b.Build, b.Goal.Deadline = "digits-b41d02", "fedcba987654", 0
	b.Totals.Cost *= 3
	b.Stages = append([]ledger.StageView{}, b.Stages...)
	b.Stages[1].ActualWall, b.Stages[1].RunSeconds, b.Stages[1].Failed, b.Stages[1].Grant.Memory = 4.9, 4.9, 3,
		512*quantity.MiB
	b.Stages[1].WallError, b.Stages[1].WallErrors = 0.12, 4
	return ledger.Diff{
		A: a, B: b, SameGoal: false, SameInput: true,
		Stages: []ledger.StageDiff{
			{Name: "load", A: &a.Stages[0], B: &b.Stages[0]},
			{Name: "train", A: &a.Stages[1], B: &b.Stages[1]},
			{Name: "score", A: &a.Stages[2]},
			{Name: "judge", B: &b.Stages[2]},
		},
	}
}

// explained is the end of a run that took results of an earlier one.
func explained() (display.Explained, display.Model) {
	m := ended()
	m.Run.RetryOf = "digits-000001"
	m.Run.Stages[0].Reused = ledger.Reuse{Tasks: 2, Saved: 400_000_000, Seconds: 3.1, From: "digits-000001"}
	m.Run.Reused = m.Run.Stages[0].Reused
	m.Run.Static = ledger.Static{
		Actual: m.Run.Totals.Cost, Cost: 3 * m.Run.Totals.Cost, Known: true, Short: 2,
		Sizes: map[string]quantity.Size{"train": {CPU: 2000, Memory: quantity.GiB}},
	}
	b := timeline.Breakdown{
		Wall: 23400 * time.Millisecond, Broker: 8 * time.Millisecond, Engine: 92 * time.Millisecond, Queue: 2 * time.Second,
		Start: 300 * time.Millisecond,
		Fetch: time.Second, Compute: 19 * time.Second, Publish: 500 * time.Millisecond, Unattributed: 500 * time.Millisecond,
	}
	m.Breakdown = &b
	return display.Explained{
		Run: m.Run, Breakdown: b, Latest: display.LatestDecisions(m.Decisions), Retries: []string{"digits-000001", m.Run.Run},
		Failures: []display.Failure{{
			Attempt: timeline.Attempt{
				Stage: "train", Task: "train-0", Number: 1, Venue: predictor.Pool, Host: "local", Outcome: predictor.OutOfMemory,
				Cause: predictor.CauseMemoryLimit,
				Error: "killed at its limit of 128 MiB", Wall: 4 * time.Second,
				Grant: quantity.Size{CPU: 1000, Memory: 128 * quantity.MiB}, EndedAt: begin.Add(6 * time.Second),
			},
			LastWords: []string{"epoch 3", "allocating\x1b[31m 96 MiB"},
		}},
	}, m
}

// overview is a stack with two runs, of which one is at risk.
func overview() display.Overview {
	m := running()
	first := ledger.RunView{Run: "digits-1", Pipeline: "digits", State: predictor.RunRunning, StartedAt: begin}
	local := quantity.Size{CPU: 4000, Memory: 6 * quantity.GiB}
	return display.Overview{
		Now: time.Date(2026, 11, 20, 9, 0, 14, 0, time.Local), Version: "v0.1.0",
		Functions: predictor.FunctionVenue{Enabled: true, Concurrency: 1000},
		Hosts: []predictor.Host{{
			ID: "local", Capacity: local, Free: quantity.Size{CPU: 1500, Memory: 4 * quantity.GiB},
			PricePerHour: 44_625_000_000,
		}},
		Runs: []ledger.RunView{m.Run, first},
		Running: map[string][]timeline.Attempt{m.Run.Run: {
			{Stage: "train", Venue: predictor.Pool, Host: "local", PeakMemory: 190 * quantity.MiB},
			{Stage: "score", Venue: predictor.Function, PeakMemory: 11 * quantity.GiB},
		}},
		Use: map[string]map[string]timeline.Held{m.Run.Run: {"train": {
			GrantedCPU: 1, UsedCPU: 0.97,
			GrantedMemory: 256 << 20, UsedMemory: 180 << 20,
		}}},
		Alerts: []alerting.Alert{{
			Run: m.Run.Run, Kind: alerting.KindDeadlineAtRisk,
			At: time.Date(2026, 11, 20, 9, 0, 10, 0, time.Local), Message: "ends after 1m10s, 10 s past its deadline",
		}},
	}
}

// pages are all renderings of this file by name.
func pages(s display.Style) map[string][]string {
	e, m := explained()
	alerted := running()
	alerted.Alerts = []alerting.Alert{{
		Run: "digits-7f3a9c", Kind: alerting.KindDeadlineAtRisk,
		At: begin.Add(10 * time.Second), Message: "it ends after 1m10s (58.0 s to 1m22s), past its deadline of 1m; give " +
			"more time or functions",
	}}
	idle := display.Overview{
		Now: overview().Now, Version: "v0.1.0",
		Lost: "this is how it was: the engine does not answer",
	}
	recovered := m
	recovered.Alerts = []alerting.Alert{{
		Kind: alerting.KindRecovered, At: begin.Add(20 * time.Second),
		Message: "it ends in time again",
	}}
	goal := ended().Run
	goal.Goal.Deadline = 20 * time.Second
	return map[string][]string{
		"bill": display.Bill(bill(), true, s), "bill-empty": display.Bill(
			ledger.Bill{By: ledger.ByRun, Since: bill().Since, Until: bill().Until}, false, s),
		"outlook": display.Outlook(outlook(), s), "outlook-impossible": display.Outlook(impossible(), s),
		"outlook-unknown": display.Outlook(unknown(), s),
		"goal-kept":       display.GoalKept(goal), "diff": display.Diff(compared(), false, s),
		"diff-all": display.Diff(compared(), true, s),
		"why":      display.Why(e, m, s), "summary-reused": display.Summary(recovered, s),
		"live-alert": display.Live(alerted, s),
		"top":        display.Top(overview(), s), "top-idle": display.Top(idle, s),
	}
}

func TestPagesAreAsTheGoldenFilesHaveThem(t *testing.T) {
	t.Parallel()
	for name, lines := range pages(display.Style{Width: 100, ASCII: true}) {
		golden(t, name+".golden", []byte(strings.Join(lines, "\n")+"\n"))
	}
}

func TestNoLineIsWiderThanAPage(t *testing.T) {
	t.Parallel()
	for name, lines := range pages(display.Style{Width: 80}) {
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > 100 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
	}
}

func TestTopFitsEveryTerminal(t *testing.T) {
	t.Parallel()
	for _, width := range []int{40, 80, 120, 200} {
		for _, line := range display.Top(overview(), display.Style{Width: width}) {
			if n := utf8.RuneCountInString(line); n >= width {
				t.Errorf("%d columns in a terminal of %d: %s", n, width, line)
			}
		}
	}
}

func TestEqualRunsDoNotDiffer(t *testing.T) {
	t.Parallel()
	run := ended().Run
	same := ledger.Diff{A: run, B: run, SameInput: true, SameBuild: true, SameGoal: true}
	for i := range run.Stages {
		same.Stages = append(same.Stages, ledger.StageDiff{Name: run.Stages[i].Name, A: &run.Stages[i], B: &run.Stages[i]})
	}
	if got := display.Diff(same, false, display.Style{}); len(got) != 1 || !strings.HasSuffix(got[0], "do not differ") {
		t.Errorf("got %q", got)
	}
	if got := display.Diff(same, true, display.Style{}); len(got) < 20 {
		t.Errorf("with all there are %d lines, want all of them: %q", len(got), got)
	}
}

func TestTheLatestDecisionOfEachRowIsTheNewest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		decisions := rapid.SliceOf(rapid.Custom(func(t *rapid.T) predictor.Decision {
			return predictor.Decision{
				Stage: predictor.StageID{Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "stage")},
				Venue: rapid.SampledFrom([]predictor.Venue{"", predictor.Pool}).Draw(t, "venue"),
				What:  rapid.SampledFrom([]string{"slots", "size"}).Draw(t, "what"),
			}
		})).Draw(t, "decisions")
		last := map[string]string{} // the oracle: a later one takes the place of an earlier one
		for i := range decisions {
			decisions[i].ID = strconv.Itoa(i)
			last[fmt.Sprint(decisions[i].Stage, decisions[i].Venue, decisions[i].What)] = decisions[i].ID
		}
		got := map[string]string{}
		for _, decision := range display.LatestDecisions(decisions) {
			got[fmt.Sprint(decision.Stage, decision.Venue, decision.What)] = decision.ID
		}
		if diff := cmp.Diff(last, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestAFullScreenGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	screen, err := display.NewFullScreen(&out)
	if err != nil {
		t.Fatal(err)
	}
	for _, height := range []int{2, 0} {
		if err := screen.Draw([]string{"a", "b", "c"}, height); err != nil {
			t.Fatal(err)
		}
	}
	if err := screen.Leave(); err != nil {
		t.Fatal(err)
	}
	want := "\x1b[?1049h\x1b[?25l" + "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J" + "\x1b[Ha\x1b[K\x1b[J" + "\x1b[?25h\x1b[?1049l"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
