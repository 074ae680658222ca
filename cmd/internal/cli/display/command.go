package display

import (
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// CommandEnd returns the line that tells how the run of one command has ended.
func CommandEnd(run ledger.RunView) string {
	line := fmt.Sprintf("run %s %s in %s", Clean(run.Run), run.State, seconds(run.EndedAt.Sub(run.StartedAt).Seconds()))
	if len(run.Stages) > 0 && run.Stages[0].PeakMemory > 0 {
		line += fmt.Sprintf(", %s of memory at most", run.Stages[0].PeakMemory)
	}
	line += ", " + run.Totals.Cost.String()
	if run.Error != "" {
		line += ": " + failure(run)
	}
	return line
}

// failure is why a run failed, without advice where moreMoney gives it with a number.
func failure(run ledger.RunView) string {
	if moreMoney(run) != "" {
		return Clean(strings.Replace(run.Error, wire.RaiseBudget, "", 1))
	}
	return Clean(run.Error)
}

// moreMoney is the --budget with which a run that has failed for want of money is worth another try: twice what it had,
// or what it was expected to cost; empty for any other run.
func moreMoney(run ledger.RunView) string {
	if run.State != predictor.RunFailed || run.Goal.Budget <= 0 || !strings.Contains(run.Error, wire.RaiseBudget) {
		return ""
	}
	had := max(run.Goal.Budget, run.Totals.Cost)
	return "--budget " + alerting.BudgetFlag(max(2*had.USD(), expected(run).Cost.High))
}

// CommandAdvice returns the line that says what helps a command that has failed; empty when nobody knows.
func CommandAdvice(run ledger.RunView) string {
	if budget := moreMoney(run); budget != "" {
		return "run it again with more money: " + budget
	}
	return ""
}

// Lost reports whether an attempt of a command was lost between two views of its run.
func Lost(before, now ledger.RunView) bool {
	was, is := onlyStage(before), onlyStage(now)
	return is.Lost > was.Lost
}

// Waits reports whether no attempt of a command has begun yet.
func Waits(run ledger.RunView) bool {
	stage := onlyStage(run)
	return run.Run != "" && !Ended(run) && stage.Attempts == 0 && stage.Running == 0
}

// onlyStage is the stage of a command's run; the zero StageView before it was scheduled.
func onlyStage(run ledger.RunView) ledger.StageView {
	if len(run.Stages) == 0 {
		return ledger.StageView{}
	}
	return run.Stages[0]
}

// Retry returns the line that tells why a command is tried again, given its run before and now, how often it may fail,
// and the attempt that was lost where one was; empty when it is not.
func Retry(before, now ledger.RunView, most int, lost timeline.Attempt) string {
	if Ended(now) {
		return ""
	}
	was, is := onlyStage(before), onlyStage(now)
	counted := is.Failed - is.OutOfMemory // running out of memory is tried again besides
	of := fmt.Sprintf(" (%d of %d)", counted, most)
	if counted != is.Attempts {
		of = fmt.Sprintf(", failure %d of at most %d (running out of memory or being lost is none)", counted, most)
	}
	switch {
	case is.Attempts == was.Attempts:
		return ""
	case is.OutOfMemory > was.OutOfMemory:
		return fmt.Sprintf("attempt %d ran out of memory at %s; the next one has more", is.Attempts, is.Grant.Memory)
	case counted >= most:
		return ""
	case is.Failed > was.Failed:
		return fmt.Sprintf("attempt %d failed%s; it is tried again", is.Attempts, of)
	case is.Lost > was.Lost && lost.Cause == predictor.CauseBudget:
		return fmt.Sprintf("attempt %d was stopped: %s", is.Attempts, Clean(lost.Error))
	case is.Lost > was.Lost && lost.Cause != "" && lost.Cause != predictor.CauseHostLost:
		return fmt.Sprintf("attempt %d was lost: %s; it is tried again", is.Attempts, Clean(lost.Error))
	case is.Lost > was.Lost && lost.Task != "" && lost.Wall == 0:
		return fmt.Sprintf("attempt %d waited at a host that was lost; its task is taken again", is.Attempts)
	case is.Lost > was.Lost:
		return fmt.Sprintf("attempt %d was lost with its host; it is tried again", is.Attempts)
	default:
		return ""
	}
}

// Retries holds back why an attempt is tried again until it is: a program may say that it would fail again, and a run
// may be over, and no view of the run tells so before its end. The zero value holds nothing.
type Retries struct {
	held  string
	after int // how many attempts had ended when that was said
}

// Tell returns what there is to say of a view of the run, the oldest first; most and lost are those of [Retry].
func (r *Retries) Tell(before, now ledger.RunView, most int, lost timeline.Attempt) []string {
	var lines []string
	was, is := onlyStage(before), onlyStage(now)
	if r.held != "" && is.Attempts > r.after {
		lines, r.held = append(lines, r.held), ""
	}
	again := Retry(before, now, most, lost)
	switch {
	case again == "":
	case is.Failed == was.Failed: // it was lost: nothing keeps it from being tried again
		lines = append(lines, again)
	default:
		r.held, r.after = again, is.Attempts
	}
	if r.held != "" && is.Running > 0 && !Ended(now) {
		lines, r.held = append(lines, r.held), ""
	}
	return lines
}
