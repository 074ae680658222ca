package display

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// Overview is everything that `top` shows. Its JSON is that of `top --json`.
type Overview struct {
	// Now is when it is shown, Version that of the engine.
	Now     time.Time `json:"now"`
	Version string    `json:"version"`
	// Hosts are the hosts of the pool, Functions the function venue.
	Hosts     []predictor.Host        `json:"hosts"`
	Functions predictor.FunctionVenue `json:"functions"`
	// Runs are those that go on, newest first.
	Runs []ledger.RunView `json:"runs"`
	// Running are the attempts that go on, by run.
	Running map[string][]timeline.Attempt `json:"running_attempts"`
	// Use is what the stages of a run held and used last, by run and stage.
	Use map[string]map[string]timeline.Held `json:"use"`
	// Alerts are the latest alerts, newest first.
	Alerts []alerting.Alert `json:"alerts"`
	// Lost says why what is shown is not what is now; empty when it is.
	Lost string `json:"-"`
}

const (
	// topAlerts and topRuns are how many alerts and runs are shown.
	topAlerts = 3
	topRuns   = 20
)

// Top returns the lines that show a whole stack: its hosts, the runs that go on, and their stages.
func Top(o Overview, s Style) []string {
	title := fmt.Sprintf("spillway %s  %s  %s, %s", Clean(o.Version), o.Now.Local().Format(time.TimeOnly),
		Count(len(o.Hosts), "host"), Count(len(o.Runs), "run"))
	lines := []string{s.paint(bold, s.cut(title, s.columns()))}
	if o.Lost != "" {
		lines = append(lines, s.paint(red, s.cut("  "+Clean(o.Lost), s.columns())))
	}
	lines = append(lines, "")
	lines = append(lines, hostLines(o, s)...)
	lines = append(lines, "")
	if len(o.Runs) == 0 {
		lines = append(lines, "no run goes on")
	} else {
		lines = append(lines, runTable(o, s)...)
		lines = append(lines, "")
		lines = append(lines, stageTable(o, s)...)
	}
	if len(o.Alerts) > 0 {
		lines = append(lines, "", s.paint(dim, "alerts"))
		for _, alert := range o.Alerts[:min(topAlerts, len(o.Alerts))] {
			lines = append(lines, s.cut(fmt.Sprintf("  %s  %s: %s", alert.At.Local().Format(time.TimeOnly),
				cmp.Or(Clean(alert.Run), "engine"), Clean(alert.Message)), s.columns()))
		}
	}
	return lines
}

// hostLines show what hosts have granted, and what the attempts on them have taken.
func hostLines(o Overview, s Style) []string {
	t := newTable("host", ">attempts", ">cores granted", ">memory granted", ">memory used", ">per hour")
	t.terminal = s.columns()
	for _, host := range o.Hosts {
		attempts, used := 0, quantity.Bytes(0)
		for _, running := range o.Running {
			for _, attempt := range running {
				if attempt.Host == host.ID && attempt.Venue == predictor.Pool {
					attempts++
					used += attempt.PeakMemory
				}
			}
		}
		granted := host.Capacity.Minus(host.Free)
		t.add(Clean(host.ID), strconv.Itoa(attempts),
			fmt.Sprintf("%s of %s", cores(granted.CPU.Cores()), cores(host.Capacity.CPU.Cores())),
			fmt.Sprintf("%s of %s", granted.Memory, host.Capacity.Memory), orDash(orUnknown(inUnit("bytes"))(float64(used))),
			host.PricePerHour.String())
	}
	lines := t.lines(s, "")
	if len(o.Hosts) == 0 {
		lines = []string{"no host is known"}
	}
	for _, host := range o.Hosts {
		if host.GPUsUnknown {
			lines = append(lines, s.cut("  "+Clean(host.ID)+" GPUs: the driver has not answered yet", s.columns()))
		}
		for _, gpu := range host.GPUs {
			lines = append(lines, s.cut(fmt.Sprintf("  %s %s", Clean(host.ID), gpuLine(gpu)), s.columns()))
		}
	}
	functions := 0
	for _, running := range o.Running {
		for _, attempt := range running {
			if attempt.Venue == predictor.Function {
				functions++
			}
		}
	}
	if !o.Functions.Enabled {
		return append(lines, "functions  off")
	}
	return append(lines, s.cut(fmt.Sprintf("functions  %s, %s of at most %d", Count(functions, "attempt"),
		Count(functionSlots(o.Runs), "slot"), o.Functions.Concurrency), s.columns()))
}

