package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// passes lets a group pass a directory to what it knows to be there, and not list it.
const passes fs.FileMode = 0o710

// hardlinks is where the kernel says whether users are kept from giving other users' files another name. Where they
// are not, a stage could name a file of root among its outputs.
const hardlinks = "/proc/sys/fs/protected_hardlinks"

// admitStages lets the user of stages reach what they need of the state directory: artifacts, and by known names
// builds, workspaces and functions. Everything else there stays its owner's alone. Without such a user, what one
// was admitted to before is shut again; the state directory itself is, whenever its keys are opened. Store is nil where
// artifacts are elsewhere, and relayed.
func admitStages(ctx context.Context, config *Config, store *artifact.Files) error {
	user := config.StageUser
	switch {
	case user == nil && store == nil:
		return nil
	case user == nil:
		return store.Withdraw()
	}
	if text, err := os.ReadFile(hardlinks); err == nil && bytes.Equal(bytes.TrimSpace(text), []byte("0")) {
		return fmt.Errorf("stages cannot run as %s: on this machine users may link to files of others; "+
			"set fs.protected_hardlinks to 1 (sysctl)", user.Name)
	}
	if err := user.Admit(passes, config.StateDir); err != nil {
		return err
	}
	if err := user.Reaches(config.StateDir); err != nil {
		return fmt.Errorf("stages cannot run as %s: %w; let others pass it (chmod o+x), "+
			"or choose another state directory with --state", user.Name, err)
	}
	if store != nil {
		if err := store.Share(user.GID); err != nil {
			return err
		}
	}
	config.Logger.InfoContext(ctx, "stages run as another user", "user", user.Name, "uid", user.UID, "gid", user.GID)
	return nil
}

// stageBuilds finds the programs of stages, and lets their user execute them.
type stageBuilds struct {
	activities.Builds
	user *spawn.User // nil is this process's
}

// Path finds the program of a build.
func (s stageBuilds) Path(ctx context.Context, app, build string) (string, error) {
	path, err := s.Builds.Path(ctx, app, build)
	if err != nil || s.user == nil {
		return path, err
	}
	place := filepath.Dir(path)
	return path, errors.Join(s.user.Admit(passes, filepath.Dir(place), place), s.user.Admit(passes|0o040, path))
}
