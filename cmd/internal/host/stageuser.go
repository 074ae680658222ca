package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// passes lets a group pass a directory to what it knows to be there, and not list it.
const passes fs.FileMode = 0o710

// hardlinks is where the kernel says whether users are kept from giving other users' files another name. Where they
// are not, a stage could name a file of root among its outputs.
const hardlinks = "/proc/sys/fs/protected_hardlinks"

// Admit lets the user of stages pass a state directory, in which it finds by known names what it needs: builds,
// workspaces and functions. Everything else there stays its owner's alone; a directory that it cannot reach is refused.
func Admit(user *spawn.User, stateDir string) error {
	if text, err := os.ReadFile(hardlinks); err == nil && bytes.Equal(bytes.TrimSpace(text), []byte("0")) {
		return fmt.Errorf("stages cannot run as %s: on this machine users may link to files of others; "+
			"set fs.protected_hardlinks to 1 (sysctl)", user.Name)
	}
	if err := user.Admit(passes, stateDir); err != nil {
		return err
	}
	if err := user.Reaches(stateDir); err != nil {
		return fmt.Errorf("stages cannot run as %s: %w; let others pass it (chmod o+x), "+
			"or choose another state directory with --state", user.Name, err)
	}
	return nil
}

// executable finds the programs of stages, and lets their user execute them.
type executable struct {
	activities.Builds

	user *spawn.User // nil is this process's
}

// Path finds the program of a build.
func (e executable) Path(ctx context.Context, app, build string) (string, error) {
	path, err := e.Builds.Path(ctx, app, build)
	if err != nil || e.user == nil {
		return path, err
	}
	place := filepath.Dir(path)
	return path, errors.Join(e.user.Admit(passes, filepath.Dir(place), place), e.user.Admit(passes|0o040, path))
}
