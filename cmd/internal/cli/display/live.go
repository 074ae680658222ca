package display

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// liveDecisions is how many decisions the live display shows.
	liveDecisions = 5
	nameWidth     = 12
	barWidth      = 12
)

// Live returns the lines that show a run while it goes on: header, a line per stage, the newest decisions.
func Live(m Model, s Style) []string {
	lines := header(m, s)
	if last := len(m.Alerts) - 1; last >= 0 {
		lines = append(lines, alertLine(m, m.Alerts[last], s)...)
	}
	if text := reused(m.Run); text != "" {
		lines = append(lines, cut("  "+text, s.columns()))
	}
	if len(m.Run.Stages) > 0 {
		lines = append(lines, "", s.paint(dim, stageHeader()))
	}
	for _, stage := range m.Run.Stages {
		lines = append(lines, stageLine(stage, s))
		if line := progressLine(stage, s); line != "" {
			lines = append(lines, line)
		}
	}
	if len(m.Decisions) > 0 {
		lines = append(lines, "", s.paint(dim, "decisions"))
		for _, decision := range m.Decisions[max(0, len(m.Decisions)-liveDecisions):] {
			lines = append(lines, cut("  "+decisionText(m, decision), s.columns()))
		}
	}
	return lines
}

func header(m Model, s Style) []string {
	first := fmt.Sprintf("%s  %s  ", s.paint(bold, cut(Clean(m.Run.Pipeline), 24)), s.state(m.Run.State))
	room := s.columns() - len([]rune(cut(Clean(m.Run.Pipeline), 24))) - len(stateWord(m.Run.State)) - 4
	first += cut(fmt.Sprintf("%s  %s", goal(m.Run.Goal), Clean(m.Run.Run)), room)

	now := "elapsed " + seconds(m.Wall().Seconds())
	if finish := m.Run.Predicted.FinishSeconds; known(finish) {
		now += "  predicted " + predicted(m.Run.Predicted, finish, seconds)
	} else if !Ended(m.Run) {
		now += "  predicted: unknown until an earlier run matches"
	}
	cost := fmt.Sprintf("cost %s (pool %s/h)", m.Run.Totals.Cost, m.HostPrice)
	if expected := m.Run.Predicted.Cost; known(expected) {
		if m.Run.Predicted.Runs == 1 {
			cost += "  predicted " + predicted(m.Run.Predicted, expected, money)
		} else {
			cost += fmt.Sprintf("  predicted %s to %s", money(expected.Low), money(expected.High))
		}
	}
	lines := []string{first, cut("  "+now, s.columns()), cut("  "+cost, s.columns())}
	var places []string
	if m.Page != "" {
		places = append(places, "page "+m.Page)
	}
	if m.TemporalUI != "" {
		places = append(places, "Temporal UI "+m.TemporalUI)
	}
	if len(places) > 0 {
		lines = append(lines, cut("  "+strings.Join(places, "  "), s.columns()))
	}
	return lines
}

func stateWord(state predictor.RunState) string { return Style{}.state(state) }

// stageHeader and stageLine share their columns: 2 + 12 + 1 + 12 + 1 + 9 + 1 + 7 + 1 + 5 + 1 + 13 + 1 + 10 = 76.
func stageHeader() string {
	return fmt.Sprintf("  %-*s %-*s %9s %7s %5s %13s %10s", nameWidth, "stage", barWidth, "", "tasks", "run", "p+f",
		"peak/grant", "cost")
}

func stageLine(stage ledger.StageView, s Style) string {
	total := tasksOf(stage)
	slots := fmt.Sprintf("%d+%d", stage.Slots[predictor.Pool], stage.Slots[predictor.Function])
	venue := predictor.Pool // whose sizes are predicted
	if _, ran := stage.Memory[venue]; !ran {
		venue = predictor.Function
	}
	ran := "-"
	if stage.RunSeconds > 0 {
		ran = seconds(stage.RunSeconds)
	}
	return fmt.Sprintf("  %-*s %s %9s %7s %5s %13s %10s", nameWidth, cut(Clean(stage.Name), nameWidth),
		s.bar(stage.Done, total, barWidth),
		fmt.Sprintf("%d/%d", stage.Done, total), ran, slots, memoryAt(stage, venue), stage.Cost)
}

// progressLine shows what a long stage reported of itself last, and failures; empty when there is nothing to show.
func progressLine(stage ledger.StageView, s Style) string {
	var parts []string
	if stage.Step > 0 {
		parts = append(parts, "step "+strconv.Itoa(stage.Step))
		for _, name := range slices.Sorted(maps.Keys(stage.Metrics)) {
			parts = append(parts, fmt.Sprintf("%s %s", Clean(name), strconv.FormatFloat(stage.Metrics[name], 'g', 4, 64)))
		}
	}
	if stage.Failed > 0 {
		parts = append(parts, s.paint(red, Count(stage.Failed, "failed attempt")))
	}
	if len(parts) == 0 {
		return ""
	}
	if s.Color && stage.Failed > 0 { // colour codes must not be cut in two
		return strings.Repeat(" ", nameWidth+3) + strings.Join(parts, "  ")
	}
	return cut(strings.Repeat(" ", nameWidth+3)+strings.Join(parts, "  "), s.columns())
}

// decisionText is a decision in one line, with the time since the run's start.
func decisionText(m Model, decision predictor.Decision) string {
	at := "before"
	if age := decision.At.Sub(m.Run.StartedAt); age >= 0 && !m.Run.StartedAt.IsZero() {
		at = seconds(age.Seconds())
	}
	return at + "  " + change(decision)
}

// change says what a decision changed and why.
func change(decision predictor.Decision) string {
	subject := Clean(decision.Stage.Name)
	if decision.Venue != "" {
		subject += " at " + string(decision.Venue)
	}
	return fmt.Sprintf("%s: %s -> %s: %s", subject, Clean(decision.From), Clean(decision.To), Clean(decision.Reason))
}

// alertLine is an alert with the time since the run's start, broken into lines that fit.
func alertLine(m Model, alert predictor.Alert, s Style) []string {
	at := ""
	if age := alert.At.Sub(m.Run.StartedAt); age >= 0 && !m.Run.StartedAt.IsZero() {
		at = " at " + seconds(age.Seconds())
	}
	code := red
	if alert.Kind == predictor.Recovered {
		code = green
	}
	lines := wrapped("  alert"+at+": ", alert.Message, min(s.columns(), tableWidth))
	for i := range lines {
		lines[i] = s.paint(code, lines[i])
	}
	return lines
}
