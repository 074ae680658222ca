package build_test

import (
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

func TestTheGoCommandEndsWithTheEngineThatStartedIt(t *testing.T) {
	spawntest.EndsWithItsStarter(t, "go", "build", func(dir string) error {
		_, err := build.NewStore(filepath.Join(dir, "state"), nil).Build(t.Context(), dir)
		return err
	})
}
