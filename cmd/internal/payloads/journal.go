package payloads

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Used is a key that has encrypted at a server.
type Used struct {
	// ID is that of the key, and Mark tells it from another one of this ID.
	ID   string `json:"id"`
	Mark string `json:"mark"`
	// Since is when it began to encrypt, and Until when it was found that another one does; zero while it does.
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
}

// served is what one server has encrypted with: the document that all servers of a stack have of it.
type served struct {
	// Name is that of the server's machine, for people.
	Name string `json:"name"`
	Used []Used `json:"used"`
	// Seen is when the server was at work last, within seenEvery.
	Seen time.Time `json:"seen"`
}

// seenEvery is how often a server notes that it is at work: a key is needed for as long as runs are kept that the last
// server may have begun which encrypts with it.
const seenEvery = time.Hour

// ended are the keys of another server as of keys that encrypt no more: as long as it is at work, until now or later.
func (s served) ended() []Used {
	used := slices.Clone(s.Used)
	for i := range used {
		if used[i].Until.IsZero() {
			used[i].Until = s.Seen.Add(seenEvery)
		}
	}
	return used
}

// merge is what a server has encrypted with by two accounts: from the earlier beginning, until the later end.
func merge(one, other []Used) []Used {
	all := slices.Clone(one)
	for _, used := range other {
		at := slices.IndexFunc(all, func(is Used) bool { return is.ID == used.ID && is.Mark == used.Mark })
		if at < 0 {
			all = append(all, used)
			continue
		}
		known := &all[at]
		if used.Since.Before(known.Since) {
			known.Since = used.Since
		}
		switch {
		case known.Until.IsZero() || used.Until.IsZero(): // it encrypts still
			known.Until = time.Time{}
		case used.Until.After(known.Until):
			known.Until = used.Until
		}
	}
	return all
}

// over reports whether nothing is kept any more that the server has encrypted, as far as retention says.
func (s served) over(retention time.Duration, now time.Time) bool {
	return !slices.ContainsFunc(s.ended(), func(used Used) bool { return now.Before(used.Until.Add(retention)) })
}

// MissingError says that a key is not there, or another of its ID, that has encrypted what Temporal still has.
type MissingError struct {
	Used
	// Server is the name of another server that has encrypted with it; empty for this one.
	Server string
	// Other says that there is another key of that ID.
	Other bool
	// Needed is until when at least something that the key has encrypted is kept.
	Needed time.Time
}

// Error implements error.
func (e *MissingError) Error() string {
	at := ""
	if e.Server != "" {
		at = " at server " + e.Server
	}
	if e.Other {
		return fmt.Sprintf("the payload key %q is another than the one that has encrypted%s since %s under this ID", e.ID, at,
			e.Since.Format(time.DateOnly))
	}
	return fmt.Sprintf("the payload key %q is missing: runs that are kept until %s at least were encrypted with it%s",
		e.ID, e.Needed.Format(time.DateOnly), at)
}

// Advice says what to do.
func (e *MissingError) Advice() string {
	if e.Other {
		return "give the new key an ID of its own in --payload-keys-file, and put the old one back below it"
	}
	return "put it back into --payload-keys-file, below the one that is to encrypt; if it is lost, and those runs with " +
		"it, say so there by the line: " + e.ID + " " + lost
}

// missed says why a key cannot be used, or done without, that has encrypted; nil where it can. What it has encrypted is
// kept until needed.
func (k *Keys) missed(used Used, server string, needed, now time.Time) error {
	one, there := k.find(used.ID)
	switch {
	case there && one.mark() != used.Mark:
		return &MissingError{Used: used, Server: server, Other: true, Needed: needed}
	case !there && !k.gaveUp(used.ID) && now.Before(needed):
		return &MissingError{Used: used, Server: server, Needed: needed}
	}
	return nil
}

// check returns what a server has encrypted with as it is once keys are used from now on, or why they cannot be: a
// *MissingError. Others are what other servers have encrypted with. Runs are kept for the retention once they have
// ended.
func check(own []Used, others []served, keys *Keys, retention time.Duration, now time.Time) ([]Used, error) {
	for _, other := range others {
		for _, used := range other.ended() {
			if err := keys.missed(used, other.Name, used.Until.Add(retention), now); err != nil {
				return nil, err
			}
		}
	}
	var next []Used
	first := ""
	if ids := keys.IDs(); len(ids) > 0 {
		first = ids[0]
	}
	known := false
	for _, used := range own {
		last := used.Until
		if last.IsZero() {
			last = now
		}
		if err := keys.missed(used, "", last.Add(retention), now); err != nil {
			return nil, err
		}
		switch {
		case keys.gaveUp(used.ID):
			continue
		case used.ID == first:
			known, used.Until = true, time.Time{}
		case used.Until.IsZero():
			used.Until = now
		}
		next = append(next, used)
	}
	if first != "" && !known {
		next = append(next, Used{ID: first, Mark: keys.keys[0].mark(), Since: now})
	}
	return next, nil
}

// describe says what each key is for. The error is that of check.
func describe(
	own []Used, others []served, keys *Keys, retention time.Duration, now time.Time,
) (lines []string, err error) {
	if _, err := check(own, others, keys, retention, now); err != nil {
		return nil, err
	}
	for i, id := range keys.IDs() {
		line := "key " + id + " decrypts"
		if i == 0 {
			line = "key " + id + " encrypts"
		}
		at := slices.IndexFunc(own, func(used Used) bool { return used.ID == id })
		switch {
		case at < 0 && i > 0:
			line += ", and has not encrypted here"
		case at < 0:
			line += " from the next start on"
		case i > 0 && own[at].Until.IsZero():
			line += ", and encrypts until the next start"
		case i > 0 && now.After(own[at].Until.Add(retention)):
			line += " what was encrypted until " + own[at].Until.Format(time.DateOnly) +
				": it is needed only by runs that have gone on since"
		case i > 0:
			line += " what was encrypted until " + own[at].Until.Format(time.DateOnly)
		}
		parts := []string{line}
		for _, other := range others {
			for _, used := range other.ended() {
				if used.ID == id && now.Before(used.Until.Add(retention)) {
					parts = append(parts, "server "+other.Name+" has encrypted with it")
				}
			}
		}
		lines = append(lines, strings.Join(parts, "; "))
	}
	return lines, nil
}
