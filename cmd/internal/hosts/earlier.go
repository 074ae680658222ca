package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
)

// fileName is the file below the state directory in which engines of 2026-11-27 and before kept who has joined.
const fileName = "hosts.json"

// TakeIn takes in who has joined an engine of before on the state directory dir. Where the documents have something
// already, the stack was taken back to that engine since, and what it says counts: who is not in its file is removed,
// and who is drained there is. Only a host that has not joined it since stays as it is otherwise. The file is renamed,
// so that who is removed later is not taken in again.
func TakeIn(ctx context.Context, dir string, shared *documents.Documents) error {
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var kept struct {
		Hosts []member `json:"hosts"`
	}
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		return fmt.Errorf("read which hosts have joined: %s: %w; put it back from a copy, or remove it: every host has "+
			"to join again then", path, err)
	}
	members := documents.Of[member](shared, kind, nil)
	gone := members.All()
	for _, one := range kept.Hosts {
		delete(gone, one.Name)
		if err := members.Change(ctx, one.Name, func(there member, known bool) (member, error) {
			if known && !one.Seen.After(there.Seen) {
				there.Drained = one.Drained
				return there, nil
			}
			return one, nil
		}); err != nil {
			return fmt.Errorf("take in which hosts have joined: %w", err)
		}
	}
	for name := range gone {
		if err := members.Change(ctx, name, func(there member, _ bool) (member, error) {
			return there, documents.Remove
		}); err != nil {
			return fmt.Errorf("remove a host that has not joined the engine of before: %w", err)
		}
	}
	if err := os.Rename(path, path+access.TakenIn); err != nil {
		return fmt.Errorf("take in which hosts have joined: %w", err)
	}
	return nil
}
