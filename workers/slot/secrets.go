package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/activities/wire"
)

// ErrNoSecret says that a secret is not there, or cannot be used: another attempt would not find it either.
var ErrNoSecret = errors.New("it needs a secret that it cannot be given")

// Secrets returns the secrets of the stage of a task, by their names, for this attempt of it. Which these are does not
// follow from the task, which a workflow has written, but from what was declared. An error that wraps ErrNoSecret is
// final, any other is no word about the secrets.
type Secrets func(ctx context.Context, task wire.Task, attempt int) (map[string]string, error)

// Obtain returns the secrets that an attempt is to begin with; nil for a task whose stage names none.
func Obtain(ctx context.Context, from Secrets, task wire.Task, attempt int) (map[string]string, error) {
	if !task.Secrets {
		return nil, nil
	}
	if from == nil {
		return nil, fmt.Errorf("stage %s: %w: nobody here has secrets", task.Stage.Name, ErrNoSecret)
	}
	secrets, err := from(ctx, task, attempt)
	if err != nil {
		return nil, fmt.Errorf("stage %s: %w", task.Stage.Name, err)
	}
	return secrets, nil
}
