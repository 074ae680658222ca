package payloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wait"
)

const (
	// earlierFile is the file of a state directory in which engines of 2026-11-27 and before kept which keys have
	// encrypted.
	earlierFile = "payload-keys.json"
	// SeenFile is the file of a state directory with what its engine has seen of the documents last: who asks what keys
	// are for reaches no NATS.
	SeenFile = "payload-keys-seen.json"
	// kind is that of the documents of servers.
	kind = "payload-keys"
)

// Server is one of a stack that encrypts.
type Server struct {
	// Dir is its state directory, ID tells that from all others, and Name is the name of its machine.
	Dir, ID, Name string
}

// Journal is which keys the servers of a stack have encrypted with, without the keys: each server has a document of its
// own, so that one which joins knows of the others. Its methods may be called concurrently. Use OpenJournal.
type Journal struct {
	server Server
	all    *documents.Set[served]
	keys   *Keys
}

// seen is the content of SeenFile.
type seen struct {
	Own    []Used   `json:"own"`
	Others []served `json:"others,omitempty"`
}

// OpenJournal notes that a server uses keys from now on. It refuses keys of which one is missing that is needed, of
// those that any server has encrypted with (a *MissingError). What an engine of before has noted in the state directory
// is taken in, and its file renamed.
func OpenJournal(
	ctx context.Context, shared *documents.Documents, server Server, keys *Keys, retention time.Duration, now time.Time,
) (*Journal, error) {
	j := &Journal{server: server, all: documents.Of[served](shared, kind, nil), keys: keys}
	now = now.UTC().Truncate(time.Second)
	if err := j.takeIn(ctx, now); err != nil {
		return nil, err
	}
	var others []served
	for id, one := range j.all.All() {
		if id == server.ID {
			continue
		}
		if one.over(retention, now) { // state directories that are gone, too
			if err := j.all.Change(ctx, id, func(still served, _ bool) (served, error) {
				if !still.over(retention, now) {
					return still, nil
				}
				return still, documents.Remove
			}); err != nil {
				return nil, err
			}
			continue
		}
		others = append(others, one)
	}
	var own []Used
	err := j.all.Change(ctx, server.ID, func(was served, _ bool) (_ served, err error) {
		own, err = check(was.Used, others, keys, retention, now)
		if err == nil && len(own) == 0 {
			err = documents.Remove
		}
		return served{Name: server.Name, Used: own, Seen: now}, err
	})
	if err != nil {
		return nil, err
	}
	return j, writeSeen(server.Dir, seen{own, others})
}

// Run notes every hour that the server is at work, until ctx ends.
func (j *Journal) Run(ctx context.Context, now func() time.Time) error {
	for wait.For(ctx, seenEvery) {
		if len(j.keys.IDs()) == 0 {
			continue
		}
		at := now().UTC().Truncate(time.Second)
		// What NATS does not take is noted an hour later: until then the key is needed for an hour less than it might be.
		_ = j.all.Change(ctx, j.server.ID, func(was served, known bool) (served, error) {
			if !known {
				return was, documents.Remove
			}
			was.Seen = at
			return was, nil
		})
	}
	return nil
}

// takeIn takes in what an engine of before has noted. What the document has already stays.
func (j *Journal) takeIn(ctx context.Context, now time.Time) error {
	used, err := readEarlier(j.server.Dir)
	if err != nil || used == nil {
		return err
	}
	if err := j.all.Change(ctx, j.server.ID, func(was served, known bool) (served, error) {
		if known {
			return was, nil
		}
		return served{Name: j.server.Name, Used: used, Seen: now}, nil
	}); err != nil {
		return fmt.Errorf("take in which payload keys were used: %w", err)
	}
	path := filepath.Join(j.server.Dir, earlierFile)
	if err := os.Rename(path, path+access.TakenIn); err != nil {
		return fmt.Errorf("take in which payload keys were used: %w", err)
	}
	return nil
}

// readEarlier returns what an engine of before has noted; nil for nothing.
func readEarlier(dir string) (used []Used, err error) {
	err = readJSON(filepath.Join(dir, earlierFile), &used)
	return used, err
}

// Describe says what each key is for, as the engine of a state directory knew it last, and changes nothing. The error
// is that of OpenJournal.
func Describe(dir string, keys *Keys, retention time.Duration, now time.Time) (lines []string, err error) {
	var last seen
	if err := readJSON(filepath.Join(dir, SeenFile), &last); err != nil {
		return nil, err
	}
	earlier, err := readEarlier(dir)
	if err != nil {
		return nil, err
	}
	if last.Own == nil {
		last.Own = earlier
	}
	return describe(last.Own, last.Others, keys, retention, now)
}

// readJSON reads a file of a state directory that need not be there.
func readJSON(path string, value any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		return fmt.Errorf("read which payload keys were used: %w; see %s", err, path)
	}
	return nil
}

func writeSeen(dir string, last seen) error {
	var before seen
	path := filepath.Join(dir, SeenFile)
	if err := readJSON(path, &before); err == nil && slices.Equal(before.Own, last.Own) &&
		slices.EqualFunc(before.Others, last.Others, func(a, b served) bool {
			return a.Name == b.Name && a.Seen.Equal(b.Seen) && slices.Equal(a.Used, b.Used)
		}) {
		return nil
	}
	text, err := json.MarshalIndent(last, "", "  ")
	if err == nil {
		err = safefile.WriteFile(path, append(text, '\n'), 0o600, false)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", SeenFile, err)
	}
	return nil
}
