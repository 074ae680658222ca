package engine

import (
	"context"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/cmd/internal/host"
)

// admitStages lets the user of stages reach what they need of the state directory: artifacts, and what host.Admit says.
// Without such a user, what one was admitted to before is shut again; the state directory itself is, whenever its keys
// are opened. Store is nil where artifacts are elsewhere, and relayed.
func admitStages(ctx context.Context, config *Config, store *artifact.Files) error {
	user := config.StageUser
	switch {
	case user == nil && store == nil:
		return nil
	case user == nil:
		return store.Withdraw()
	}
	if err := host.Admit(user, config.StateDir); err != nil {
		return err
	}
	if store != nil {
		if err := store.Share(user.GID); err != nil {
			return err
		}
	}
	config.Logger.InfoContext(ctx, "stages run as another user", "user", user.Name, "uid", user.UID, "gid", user.GID)
	return nil
}
