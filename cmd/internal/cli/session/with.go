package session

import (
	"context"

	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// With has do use the stack that runs on the state directory; its error wraps ErrNoStack when there is none.
func With(ctx context.Context, t *tool.Tool, do func(*Session) error) error {
	s, err := Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	return do(s)
}

// List prints what find finds on the stack that runs: as JSON, as the sentence none where it is nothing, or by show.
func List[T any](
	ctx context.Context, t *tool.Tool, asJSON bool, none string, find func(*Session) ([]T, error),
	show func(*Session, []T) error,
) error {
	return With(ctx, t, func(s *Session) error {
		found, err := find(s)
		switch {
		case err != nil:
			return err
		case asJSON && found == nil:
			return t.WriteJSON([]T{})
		case asJSON:
			return t.WriteJSON(found)
		case len(found) == 0:
			t.Say("%s\n", none)
			return nil
		default:
			return show(s, found)
		}
	})
}
