package command_test

import (
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

func TestPythonEndsWithTheEngineThatStartedIt(t *testing.T) {
	spawntest.EndsWithItsStarter(t, "python3", "", func(dir string) error {
		h := newHost(t)
		h.Python = filepath.Join(dir, "python3")
		_, err := command.Prepare(t.Context(), h.Options,
			wire.Command{Arguments: []string{"true"}, Requirements: h.put(t, "a")}, activities.Ref{})
		return err
	})
}
