package display

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Summary returns the lines that are left when a run is over: time, cost and accuracy, predicted and actual, and where
// tasks ran.
func Summary(m Model, s Style) []string {
	run := m.Run
	lines := []string{s.cut(fmt.Sprintf("%s %s", Clean(run.Pipeline), Clean(run.Run)),
		s.columns()-len(stateWord(run.State))-1) + " " + s.state(run.State)}
	if run.Error != "" {
		lines = append(lines, "  error     "+failure(run))
	}
	if run.Notice != "" {
		lines = append(lines, wrapped("  notice    ", run.Notice, s.page())...)
	}
	lines = append(lines, compare(m, s)...)
	lines = append(lines, goalLines(m, s)...)
	for _, alert := range m.Alerts {
		lines = append(lines, alertLine(m, alert, s)...)
	}
	lines = append(lines, savings(run, s)...)
	if m.Breakdown != nil {
		lines = append(lines, breakdownLine(*m.Breakdown, s)...)
	}
	lines = append(lines, stageSummary(run, s)...)
	lines = append(lines, progressLines(run, s)...)
	lines = append(lines, learningLines(run, s)...)
	lines = append(lines, gpuLines(run, s)...)
	for _, stage := range run.Stages {
		if stage.Failed > 0 {
			lines = append(lines, s.paint(red, fmt.Sprintf("  %s: %s", s.cut(Clean(stage.Name), nameWidth),
				Count(stage.Failed, "failed attempt"))))
		}
	}
	if budget := moreMoney(run); budget != "" {
		lines = append(lines, fmt.Sprintf("  with more money, `spillway retry %s %s` runs only what is left", Clean(run.Run),
			budget))
	} else if run.State == predictor.RunFailed {
		lines = append(lines, fmt.Sprintf("  after a fix, `spillway retry %s` runs only what failed and what follows "+
			"(--app serves the fix)", Clean(run.Run)))
	}
	if len(m.Decisions) > 0 {
		lines = append(lines, fmt.Sprintf("  %s; `spillway show %s` lists them with their reasons",
			Count(len(m.Decisions), "decision"), Clean(run.Run)))
	}
	lines = append(lines, whatIfLines(m.WhatIf, s)...)
	if m.Own {
		lines = append(lines, "  the stack of this run has ended with it; to ask later, first start one with "+
			"`spillway dev`")
	}
	return lines
}

// goalLines say of each limit of a run's goal whether it was kept; none for a run without limits.
func goalLines(m Model, s Style) []string {
	g := m.Run.Goal
	late, dear := Missed(m.Run, m.Now)
	line := func(name, limit, missed string, isMissed bool) string {
		switch {
		case isMissed:
			return s.paint(red, fmt.Sprintf("  %-9s %s: %s", name, limit, missed))
		case m.Run.State == predictor.RunSucceeded:
			return fmt.Sprintf("  %-9s %s: kept", name, limit)
		default:
			return fmt.Sprintf("  %-9s %s", name, limit)
		}
	}
	var lines []string
	if g.Deadline > 0 {
		lines = append(lines, line("deadline", duration(g.Deadline), "missed by "+seconds(late.Seconds()), late > 0))
	}
	if g.Budget > 0 {
		lines = append(lines, line("budget", g.Budget.String(), "passed by "+dear.String(), dear > 0))
	}
	return lines
}

// stageSummary is a table of what each stage did, and what its columns are.
func stageSummary(run ledger.RunView, s Style) []string {
	if len(run.Stages) == 0 {
		return nil
	}
	t := newTable("stage", ">pool+fn", ">wait", ">longest", ">run", ">CPU", ">memory pool", ">functions", ">cost")
	t.spare = []int{3, 5, 2, 7, 6}
	for _, stage := range run.Stages {
		wait, longest := "-", "-"
		if stage.Wait.Attempts > 0 {
			wait, longest = seconds(stage.Wait.MedianSeconds), seconds(stage.Wait.LongestSeconds)
		}
		tasks := fmt.Sprintf("%d+%d", stage.Tasks[predictor.Pool], stage.Tasks[predictor.Function])
		t.add(s.cut(Clean(stage.Name), nameWidth), tasks, wait, longest, seconds(stage.RunSeconds), seconds(stage.CPUSeconds),
			memoryAt(stage, predictor.Pool), memoryAt(stage, predictor.Function),
			spent(stage.Cost, stage.Running > 0 && !Ended(run)))
	}
	lines := append([]string{""}, t.lines(s, "  ")...)
	const columns = "pool+fn: tasks done at each; wait: the middle of one task's; run, CPU: sums; memory: peak/granted"
	for _, line := range wrapped("  ", columns, s.page()) {
		lines = append(lines, s.paint(dim, line))
	}
	return append(lines, t.note(s, "  ")...)
}

