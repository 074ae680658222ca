package s3store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wait"
)

var _ activities.Board = (*Store)(nil)

// Post leaves data under a name of a group, by a write on the condition that nothing is there; see activities.Board.
func (s *Store) Post(ctx context.Context, group, name string, data []byte) (first bool, err error) {
	if err = activities.CheckMessage(group, name); err == nil {
		sum := sha256.Sum256(data)
		c := &content{ref: activities.Ref{Bytes: int64(len(data))}, small: data, sum: sum[:]}
		for range mostTurns {
			first, err = s.create(ctx, s.boardKey(group, name), c)
			if !errors.Is(err, errConflict) || !wait.For(ctx, conflictPause) {
				break
			}
		}
	}
	if err != nil {
		return false, fmt.Errorf("post %s for %s: %w", name, group, s.explain(err))
	}
	return first, nil
}

// Look returns what is under a name; see activities.Board.
func (s *Store) Look(ctx context.Context, group, name string) ([]byte, error) {
	err := activities.CheckMessage(group, name)
	read := &resumed{store: s, ctx: ctx, key: s.boardKey(group, name), left: attempts - 1}
	if err == nil {
		read.body, read.size, err = s.get(ctx, read.key, 0)
	}
	if absent(err) {
		return nil, fmt.Errorf("look at %s of %s: %w", name, group, activities.ErrMissing)
	}
	if err != nil {
		return nil, fmt.Errorf("look at %s of %s: %w", name, group, s.explain(err))
	}
	var data bytes.Buffer
	if err = activities.Found(ctx, read.size); err == nil {
		_, err = data.ReadFrom(read)
	}
	if err := errors.Join(err, read.Close()); err != nil {
		return nil, fmt.Errorf("look at %s of %s: %w", name, group, err)
	}
	return data.Bytes(), nil
}

// Wipe removes messages; see activities.Board. A role that may not remove objects is refused; the engine removes what
// is a day old when it starts.
func (s *Store) Wipe(ctx context.Context, group string, names ...string) error {
	err := activities.CheckMessage(group, names...)
	if err == nil && len(names) == 0 {
		err = s.wipe(ctx, s.boardName(group, ""), time.Time{})
	}
	for _, name := range names {
		if err == nil {
			err = s.remove(ctx, s.boardKey(group, name))
		}
	}
	if err != nil {
		return fmt.Errorf("wipe the board of %s: %w", group, err)
	}
	return nil
}

// wipe removes the groups below a prefix whose newest message was written before a time; the zero time is any.
func (s *Store) wipe(ctx context.Context, prefix string, before time.Time) error {
	keys, inUse := map[string][]string{}, map[string]bool{} // by group
	err := s.each(ctx, prefix, func(name string, object types.Object) error {
		group := path.Dir(name)
		keys[group] = append(keys[group], s.key(name))
		inUse[group] = inUse[group] || !before.IsZero() && !s.written(object.LastModified).Before(before)
		return nil
	})
	for group, keys := range keys {
		for _, key := range keys {
			if err == nil && !inUse[group] {
				err = s.remove(ctx, key)
			}
		}
	}
	return err
}

func (s *Store) boardName(group, name string) string {
	return artifact.Boards + "/" + group + "/" + name
}

func (s *Store) boardKey(group, name string) string { return s.key(s.boardName(group, name)) }
