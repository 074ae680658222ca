package display

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Log turns views and decisions into lines to append, each said once. It is for one goroutine.
type Log struct {
	runs   map[string]*logged
	over   []string  // those of runs that have ended, by when that was told, of a log of all runs; mostOver at most
	start  time.Time // times are since then; the zero time writes the time of day
	stages bool
	since  time.Time // runs that ended before, and of which it knows nothing, are not told
}

// mostOver is how many runs that have ended a log of all runs knows, lest it tell an end again that it hears of twice.
const mostOver = 1000

// logged is what was said about one run.
type logged struct {
	state    predictor.RunState
	started  map[string]bool
	finished map[string]bool
	expected bool // what is expected of it
	misses   Misses
	over     bool
	ended    time.Time // of one that is over
}

// NewLog returns a log of all runs that have not ended before since: a line at the start and at the end of each, with
// the time of day.
func NewLog(since time.Time) *Log { return &Log{runs: map[string]*logged{}, since: since} }

// NewRunLog returns a log of one run that tells of its stages too, with the time since the run's start.
func NewRunLog() *Log { return &Log{runs: map[string]*logged{}, stages: true} }

// Run returns what is new in a view; often nothing.
func (l *Log) Run(view ledger.RunView) []string {
	said, seen := l.runs[view.Run]
	if !seen && Ended(view) && view.EndedAt.Before(l.since) {
		return nil
	}
	if !seen {
		said = &logged{started: map[string]bool{}, finished: map[string]bool{}}
		l.runs[view.Run] = said
	}
	if l.stages {
		l.start = view.StartedAt
	}
	var lines []string
	if !seen {
		lines = append(lines, fmt.Sprintf("%s  run %s of %s started, %s", l.clock(view.StartedAt), Clean(view.Run),
			Clean(view.Pipeline), goal(view.Goal)))
	}
	if l.stages {
		now := view.StartedAt.Add(time.Duration(view.Actual.Seconds * float64(time.Second)))
		if !said.expected && !Ended(view) {
			expected := said.misses.Expected(view)
			said.expected = len(expected) > 0
			for _, line := range expected {
				lines = append(lines, l.clock(now)+"  "+line)
			}
		}
		for _, line := range stageLines(view, said) {
			lines = append(lines, l.clock(now)+"  "+line)
		}
	}
	if Ended(view) && said.state != view.State {
		lines = append(lines, l.clock(view.EndedAt)+"  "+endLine(view))
	}
	if Ended(view) && !l.stages && !said.over {
		said.started, said.finished = nil, nil // only the state is asked for again
		said.over = true
		l.forget(view)
	}
	said.state = view.State
	return lines
}

// forget makes room for a run that has ended. Those that are forgotten count as ended before the log began.
func (l *Log) forget(view ledger.RunView) {
	l.runs[view.Run].ended = view.EndedAt
	l.over = append(l.over, view.Run)
	if len(l.over) <= mostOver {
		return
	}
	oldest := l.over[0]
	l.over = slices.Delete(l.over, 0, 1)
	if gone := l.runs[oldest]; gone != nil {
		if after := gone.ended.Add(1); after.After(l.since) {
			l.since = after
		}
		delete(l.runs, oldest)
	}
}

// stageLines says which stages have started and finished since the last view.
func stageLines(view ledger.RunView, said *logged) []string {
	var lines []string
	for _, stage := range view.Stages {
		total := tasksOf(stage)
		if total > 0 && !said.started[stage.Name] {
			said.started[stage.Name] = true
			lines = append(lines, fmt.Sprintf("stage %s started, %s known of", Clean(stage.Name), Count(total, "task")))
		}
		if total > 0 && stage.Done >= total && stage.Running == 0 && !said.finished[stage.Name] {
			said.finished[stage.Name] = true
			lines = append(lines, fmt.Sprintf("stage %s: %s done (pool %d, function %d), %s, %s", Clean(stage.Name),
				Count(stage.Done, "task"),
				stage.Tasks[predictor.Pool], stage.Tasks[predictor.Function], seconds(stage.RunSeconds), stage.Cost))
		}
	}
	return lines
}

func endLine(view ledger.RunView) string {
	line := fmt.Sprintf("run %s %s in %s for %s (pool %d, function %d)", Clean(view.Run), view.State,
		seconds(view.EndedAt.Sub(view.StartedAt).Seconds()),
		view.Totals.Cost, view.Totals.Tasks[predictor.Pool], view.Totals.Tasks[predictor.Function])
	if view.Error != "" {
		line += ": " + Clean(view.Error)
	}
	return line
}

// Decision returns the line of a decision.
func (l *Log) Decision(decision predictor.Decision) string {
	return l.clock(decision.At) + "  " + change(decision)
}

// Alert returns the line of an alert; none for one that says what was said of its run.
func (l *Log) Alert(alert alerting.Alert) []string {
	if said := l.runs[alert.Run]; said != nil && !said.misses.News(alert) {
		return nil
	}
	if alert.Run == "" || strings.HasPrefix(alert.Message, "run "+alert.Run) { // what the engine has lost has no run
		return []string{fmt.Sprintf("%s  alert: %s", l.clock(alert.At), Clean(alert.Message))}
	}
	return []string{fmt.Sprintf("%s  alert: run %s: %s", l.clock(alert.At), Clean(alert.Run), Clean(alert.Message))}
}

func (l *Log) clock(at time.Time) string {
	if l.stages {
		return fmt.Sprintf("%8s", seconds(max(at.Sub(l.start).Seconds(), 0)))
	}
	return at.Local().Format(time.TimeOnly)
}
