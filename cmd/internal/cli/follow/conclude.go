package follow

import (
	"io"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// Output is where progress goes.
func Output(t *tool.Tool, asJSON bool) io.Writer {
	switch {
	case t.Quiet:
		return io.Discard
	case asJSON:
		return t.Err
	default:
		return t.Out
	}
}

// Conclude prints what is left of a run that has ended and returns an error when it did not succeed.
func Conclude(t *tool.Tool, model display.Model, stack web.Stack, asJSON bool, viewer *Viewer) error {
	if asJSON {
		if err := t.WriteJSON(display.NewReport(model, stack.PoolCPUs, stack.FunctionCPUs)); err != nil {
			return err
		}
	} else {
		style, _ := t.StyleOf(t.Out)
		if viewer.said() {
			t.Say("\n")
		}
		for _, line := range display.Summary(model, style) {
			t.Say("%s\n", display.Own(line))
		}
	}
	if model.Run.State != predictor.RunSucceeded {
		return fault.ErrReported // the summary says why
	}
	return nil
}
