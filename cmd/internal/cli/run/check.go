package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

func checkCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "check FILE.yaml [FLAGS]",
		Short: "Say all that is wrong with a chain of commands, or in which order its stages run",
		Long: `Read the file of a chain and say everything that is wrong with it, with line and column; the files
and directories that it names must be there. Without a mistake, its stages are listed in an order in
which they can run, with those that each waits for. Nothing is started.

The exit code is 0 without a mistake, and 2 with one.`,
		Example: `  spillway check churn.yaml
  spillway check churn.yaml --json | jq -r '.stages[].stage'`,
		Args: flag.Positional("the file of a chain"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := readChain(t, args[0])
			if err != nil {
				return err
			}
			steps := c.Steps()
			if asJSON {
				return t.WriteJSON(checked{Chain: c.Name(), Stages: steps})
			}
			t.Say("chain %s: %s\n", c.Name(), display.Count(len(steps), "stage"))
			for _, step := range steps {
				t.Say("  %s\n", step)
			}
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the chain and its stages as JSON")
	return command
}

// checked is the JSON of a chain without a mistake.
type checked struct {
	Chain  string       `json:"chain"`
	Stages []chain.Step `json:"stages"`
}

// readChain reads a chain's file and prints all that is wrong with it.
func readChain(t *tool.Tool, file string) (chain.Chain, error) {
	text, err := flag.ReadFile(file, flag.MostYAML)
	if err != nil {
		return chain.Chain{}, &fault.UsageError{
			Problem: fmt.Sprintf("read %s: %v", file, fault.WithoutPath(err)),
			Hint:    "give the file of a chain; a pipeline's name has no .yaml",
		}
	}
	directory := os.DirFS(filepath.Dir(file))
	c, err := chain.Parse(file, text, chain.Checks{
		Stat: func(path string) (fs.FileInfo, error) { return fs.Stat(directory, path) }, Binding: trigger.Check,
	})
	if wrong, ok := errors.AsType[*chain.Error](err); ok {
		for _, problem := range wrong.Problems {
			t.Complain("%s\n", problem)
		}
		return chain.Chain{}, &fault.UsageError{
			Problem: fmt.Sprintf("%s has %s", file,
				display.Count(len(wrong.Problems), "mistake")),
			Hint: "correct the file; `spillway check " + file + "` reads it again",
		}
	}
	return c, err
}