// gpuLines say of each stage that had GPUs which, how much of their memory it took, and how busy they were.
func gpuLines(run ledger.RunView, s Style) (lines []string) {
	for _, stage := range run.Stages {
		gpu := stage.GPU
		if gpu.Count == 0 {
			continue
		}
		class, peak, busy := "GPU", "unknown", "unknown"
		if gpu.Class != "" {
			class = Clean(gpu.Class)
		}
		if gpu.Peak > 0 {
			peak = fmt.Sprintf("%s of %s", gpu.Peak, gpu.Grant)
		}
		if gpu.BusySeconds > 0 && gpu.HeldSeconds > 0 {
			busy = fmt.Sprintf("%.0f%%", 100*min(gpu.BusySeconds/gpu.HeldSeconds, 1))
		}
		lines = append(lines, wrapped("  ", fmt.Sprintf("%s had %d x %s: memory at its peak %s, busy %s",
			s.cut(Clean(stage.Name), nameWidth), gpu.Count, class, peak, busy), s.page())...)
	}
	return lines
}

// compare writes predicted and actual side by side.
func compare(m Model, s Style) []string {
	predictedTime, predictedCost := "unknown", "unknown"
	if finish := m.Run.Predicted.FinishSeconds; known(finish) {
		predictedTime = between(finish, seconds)
	}
	if cost := m.Run.Predicted.Cost; known(cost) {
		predictedCost = between(cost, money)
	}
	rows := [][3]string{
		{"time", seconds(m.Wall().Seconds()), predictedTime},
		{"cost", spent(m.Run.Totals.Cost, !Ended(m.Run)), predictedCost},
	}
	if accuracy, found := Accuracy(m.Run.Result); found {
		rows = append(rows, [3]string{"accuracy", strconv.FormatFloat(accuracy, 'f', 4, 64), "unknown"})
	}
	lines := []string{s.paint(dim, fmt.Sprintf("  %-9s %-14s %s", "", "actual", "predicted"))}
	for _, row := range rows {
		line := strings.TrimRight(fmt.Sprintf("  %-9s %-14s %s", row[0], row[1], row[2]), " ")
		if middle, _, isRange := strings.Cut(line, " ("); isRange && utf8.RuneCountInString(line) > s.page() {
			line = middle
		}
		lines = append(lines, line)
	}
	if basis := basisOf(m.Run.Predicted); basis != "" {
		lines = append(lines, s.paint(dim, cut(fmt.Sprintf("  %-24s %s", "", basis), s.page())))
	}
	return lines
}

// Decisions returns one line for every decision, with its time since the run's start and its reason; they are as long
// as their reasons.
func Decisions(m Model) []string {
	if len(m.Decisions) == 0 {
		return nil
	}
	lines := []string{"", "decisions"}
	for _, decision := range m.Decisions {
		line := "  " + decisionText(m, decision)
		if decision.Predicted.Mid > 0 {
			line += fmt.Sprintf(" [predicted %s]", between(decision.Predicted, inUnit(decision.PredictedUnit)))
		}
		lines = append(lines, line+rejected(decision))
	}
	return lines
}

// rejected says what a decision was made against: " [rejected 0 slots: $0 in 95 s, in time with 12%]".
func rejected(decision predictor.Decision) string {
	texts := make([]string, 0, len(decision.Rejected))
	for _, other := range decision.Rejected {
		text := Clean(other.What) + ": " + other.Price.String()
		if other.Venue != decision.Venue {
			text = Clean(other.What) + " at " + string(other.Venue) + ": " + other.Price.String()
		}
		if other.Seconds > 0 {
			text += " in " + seconds(other.Seconds)
		}
		if other.Chance >= 0 {
			text += ", in time with " + words.Percent(other.Chance)
		}
		texts = append(texts, text)
	}
	if len(texts) == 0 {
		return ""
	}
	return " [rejected " + strings.Join(texts, "; ") + "]"
}

// inUnit returns how numbers of a unit are written.
func inUnit(unit string) func(float64) string {
	switch unit {
	case "seconds":
		return seconds
	case "bytes":
		return func(value float64) string { return quantity.Bytes(value).String() }
	default:
		return func(value float64) string { return strconv.FormatFloat(value, 'g', 4, 64) + " " + Clean(unit) }
	}
}
