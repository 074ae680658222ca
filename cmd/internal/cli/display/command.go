package display

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/ledger"
)

// CommandEnd returns the line that tells how the run of one command has ended.
func CommandEnd(run ledger.RunView) string {
	line := fmt.Sprintf("run %s %s in %s", Clean(run.Run), run.State, seconds(run.EndedAt.Sub(run.StartedAt).Seconds()))
	if len(run.Stages) > 0 && run.Stages[0].PeakMemory > 0 {
		line += fmt.Sprintf(", %s of memory at most", run.Stages[0].PeakMemory)
	}
	line += ", " + run.Totals.Cost.String()
	if run.Error != "" {
		line += ": " + Clean(run.Error)
	}
	return line
}

// Retry returns the line that tells why a command is tried again, given its run before and now, and how often it may
// fail; empty when it is not.
func Retry(before, now ledger.RunView, most int) string {
	if Ended(now) || len(now.Stages) == 0 {
		return ""
	}
	var was ledger.StageView
	if len(before.Stages) > 0 {
		was = before.Stages[0]
	}
	is := now.Stages[0]
	of := fmt.Sprintf(" (%d of %d)", is.Failed, most)
	switch {
	case is.Failed >= most || is.Attempts == was.Attempts:
		return ""
	case is.OutOfMemory > was.OutOfMemory:
		return fmt.Sprintf("attempt %d ran out of memory at %s%s; the next one has more", is.Attempts, is.Grant.Memory, of)
	case is.Failed > was.Failed:
		return fmt.Sprintf("attempt %d failed%s; it is tried again", is.Attempts, of)
	case is.Lost > was.Lost:
		return fmt.Sprintf("attempt %d was lost with its host; it is tried again", is.Attempts)
	default:
		return ""
	}
}
