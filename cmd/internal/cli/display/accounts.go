package display

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// estimated is the part by which an estimate differs from what came without saying anything: both are told with two
// digits, and "0.5 s, about 0.6 s (0.7% longer)" is read as a mistake.
const estimated = 0.05

// static compares what a run cost and took with one fixed size for each stage and no functions: both sides of both,
// since either alone reads as a loss where the run paid for time, or waited to save money. It is empty when that cannot
// be said, or nothing has run.
func static(run ledger.RunView) string {
	if !run.Static.Known || run.Static.Cost == 0 { // nothing ran that a size could be given
		return ""
	}
	cost, took := run.Static.Cost, run.Static.Seconds
	text := "it cost " + run.Static.Actual.String()
	if Ended(run) {
		text += " and took " + seconds(run.Actual.Seconds)
	} else { // what it costs so far has those that run, too
		text = "attempts that have ended cost " + run.Static.Actual.String()
	}
	text += "; with one fixed size for each stage and no functions it would have cost " + cost.String() +
		inBrackets(against(cost.USD(), run.Static.Actual.USD(), "less", "more", "as much"))
	switch {
	case took > 0 && run.Actual.Seconds > 0 && math.Abs(took/run.Actual.Seconds-1) < estimated:
		text += " and taken about as long"
	case took > 0:
		longer := against(took, run.Actual.Seconds, "less", "longer", "as long")
		text += " and taken about " + seconds(took) + inBrackets(longer)
	case Ended(run):
		text += ", in what time is not known"
	}
	if run.Static.Short > 0 {
		text += fmt.Sprintf(", and %s would have run out of memory", Count(run.Static.Short, "attempt"))
	}
	return text
}

// against says how an amount compares with what came: "42% less", "12% more", "2.2 times as much"; empty when that
// cannot be said.
func against(amount, came float64, less, more, as string) string {
	if amount <= 0 || came <= 0 {
		return ""
	}
	switch ratio := amount / came; {
	case ratio >= 2:
		return strconv.FormatFloat(ratio, 'f', 1, 64) + " times " + as
	case math.Abs(ratio-1) < 0.005:
		return as
	case ratio > 1:
		return percent(ratio-1) + " " + more
	default:
		return percent(1-ratio) + " " + less
	}
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// reused says what a run took from earlier runs; empty when it took nothing.
func reused(run ledger.RunView) string {
	if run.Reused.Tasks == 0 {
		return ""
	}
	var stages []string
	for _, stage := range run.Stages {
		if stage.Reused.Tasks > 0 {
			stages = append(stages, Clean(stage.Name))
		}
	}
	return fmt.Sprintf("reused: %s (%s, saved %s and %s)", strings.Join(stages, ", "), Count(run.Reused.Tasks, "task"),
		seconds(run.Reused.Seconds), run.Reused.Saved)
}

// savings says what sizes and earlier runs have saved, as far as that is known.
func savings(run ledger.RunView, s Style) []string {
	var lines []string
	for _, text := range []string{static(run), reused(run)} {
		if text != "" {
			lines = append(lines, wrapped("  ", text, s.page())...)
		}
	}
	return lines
}

// part is one row of a breakdown.
type part struct {
	name string
	took time.Duration
	// what says what it is.
	what string
}

// parts are all rows of a breakdown in the order of a task's life; they sum to its Wall.
func parts(b timeline.Breakdown) []part {
	return []part{
		{"broker", b.Broker, "the event was on its way"},
		{"engine", b.Engine, "the workflow decided what is next, or its end was told"},
		{"queue", b.Queue, "tasks waited for a slot, for admission or for the next attempt"},
		{"start", b.Start, "processes or environments were started"},
		{"fetch", b.Fetch, "artifacts were read"},
		{"compute", b.Compute, "stages computed"},
		{"publish", b.Publish, "artifacts were written"},
		{"unattributed", b.Unattributed, "nothing tells: an attempt was lost, or the engine was away"},
	}
}

// breakdownLine says in one line, or two, where a run's time went, without the rows that took nothing; none for a run
// that took no time.
func breakdownLine(b timeline.Breakdown, s Style) []string {
	words := []string{"time went to"}
	for _, row := range parts(b) {
		if row.took > 0 {
			words = append(words, row.name+" "+seconds(row.took.Seconds())+",")
		}
	}
	if len(words) == 1 {
		return nil
	}
	last := len(words) - 1
	words[last] = strings.TrimSuffix(words[last], ",")
	return wrappedWords("  ", words, s.page())
}

// breakdownTable returns every row of a breakdown with its share; unattributed is always one of them.
func breakdownTable(b timeline.Breakdown, s Style) []string {
	t := newTable("time", ">took", ">share", "while")
	t.spare = []int{3}
	for _, row := range parts(b) {
		share := 0.0
		if b.Wall > 0 {
			share = row.took.Seconds() / b.Wall.Seconds()
		}
		t.add(row.name, seconds(row.took.Seconds()), percent(share), row.what)
	}
	t.add("in all", seconds(b.Wall.Seconds()), "", "")
	return t.lines(s, "  ")
}