// gpuLine is how a GPU stands: "GPU 0 h100: held, 12 GiB of 79.6 GiB, 93% busy, 412 W".
func gpuLine(gpu predictor.GPU) string {
	text := fmt.Sprintf("GPU %d", gpu.Index)
	if gpu.Instance >= 0 {
		text += fmt.Sprintf(" instance %d", gpu.Instance)
	}
	if gpu.Wrong != "" {
		return text + " " + Clean(gpu.Wrong)
	}
	text += fmt.Sprintf(" %s: ", Clean(gpu.Class))
	if gpu.Holder != nil {
		text += "held, "
	}
	text += fmt.Sprintf("%s of %s", gpu.Used, gpu.Memory)
	if gpu.Busy >= 0 {
		text += fmt.Sprintf(", %.0f%% busy", 100*gpu.Busy)
	}
	if gpu.Watts >= 0 {
		text += fmt.Sprintf(", %.0f W", gpu.Watts)
	}
	return text
}

// functionSlots is how many slots stages have at functions; runs of one build share them.
func functionSlots(runs []ledger.RunView) (sum int) {
	slots := map[predictor.StageID]int{}
	for _, run := range runs {
		for _, stage := range run.Stages {
			id := predictor.StageID{App: run.App, Build: run.Build, Name: stage.Name, Team: run.Team}
			slots[id] = max(slots[id], stage.Slots[predictor.Function])
		}
	}
	for _, n := range slots {
		sum += n
	}
	return sum
}

// runTable has a line for each run: its goal, and what is expected of it.
func runTable(o Overview, s Style) []string {
	t := newTable("run", "goal", ">elapsed", ">ends after", ">cost", ">will cost")
	t.terminal = s.columns()
	for _, run := range o.Runs[:min(topRuns, len(o.Runs))] {
		t.add(Clean(run.Run), GoalInShort(run, o.Now), seconds(Model{Now: o.Now, Run: run}.Wall().Seconds()),
			middle(expected(run).FinishSeconds, seconds),
			spent(run.Totals.Cost, !Ended(run)), middle(expected(run).Cost, money))
	}
	lines := t.lines(s, "")
	if hidden := len(o.Runs) - topRuns; hidden > 0 {
		lines = append(lines, s.paint(dim, fmt.Sprintf("%d more", hidden)))
	}
	return lines
}

// stageTable has a line for each stage that has work, the busiest first, and one for what it says of its progress.
func stageTable(o Overview, s Style) []string {
	type row struct {
		run   ledger.RunView
		stage ledger.StageView
	}
	var rows []row
	for _, run := range o.Runs {
		for _, stage := range run.Stages {
			if stage.Running > 0 || queued(stage) > 0 || stage.Slots[predictor.Pool]+stage.Slots[predictor.Function] > 0 {
				rows = append(rows, row{run, stage})
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.stage.Running, a.stage.Running), cmp.Compare(queued(b.stage), queued(a.stage)))
	})
	t := newTable("stage", ">queue", ">run", ">done", ">slots", "size of one", "cores used", "memory used")
	t.terminal = s.columns()
	for _, one := range rows {
		stage := one.stage
		use := o.Use[one.run.Run][stage.Name]
		name := Clean(stage.Name)
		if len(o.Runs) > 1 {
			name += " " + Clean(one.run.Run)
		}
		t.add(name, strconv.Itoa(queued(stage)), strconv.Itoa(stage.Running),
			fmt.Sprintf("%d/%d", stage.Done, tasksOf(stage)),
			fmt.Sprintf("%d+%d", stage.Slots[predictor.Pool], stage.Slots[predictor.Function]), grantOf(stage),
			share(use.UsedCPU, use.GrantedCPU, cores),
			share(use.UsedMemory, use.GrantedMemory, inUnit("bytes")))
	}
	if len(rows) == 0 {
		return []string{"no stage has work"}
	}
	table := t.lines(s, "")
	lines := table[:1:1]
	for i, one := range rows {
		lines = append(lines, table[i+1])
		if said := progressOf(one.run, one.stage.Name); said != "" {
			lines = append(lines, s.paint(dim, s.cut("  "+said, s.columns())))
		}
	}
	return lines
}

