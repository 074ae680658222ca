package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/workers/python"
)

func pythonCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "python",
		Short: "Print where the Python module spillway is, for scripts that run without Spillway",
		Long: `Print the directory that has the Python module spillway, by which scripts report how far they are,
results and checkpoints. Attempts that Spillway runs find it by themselves, wherever they run. For a
script that is also started without, put the directory on PYTHONPATH or install the module from
there: then its functions check what they are given and do nothing else.

The module needs Python 3.8 and nothing else; spillway.huggingface and spillway.lightning have
callbacks for the Trainers of those. The directory is in the state directory, and belongs to this
version of spillway.`,
		Example: `  spillway python
  PYTHONPATH=$(spillway python) python3 train.py
  pip install "$(spillway python)"`,
		Args: flag.Positional(),
		RunE: func(*cobra.Command, []string) error { return pythonModule(t) },
	}
}

// pythonModule writes the module into the state directory, unless it is there, and prints where.
func pythonModule(t *tool.Tool) error {
	state, err := t.MakeStateDir()
	if err != nil {
		return err
	}
	dir := filepath.Join(state, "python-"+python.Digest())
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err = writeModule(state, dir); err != nil {
			return fault.Advise(err, "choose another directory with --state DIR")
		}
	} else if err != nil {
		return fmt.Errorf("look for the Python module: %w", err)
	}
	t.Say("%s\n", dir)
	return nil
}

// writeModule writes the module beside its place, and puts it there whole; somebody else may be first.
func writeModule(state, dir string) error {
	made, err := os.MkdirTemp(state, "python-")
	if err != nil {
		return fmt.Errorf("write the Python module: %w", err)
	}
	if err = python.Write(made); err == nil {
		err = os.Rename(made, dir)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(made))
	}
	if _, there := os.Stat(dir); there == nil {
		return nil
	}
	return err
}
