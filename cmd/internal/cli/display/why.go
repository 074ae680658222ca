package display

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// Explained is everything that says why a run holds what it holds, and why it took what it took. Its JSON is that of
// `show --why --json`.
type Explained struct {
	// Run is the run as it is.
	Run ledger.RunView `json:"run"`
	// Breakdown is where its time went.
	Breakdown timeline.Breakdown `json:"breakdown"`
	// Latest are the decisions in force: of each row (stage, venue, what) the newest, by stage.
	Latest []predictor.Decision `json:"latest_decisions"`
	// Retries is the chain of runs that try each other again, from the first to the last that is known; empty when there
	// is only this one.
	Retries []string `json:"retries"`
	// Failures are attempts that did not succeed, the latest ones.
	Failures []Failure `json:"failures"`
}

// Failure is an attempt that did not succeed.
type Failure struct {
	timeline.Attempt

	// LastWords are the last lines that it printed, the oldest first.
	LastWords []string `json:"last_words"`
}

// LatestDecisions returns the newest decision of each row (stage, venue, what), in the order in which rows were first
// decided. The decisions are given oldest first.
func LatestDecisions(decisions []predictor.Decision) []predictor.Decision {
	type row struct {
		stage predictor.StageID
		venue predictor.Venue
		what  string
	}
	at := map[row]int{}
	latest := []predictor.Decision{}
	for _, decision := range decisions {
		key := row{decision.Stage, decision.Venue, decision.What}
		if i, seen := at[key]; seen {
			latest[i] = decision
			continue
		}
		at[key] = len(latest)
		latest = append(latest, decision)
	}
	return latest
}

// Why returns the lines that explain a run: time, money, each stage with its decisions, and what failed.
func Why(e Explained, m Model, s Style) []string {
	run := e.Run
	lines := []string{s.cut(fmt.Sprintf("%s %s", Clean(run.Pipeline), Clean(run.Run)),
		s.columns()-len(stateWord(run.State))-1) + " " + s.state(run.State)}
	if run.Error != "" {
		lines = append(lines, wrapped("  error     ", run.Error, s.page())...)
	}
	lines = append(lines, "  goal      "+goal(run.Goal))
	if len(e.Retries) > 1 {
		lines = append(lines, wrapped("  retries   ", strings.Join(e.Retries, " -> "), s.page())...)
	}
	lines = append(lines, compare(m, s)...)
	lines = append(lines, savings(run, s)...)
	lines = append(append(lines, ""), breakdownTable(e.Breakdown, s)...)
	for _, stage := range run.Stages {
		lines = append(append(lines, ""), stageWhy(e, stage, m, s)...)
	}
	if len(e.Failures) > 0 {
		lines = append(lines, "", s.paint(bold, "failed attempts"))
		for _, failure := range e.Failures {
			lines = append(lines, failureLines(failure, s)...)
		}
	}
	return lines
}

// stageWhy explains what one stage holds.
func stageWhy(e Explained, stage ledger.StageView, m Model, s Style) []string {
	lines := []string{s.paint(bold, "stage "+Clean(stage.Name)) +
		fmt.Sprintf("  %d of %s done, %s", stage.Done, Count(tasksOf(stage), "task"), spent(stage.Cost, stage.Running > 0))}
	t := newTable("", "predicted", "came", "median error")
	t.add("time", estimate(stage.PredictedWall, seconds), orDash(orUnknown(seconds)(stage.ActualWall)),
		orDash(median(stage.WallError, stage.WallErrors)))
	peak := func(venue predictor.Venue) string {
		return orDash(orUnknown(inUnit("bytes"))(float64(stage.Memory[venue].Peak)))
	}
	t.add("memory", estimate(stage.PredictedMemory, inUnit("bytes")), peak(predictor.Pool),
		orDash(median(stage.MemoryError, stage.MemoryErrors)))
	if _, ran := stage.Memory[predictor.Function]; ran {
		t.add("at functions", "none", peak(predictor.Function), "-")
	}
	lines = append(lines, t.lines(s, "  ")...)
	if !stage.Grant.IsZero() {
		holds := "  holds " + stage.Grant.String()
		if !stage.Declared.IsZero() {
			holds += "; its code asks for " + stage.Declared.String()
		}
		if size, fixed := e.Run.Static.Sizes[stage.Name]; fixed {
			holds += "; static: " + size.String()
		}
		lines = append(lines, holds)
	}
	if stage.Reused.Tasks > 0 {
		lines = append(lines, fmt.Sprintf("  reused %s of %s, which took %s and cost %s", Count(stage.Reused.Tasks, "result"),
			Clean(stage.Reused.From), seconds(stage.Reused.Seconds), stage.Reused.Saved))
	}
	for _, decision := range e.Latest {
		if decision.Stage.Name != stage.Name {
			continue
		}
		row := decision.What
		if decision.Venue != "" {
			row += " at " + string(decision.Venue)
		}
		was := ""
		if decision.From != decision.To {
			was = " (was " + decision.From + ")"
		}
		since := "since before the run"
		if age := decision.At.Sub(m.Run.StartedAt); age >= 0 && !m.Run.StartedAt.IsZero() {
			since = "since " + seconds(age.Seconds()) + " after its start"
		}
		lines = append(lines, wrapped(fmt.Sprintf("  %s: ", row),
			fmt.Sprintf("%s%s %s: %s", decision.To, was, since, decision.Reason), s.page())...)
	}
	return lines
}

// lasted is how long an attempt ran: what its Record says, or, where none came, from its start to when it was found
// lost.
func lasted(a timeline.Attempt) time.Duration {
	if a.Wall > 0 || a.StartedAt.IsZero() || a.EndedAt.IsZero() {
		return a.Wall
	}
	return max(0, a.EndedAt.Sub(a.StartedAt))
}

func failureLines(f Failure, s Style) []string {
	where := string(f.Venue)
	if f.Host != "" {
		where += ", host " + f.Host
	}
	why := strings.ReplaceAll(string(f.Outcome), "_", " ")
	if f.Cause != "" {
		why += " (" + strings.ReplaceAll(string(f.Cause), "_", " ") + ")"
	}
	held := "with " + f.Grant.String()
	if f.Grant.IsZero() {
		held = "holding what nobody told"
	}
	lines := wrapped("  ", fmt.Sprintf("%s attempt %d at %s after %s %s: %s", f.Task, f.Number, where,
		seconds(lasted(f.Attempt).Seconds()), held, why), s.page())
	for i := range lines {
		lines[i] = s.paint(red, lines[i])
	}
	if f.Error != "" {
		lines = append(lines, wrapped("    ", f.Error, s.page())...)
	}
	for _, word := range f.LastWords {
		lines = append(lines, "    | "+s.cut(Clean(word), s.page()-6))
	}
	return lines
}

// Latest orders attempts by when they ended and keeps the last most of them.
func Latest(attempts []timeline.Attempt, most int) []timeline.Attempt {
	attempts = slices.Clone(attempts)
	slices.SortStableFunc(attempts, func(a, b timeline.Attempt) int {
		return cmp.Or(a.EndedAt.Compare(b.EndedAt), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Number, b.Number))
	})
	return attempts[max(0, len(attempts)-most):]
}

func orDash(text string) string { return cmp.Or(text, "-") }