// queued is how many tasks of a stage wait.
func queued(stage ledger.StageView) int { return max(stage.Scheduled-stage.Done-stage.Running, 0) }

func grantOf(stage ledger.StageView) string {
	if stage.Grant.IsZero() {
		return "-"
	}
	return stage.Grant.String()
}

// share writes what was used of what was granted; "-" when nothing was.
func share(used, granted float64, write func(float64) string) string {
	if granted <= 0 {
		return "-"
	}
	return write(used) + " of " + write(granted)
}

// cores writes a number of cores with two digits at most.
func cores(value float64) string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(value, 'f', 2, 64), "0"), ".")
}

// expected is what is expected of a run now, or else what was at first.
func expected(run ledger.RunView) ledger.RunPrediction {
	expected := run.Latest
	if !known(expected.FinishSeconds) {
		expected.FinishSeconds = run.Predicted.FinishSeconds
	}
	if !known(expected.Cost) {
		expected.Cost = run.Predicted.Cost
	}
	return expected
}

// middle writes the middle of an interval; "-" when nothing is predicted.
func middle(interval predictor.Interval, write func(float64) string) string {
	if !known(interval) {
		return "-"
	}
	return write(interval.Mid)
}

// Missed says by how much a run is past its deadline, and by how much it has passed its budget; 0 for a limit that it
// keeps or has not.
func Missed(run ledger.RunView, now time.Time) (late time.Duration, dear quantity.Money) {
	if took := (Model{Now: now, Run: run}).Wall(); run.Goal.Deadline > 0 && took > run.Goal.Deadline {
		late = took - run.Goal.Deadline
	}
	if run.Goal.Budget > 0 && run.Totals.Cost > run.Goal.Budget {
		dear = run.Totals.Cost - run.Goal.Budget
	}
	return late, dear
}

// RunTotals writes what runs come to: "20 runs: 1 running, 18 succeeded, 1 failed; $0.12 for
// attempts that have ended; 2 missed their deadline".
func RunTotals(totals ledger.RunTotals) string {
	noun := "runs"
	if totals.Runs == 1 {
		noun = "run"
	}
	var parts []string
	for _, state := range []predictor.RunState{
		predictor.RunRunning, predictor.RunSucceeded, predictor.RunFailed, predictor.RunCancelled,
	} {
		if count := totals.States[state]; count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count, state))
		}
	}
	text := fmt.Sprintf("%d %s", totals.Runs, noun)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ") + "; " + totals.Cost.String()
	}
	if totals.States[predictor.RunRunning] > 0 { // a row of the list has what goes on, too
		text += " for attempts that have ended"
	}
	if totals.MissedDeadlines > 0 {
		text += fmt.Sprintf("; %d missed their deadline", totals.MissedDeadlines)
	}
	if totals.MissedBudgets > 0 {
		text += fmt.Sprintf("; %d passed their budget", totals.MissedBudgets)
	}
	return text
}

// GoalInShort writes a run's goal in few columns, with what it has missed: "10m missed by 2.0 s, $0.50, cost"; "-"
// for none.
func GoalInShort(run ledger.RunView, now time.Time) string {
	var parts []string
	g := run.Goal
	late, dear := Missed(run, now)
	if g.Deadline > 0 {
		part := duration(g.Deadline)
		if late > 0 {
			part += " missed by " + seconds(late.Seconds())
		}
		parts = append(parts, part)
	}
	if g.Budget > 0 {
		part := g.Budget.String()
		if dear > 0 {
			part += " passed by " + dear.String()
		}
		parts = append(parts, part)
	}
	if g.Minimise != "" {
		parts = append(parts, string(g.Minimise))
	}
	return orDash(strings.Join(parts, ", "))
}
