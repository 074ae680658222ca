package display

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
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
	titles, rows := liveStages(m.Run.Stages, s)
	if len(rows) > 0 {
		lines = append(lines, "", s.paint(dim, titles))
	}
	for i, stage := range m.Run.Stages {
		lines = append(lines, rows[i])
		if line := progressLine(m.Run, stage, s); line != "" {
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
		now += "  predicted " + between(finish, seconds)
	} else if !Ended(m.Run) {
		now += "  predicted: unknown until an earlier run matches"
	}
	cost := fmt.Sprintf("cost %s (pool %s/h)", spent(m.Run.Totals.Cost, !Ended(m.Run)), m.HostPrice)
	if expected := m.Run.Predicted.Cost; known(expected) {
		cost += fmt.Sprintf("  predicted %s to %s", money(expected.Low), money(expected.High))
	}
	lines := []string{first, cut("  "+now, s.columns()), cut("  "+cost, s.columns())}
	if basis := basisOf(m.Run.Predicted); basis != "" {
		lines = append(lines, s.paint(dim, cut("  "+basis, s.columns())))
	}
	if warning := warningOf(m.Run, m.Run.Latest); warning != "" && len(m.Alerts) == 0 && !Ended(m.Run) {
		for _, line := range wrapped("  ", warning, s.columns()) {
			lines = append(lines, s.paint(red, line))
		}
	}
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
	if m.Away {
		lines = append(lines, s.paint(red, cut("  "+Away, s.columns())))
	}
	return lines
}

func stateWord(state predictor.RunState) string { return Style{}.state(state) }

// liveColumn is a column of the stages of the live display.
type liveColumn struct {
	title string
	// width is the least that it takes, so that it stands still while numbers grow.
	width int
}

// The columns of the live display, and those that a narrow terminal does without, the first one first.
var (
	liveColumns = []liveColumn{
		{"stage", nameWidth}, {"", barWidth}, {"tasks", 9}, {"run", 7}, {"p+f", 5}, {"peak/grant", 13}, {"cost", 10},
	}
	liveSpare = []int{liveBar, 4, 5, 6}
)

const liveBar = 1 // the column of the bars, whose colours take no room

// liveStages returns the header and a line for each stage, all narrower than the terminal: a line that it broke would
// be drawn again below itself.
func liveStages(stages []ledger.StageView, s Style) (header string, lines []string) {
	rows := make([][]string, len(stages))
	total := 1
	widths := make([]int, len(liveColumns))
	for i, column := range liveColumns {
		widths[i] = column.width
	}
	for i, stage := range stages {
		rows[i] = liveCells(stage, s)
		for column, cell := range rows[i] {
			if column != liveBar {
				widths[column] = max(widths[column], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, width := range widths {
		total += width + 1
	}
	for _, column := range liveSpare {
		if total > s.columns() {
			total -= widths[column] + 1
			widths[column] = 0
		}
	}
	titles := make([]string, len(liveColumns))
	for i, column := range liveColumns {
		titles[i] = column.title
	}
	titles[liveBar] = strings.Repeat(" ", barWidth)
	for _, row := range rows {
		lines = append(lines, liveLine(row, widths))
	}
	return liveLine(titles, widths), lines
}

// liveLine writes cells in columns; those without a width are left out.
func liveLine(cells []string, widths []int) string {
	var line strings.Builder
	line.WriteByte(' ')
	for i, cell := range cells {
		switch {
		case widths[i] == 0:
		case i == 0:
			fmt.Fprintf(&line, " %-*s", widths[i], cell)
		case i == liveBar:
			line.WriteString(" " + cell)
		default:
			fmt.Fprintf(&line, " %*s", widths[i], cell)
		}
	}
	return line.String()
}

func liveCells(stage ledger.StageView, s Style) []string {
	total := tasksOf(stage)
	venue := predictor.Pool // whose sizes are predicted
	if _, ran := stage.Memory[venue]; !ran {
		venue = predictor.Function
	}
	ran := "-"
	if stage.RunSeconds > 0 {
		ran = seconds(stage.RunSeconds)
	}
	return []string{
		cut(Clean(stage.Name), nameWidth), s.bar(stage.Done, total, barWidth), fmt.Sprintf("%d/%d", stage.Done, total), ran,
		fmt.Sprintf("%d+%d", stage.Slots[predictor.Pool], stage.Slots[predictor.Function]), memoryAt(stage, venue),
		spent(stage.Cost, stage.Running > 0),
	}
}

// progressLine shows what a long stage reported of itself last, and failures; empty when there is nothing to show.
func progressLine(run ledger.RunView, stage ledger.StageView, s Style) string {
	var parts []string
	if said := progressOf(run, stage.Name); said != "" || stage.Step > 0 {
		parts = append(parts, cmp.Or(said, doneOf(stage.Step, stage.Of)))
		for _, name := range slices.Sorted(maps.Keys(stage.Metrics)) {
			if strings.HasSuffix(name, "_per_second") { // what a running attempt says of it is in its progress
				continue
			}
			parts = append(parts, fmt.Sprintf("%s %s", Clean(name), strconv.FormatFloat(stage.Metrics[name], 'g', 4, 64)))
		}
	}
	indent := strings.Repeat(" ", nameWidth+3)
	room := s.columns() - len(indent)
	failed := ""
	if stage.Failed > 0 {
		failed = cut(Count(stage.Failed, "failed attempt"), room)
		room -= utf8.RuneCountInString(failed) + 2
	}
	reported := ""
	if len(parts) > 0 && room > 0 {
		reported = cut(strings.Join(parts, "  "), room)
	}
	if reported == "" && failed == "" {
		return ""
	}
	if reported != "" && failed != "" {
		reported += "  "
	}
	return indent + reported + s.paint(red, failed)
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
	to := Clean(decision.From) + " -> " + Clean(decision.To)
	if decision.From == decision.To {
		to = "stays at " + Clean(decision.To)
	}
	return fmt.Sprintf("%s: %s: %s", subject, to, Clean(decision.Reason))
}

// alertLine is an alert with the time since the run's start, broken into lines that fit.
func alertLine(m Model, alert alerting.Alert, s Style) []string {
	at := ""
	if age := alert.At.Sub(m.Run.StartedAt); age >= 0 && !m.Run.StartedAt.IsZero() {
		at = " at " + seconds(age.Seconds())
	}
	code := red
	if alert.Kind == alerting.KindRecovered {
		code = green
	}
	lines := wrapped("  alert"+at+": ", alert.Message, min(s.columns(), s.page()))
	for i := range lines {
		lines[i] = s.paint(code, lines[i])
	}
	return lines
}
