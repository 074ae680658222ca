package memory

import (
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Unfit is why functions do not run tasks of a stage. The zero value is that nothing is known against it.
type Unfit struct {
	// Declared is why tasks are for the pool only, by what they are: it is told with each of them, and empty where the
	// latest were not.
	Declared string `json:"declared,omitempty"`
	// Refusals counts the tasks that functions refused for what they lack since one last succeeded at a function, up to
	// provenBy.
	Refusals int `json:"refusals,omitempty"`
	// Lacks is what functions lacked that were given some, and Since when one said so last.
	Lacks string       `json:"lacks,omitempty"`
	Since fact.Instant `json:"since,omitempty"`
}

// provenBy is how many tasks functions refuse until that is taken for the stage's: one script may end as if a program
// were missing.
const provenBy = 2

// unfitFor is how long a stage is kept off functions after one lacked what a task needed. What the stage runs follows
// from its build, but for commands that come with their run: those may need something else the next time.
const unfitFor = fact.Instant(time.Hour)

// Now is why functions do not run the stage now: what one lacked lately; empty when none did.
func (u Unfit) Now(now fact.Instant) string {
	if u.Lacks != "" && now-u.Since < unfitFor {
		return u.Lacks
	}
	return ""
}

// maxUnfit bounds what is kept of a reason, in bytes.
const maxUnfit = 200

// saneReason is one line of a reason.
func saneReason(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return strings.ToValidUTF8(text[:min(len(text), maxUnfit)], "")
}

// learn remembers what functions lacked, of attempts that they refused for that. What is refused before a function is
// asked, and what is too large for one, is the task's and says nothing of others.
func (u *Unfit) learn(e fact.Record, now fact.Instant) {
	switch {
	case e.Venue != fact.Function:
	case e.Outcome == fact.Succeeded:
		u.Refusals = 0
	case e.Outcome == fact.Refused && e.Cause == fact.CauseStart && e.Host != "":
		if u.Refusals = min(u.Refusals+1, provenBy); u.Refusals == provenBy {
			u.Lacks, u.Since = saneReason(strings.TrimPrefix(e.Error, fact.CannotRun)), now
		}
	}
}
