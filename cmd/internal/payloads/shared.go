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

// Reopen returns the documents of servers as NATS has them now, all changes among them that have been made before it is
// called.
type Reopen func(ctx context.Context) (*documents.Documents, error)

// OpenJournal notes that a server uses keys from now on. It refuses keys of which one is missing that is needed, of
// those that any server has encrypted with (a *MissingError); of servers that start at the same time with keys that the
// other lacks, one is refused at least. What an engine of before has noted in the state directory is taken in, and its
// file renamed.
func OpenJournal(
	ctx context.Context, shared *documents.Documents, reopen Reopen, server Server, keys *Keys,
	retention time.Duration, now time.Time,
) (*Journal, error) {
	j := &Journal{server: server, all: documents.Of[served](shared, kind, nil), keys: keys}
	now = now.UTC().Truncate(time.Second)
	if err := j.takeIn(ctx, now); err != nil {
		return nil, err
	}
	others, err := j.others(ctx, j.all, retention, now)
	if err != nil {
		return nil, err
	}
	var own []Used
	var before *served // what the document was
	err = j.all.Change(ctx, server.ID, func(was served, known bool) (_ served, err error) {
		if before = nil; known {
			before = &was
		}
		own, err = check(was.Used, others, keys, retention, now)
		if err == nil && len(own) == 0 {
			err = documents.Remove
		}
		return served{Name: server.Name, Used: own, Seen: now}, err
	})
	if err != nil {
		return nil, err
	}
	// A server that starts at the same time has written before this one reads, or reads what this one has written.
	if others, err = j.again(ctx, reopen, own, retention, now); err != nil {
		return nil, errors.Join(err, j.putBack(ctx, before))
	}
	return j, writeSeen(server.Dir, seen{own, others})
}

// others are what the other servers have encrypted with, by what documents say. Documents of which nothing is kept any
// more are removed, as of state directories that are gone.
func (j *Journal) others(
	ctx context.Context, all *documents.Set[served], retention time.Duration, now time.Time,
) (others []served, err error) {
	for id, one := range all.All() {
		if id == j.server.ID {
			continue
		}
		if !one.over(retention, now) {
			others = append(others, one)
			continue
		}
		if err := j.all.Change(ctx, id, func(still served, _ bool) (served, error) {
			if !still.over(retention, now) {
				return still, nil
			}
			return still, documents.Remove
		}); err != nil {
			return nil, err
		}
	}
	return others, nil
}

// again returns what the other servers have encrypted with as NATS has it now, and whether what is needed is there
// still.
func (j *Journal) again(
	ctx context.Context, reopen Reopen, own []Used, retention time.Duration, now time.Time,
) ([]served, error) {
	later, err := reopen(ctx)
	if err != nil {
		return nil, fmt.Errorf("look which payload keys other servers use: %w", err)
	}
	others, err := j.others(ctx, documents.Of[served](later, kind, nil), retention, now)
	if err == nil {
		_, err = check(own, others, j.keys, retention, now)
	}
	return others, err
}

// putBack makes the document of this server what it was: it has encrypted nothing.
func (j *Journal) putBack(ctx context.Context, before *served) error {
	return j.all.Change(ctx, j.server.ID, func(now served, _ bool) (served, error) {
		if before == nil {
			return now, documents.Remove
		}
		return *before, nil
	})
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

// takeIn takes in what an engine of before has noted. There is a document already where that engine has gone on with
// the state directory since: what it has used counts beside what was used before.
func (j *Journal) takeIn(ctx context.Context, now time.Time) error {
	used, err := readEarlier(j.server.Dir)
	if err != nil || used == nil {
		return err
	}
	var own []Used
	if err := j.all.Change(ctx, j.server.ID, func(was served, known bool) (served, error) {
		if !known {
			was = served{Name: j.server.Name}
		}
		was.Seen = now // also where this start is refused: what was used until now counts for as long as runs are kept
		was.Used = merge(was.Used, used)
		own = was.Used
		return was, nil
	}); err != nil {
		return fmt.Errorf("take in which payload keys were used: %w", err)
	}
	path, last := filepath.Join(j.server.Dir, earlierFile), seen{}
	err = readJSON(filepath.Join(j.server.Dir, SeenFile), &last)
	if err == nil {
		err = writeSeen(j.server.Dir, seen{own, last.Others}) // Describe knows of it even where this start is refused
	}
	if err == nil {
		err = os.Rename(path, path+access.TakenIn)
	}
	if err != nil {
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
	return describe(merge(last.Own, earlier), last.Others, keys, retention, now)
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
