package stack

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// severity is how much what a check found matters.
type severity string

const (
	fine    severity = "ok"
	notice  severity = "note" // works, but less well than it could
	problem severity = "problem"
)

// finding is one thing that doctor has looked at.
type finding struct {
	// Check names it.
	Check string `json:"check"`
	// Severity is ok, note or problem.
	Severity severity `json:"severity"`
	// Found says what there is.
	Found string `json:"found"`
	// Do says what to do about it; empty when nothing.
	Do string `json:"do,omitempty"`
}

func doctorCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	var apps []string
	command := &cobra.Command{
		Use:   "doctor [FLAGS]",
		Short: "Say what this machine offers and what is missing",
		Long: `Look at what Spillway uses on this machine: CPUs, memory, kernel, what holds attempts to their sizes
(cgroups), GPUs, the Go toolchain, a C compiler, PyTorch, how this binary and the app's were built,
the usual ports, the state directory, and whether AWS is configured (values are never shown). A
problem keeps something from working, and makes the exit code 1; a note says what would work better.`,
		Example: `  spillway doctor
  spillway doctor --app ./myapp
  spillway doctor --json`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return doctor(cmd.Context(), t, apps, asJSON) },
	}
	command.Flags().StringArrayVar(&apps, "app", nil,
		"`BINARY` of an app, or DIR of its Go main package, to look at too; may be given several times")
	command.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON")
	return command
}

func doctor(ctx context.Context, t *tool.Tool, apps []string, asJSON bool) error {
	findings, err := examine(ctx, t, apps)
	if err != nil {
		return err
	}
	problems := 0
	for _, one := range findings {
		if one.Severity == problem {
			problems++
		}
	}
	if asJSON {
		if err := t.WriteJSON(findings); err != nil {
			return err
		}
	} else {
		for _, line := range findingLines(findings) {
			t.Say("%s\n", display.Own(line))
		}
	}
	if problems > 0 {
		if !asJSON {
			t.Say("problems: %d\n", problems)
		}
		return fault.ErrReported
	}
	return nil
}

// findingLines writes one line for each finding, and what to do beneath it.
func findingLines(findings []finding) []string {
	width := 0
	for _, one := range findings {
		width = max(width, len(one.Check))
	}
	var lines []string
	for _, one := range findings {
		lines = append(lines, fmt.Sprintf("%-7s  %-*s  %s", one.Severity, width, one.Check, one.Found))
		if one.Do != "" {
			lines = append(lines, strings.Repeat(" ", 7+2+width+2)+"-> "+one.Do)
		}
	}
	return lines
}
