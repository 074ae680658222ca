package payloads

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// JournalFile is the file of a state directory that tells which keys have encrypted, without the keys.
const JournalFile = "payload-keys.json"

// Used is a key that has encrypted.
type Used struct {
	// ID is that of the key, and Mark tells it from another one of this ID.
	ID   string `json:"id"`
	Mark string `json:"mark"`
	// Since is when it began to encrypt, and Until when it was found that another one does; zero while it does.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
}

// MissingError says that a key is not there, or another of its ID, that has encrypted what Temporal still has.
type MissingError struct {
	Used
	// Other says that there is another key of that ID.
	Other bool
	// Needed is until when at least something that the key has encrypted is kept.
	Needed time.Time
	// Journal is the path of the file that tells so.
	Journal string
}

// Error implements error.
func (e *MissingError) Error() string {
	if e.Other {
		return fmt.Sprintf("the payload key %q is another than the one that has encrypted since %s under this ID", e.ID,
			e.Since.Format(time.DateOnly))
	}
	return fmt.Sprintf("the payload key %q is missing: runs that are kept until %s at least were encrypted with it", e.ID,
		e.Needed.Format(time.DateOnly))
}

// Advice says what to do.
func (e *MissingError) Advice() string {
	if e.Other {
		return "give the new key an ID of its own in --payload-keys-file, and put the old one back below it"
	}
	return "put it back into --payload-keys-file, below the one that is to encrypt; if it is lost, and those runs with " +
		"it, take its entry out of " + e.Journal
}

// check returns the journal as it is once keys are used from now on, or why they cannot be: a *MissingError. Runs are
// kept for the retention once they have ended.
func check(journal []Used, keys *Keys, retention time.Duration, now time.Time) ([]Used, error) {
	next := slices.Clone(journal)
	first := ""
	if ids := keys.IDs(); len(ids) > 0 {
		first = ids[0]
	}
	known := false
	for i := range next {
		used := &next[i]
		last := used.Until
		if last.IsZero() {
			last = now
		}
		one, there := keys.find(used.ID)
		switch needed := last.Add(retention); {
		case there && one.mark() != used.Mark:
			return nil, &MissingError{Used: *used, Other: true, Needed: needed}
		case !there && now.Before(needed):
			return nil, &MissingError{Used: *used, Needed: needed}
		case used.ID == first:
			known, used.Until = true, time.Time{}
		case used.Until.IsZero():
			used.Until = now
		}
	}
	if first != "" && !known {
		next = append(next, Used{ID: first, Mark: keys.keys[0].mark(), Since: now})
	}
	return next, nil
}

// Use notes in the state directory that keys are used from now on. It refuses keys of which one is missing that is
// needed (a *MissingError).
func Use(dir string, keys *Keys, retention time.Duration, now time.Time) error {
	journal, err := readJournal(dir)
	if err != nil {
		return err
	}
	next, err := check(journal, keys, retention, now.UTC().Truncate(time.Second))
	if err != nil {
		return placed(err, dir)
	}
	if slices.Equal(next, journal) {
		return nil
	}
	text, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", JournalFile, err)
	}
	if err := safefile.WriteFile(filepath.Join(dir, JournalFile), append(text, '\n'), 0o600, false); err != nil {
		return fmt.Errorf("write %s: %w", JournalFile, err)
	}
	return nil
}

// Describe says what each key is for, as the state directory knows it, and changes nothing. The error is that of Use.
func Describe(dir string, keys *Keys, retention time.Duration, now time.Time) (lines []string, err error) {
	journal, err := readJournal(dir)
	if err != nil {
		return nil, err
	}
	if _, err := check(journal, keys, retention, now); err != nil {
		return nil, placed(err, dir)
	}
	for i, id := range keys.IDs() {
		line := "key " + id + " decrypts"
		if i == 0 {
			line = "key " + id + " encrypts"
		}
		at := slices.IndexFunc(journal, func(used Used) bool { return used.ID == id })
		switch {
		case at < 0 && i > 0:
			line += ", and has not encrypted here"
		case at < 0:
			line += " from the next start on"
		case i > 0 && journal[at].Until.IsZero():
			line += ", and encrypts until the next start"
		case i > 0 && now.After(journal[at].Until.Add(retention)):
			line += " what was encrypted until " + journal[at].Until.Format(time.DateOnly) +
				": it is needed only by runs that have gone on since"
		case i > 0:
			line += " what was encrypted until " + journal[at].Until.Format(time.DateOnly)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// placed has a *MissingError name the journal.
func placed(err error, dir string) error {
	if missing, is := errors.AsType[*MissingError](err); is {
		missing.Journal = filepath.Join(dir, JournalFile)
	}
	return err
}

func readJournal(dir string) (journal []Used, err error) {
	path := filepath.Join(dir, JournalFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &journal)
	}
	if err != nil {
		return nil, fmt.Errorf("read which payload keys were used: %w; see %s", err, path)
	}
	return journal, nil
}
