package display

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Summary returns the lines that are left when a run is over: time, cost and accuracy, predicted and actual, and where tasks ran.
func Summary(m Model, s Style) []string {
	run := m.Run
	lines := []string{cut(fmt.Sprintf("%s %s", Clean(run.Pipeline), Clean(run.Run)), s.columns()-len(stateWord(run.State))-1) + " " + s.state(run.State)}
	if run.Error != "" {
		lines = append(lines, "  error     "+Clean(run.Error))
	}
	if run.Notice != "" {
		lines = append(lines, wrapped("  notice    ", run.Notice, tableWidth)...)
	}
	lines = append(lines, compare(m, s)...)
	for _, alert := range m.Alerts {
		lines = append(lines, alertLine(m, alert, s)...)
	}
	lines = append(lines, savings(run)...)
	if m.Breakdown != nil {
		lines = append(lines, breakdownLine(*m.Breakdown)...)
	}
	if len(run.Stages) > 0 {
		lines = append(lines, "", s.paint(dim, fmt.Sprintf("  %-*s %6s %8s %8s %8s %8s  %-16s %10s", nameWidth, "stage", "pool", "function", "queue", "run", "CPU", "peak/grant", "cost")))
	}
	for _, stage := range run.Stages {
		lines = append(lines, fmt.Sprintf("  %-*s %6d %8d %8s %8s %8s  %-16s %10s", nameWidth, cut(Clean(stage.Name), nameWidth),
			stage.Tasks[predictor.Pool], stage.Tasks[predictor.Function], seconds(stage.QueueSeconds), seconds(stage.RunSeconds), seconds(stage.CPUSeconds),
			megabytes(stage.PeakMemory, stage.Grant.Memory), stage.Cost))
	}
	for _, stage := range run.Stages {
		if stage.Failed > 0 {
			lines = append(lines, s.paint(red, fmt.Sprintf("  %s: %s", cut(Clean(stage.Name), nameWidth), plural(stage.Failed, "failed attempt"))))
		}
	}
	if run.State == predictor.RunFailed {
		lines = append(lines, fmt.Sprintf("  after a fix, `spillway retry %s` runs only what failed and what follows (--app serves the fix)", Clean(run.Run)))
	}
	if len(m.Decisions) > 0 {
		lines = append(lines, fmt.Sprintf("  %s; `spillway show %s` lists them with their reasons", plural(len(m.Decisions), "decision"), Clean(run.Run)))
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
		{"cost", m.Run.Totals.Cost.String(), predictedCost},
	}
	if accuracy, found := Accuracy(m.Run.Result); found {
		rows = append(rows, [3]string{"accuracy", strconv.FormatFloat(accuracy, 'f', 4, 64), "unknown"})
	}
	lines := []string{s.paint(dim, fmt.Sprintf("  %-9s %-14s %s", "", "actual", "predicted"))}
	for _, row := range rows {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %-9s %-14s %s", row[0], row[1], row[2]), " "))
	}
	return lines
}

// Decisions returns one line for every decision, with its time since the run's start and its reason; they are as long as their reasons.
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
		lines = append(lines, line)
	}
	return lines
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
