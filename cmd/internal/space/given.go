package space

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/retention"
)

// givenFile is the file below the state directory that says who gave back what only they held.
const givenFile = "given-back.json"

// given says who gave back what only they held, also after a restart: nobody else knows what they once reached. One
// goroutine at a time uses it.
type given struct {
	path string
	kept givenKept
	runs map[string]giving // by the run's name
}

// givenKept is the content of the file.
type givenKept struct {
	// Since is when this was first written: what was stored before that, nobody has pinned.
	Since time.Time `json:"since"`
	// Seen is until when things had aged at the last collection (see clock).
	Seen time.Time `json:"seen,omitzero"`
	// Holders are those who gave back, by the key of the holder.
	Holders map[string]giving `json:"holders"`
}

// giving is one who gave back.
type giving struct {
	Run    string    `json:"run,omitempty"` // empty where it is no run
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// openGiven reads the file of the state directory; at the first time it is made.
func openGiven(stateDir string, now time.Time) (*given, error) {
	g := &given{
		path: filepath.Join(stateDir, givenFile), runs: map[string]giving{},
		kept: givenKept{Since: now, Seen: now, Holders: map[string]giving{}},
	}
	text, err := os.ReadFile(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return g, g.write(g.kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read who gave space back: %w", err)
	}
	if err := json.Unmarshal(text, &g.kept); err != nil {
		return nil, fmt.Errorf("read who gave space back: %s is damaged: %w; remove it: runs may then say of removed "+
			"artifacts only that they are missing", g.path, err)
	}
	g.kept.Seen = cmp.Or(g.kept.Seen, now) // an earlier version did not note it
	if g.kept.Holders == nil {
		g.kept.Holders = map[string]giving{}
	}
	g.index()
	return g, nil
}

func (g *given) index() {
	clear(g.runs)
	for _, one := range g.kept.Holders {
		if one.Run != "" {
			g.runs[one.Run] = one
		}
	}
}

// write makes the content durable, whole or not at all.
func (g *given) write(kept givenKept) error {
	text, err := json.MarshalIndent(kept, "", "  ")
	if err != nil {
		return fmt.Errorf("note who gave space back: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(g.path), "."+givenFile+"-")
	if err != nil {
		return fmt.Errorf("note who gave space back: %w", err)
	}
	_, err = file.Write(append(text, '\n'))
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), g.path)
	}
	if err != nil {
		return fmt.Errorf("note who gave space back: %w", errors.Join(err, os.Remove(file.Name())))
	}
	if err := safefile.SyncDirectory(filepath.Dir(g.path)); err != nil {
		return fmt.Errorf("note who gave space back: %w", err)
	}
	return nil
}

// see notes until when things have aged, and now.
func (g *given) see(latest, now time.Time) error {
	next := g.kept
	next.Seen = latest
	if next.Since.After(now.Add(mostOff)) { // it was made by a clock that was ahead
		next.Since = now
	}
	if err := g.write(next); err != nil {
		return err
	}
	g.kept = next
	return nil
}

// add notes who gives back, and forgets those that there are no more.
func (g *given) add(stock stock, all []retention.Giving, now time.Time) error {
	next := givenKept{Since: g.kept.Since, Seen: g.kept.Seen, Holders: map[string]giving{}}
	for _, who := range stock.who {
		if before, was := g.kept.Holders[who.key]; was {
			next.Holders[who.key] = before
		}
	}
	for _, one := range all {
		who := stock.who[one.Holder]
		next.Holders[who.key] = giving{Run: who.run, Reason: one.Reason, At: now}
	}
	if err := g.write(next); err != nil {
		return err
	}
	g.kept = next
	g.index()
	return nil
}

// mark says of the holders of a stock which gave back before, and adds what is held because an earlier version of the
// engine stored it: that version did not note what somebody from outside had put.
func (g *given) mark(stock *stock, policy retention.Policy) {
	for i, who := range stock.who {
		if _, gave := g.kept.Holders[who.key]; gave && !stock.Holders[i].Ended.IsZero() {
			stock.Holders[i].Given = true
		}
	}
	if stock.At.Sub(g.kept.Since) > policy.KeepFor {
		return
	}
	// Where there is too much, these go before anything that an ended run reaches.
	earlier := retention.Holder{Name: "an earlier version of the engine", Ended: stock.At.Add(-policy.KeepFor)}
	for _, one := range stock.Artifacts {
		if one.Written.Before(g.kept.Since) {
			earlier.Names = append(earlier.Names, one.Digest)
		}
	}
	key := "earlier"
	_, earlier.Given = g.kept.Holders[key]
	stock.Holders = append(stock.Holders, earlier)
	stock.who = append(stock.who, who{key: key})
}

// run returns what is noted of a run.
func (g *given) run(run string) (reason string, at time.Time, is bool) {
	one, is := g.runs[run]
	return one.Reason, one.At, is
}
