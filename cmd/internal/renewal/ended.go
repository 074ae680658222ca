package renewal

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

// keptFor is how long it is remembered what is to be taken back of somebody who always has another session.
const keptFor = 24 * time.Hour

// ended knows which refresh tokens the provider has given for sessions that are no more. It is the knowledge of who
// leads: what ends within seconds of its beginning, or while nobody leads, is left to the provider to forget.
type ended struct {
	seen map[string]access.Session // with a refresh token, at the last look, by ID
	gone map[string]left           // that are no more, by ID
}

// left is what a session leaves that has ended.
type left struct {
	issuer, subject, refresh string
	since                    time.Time
}

func newEnded() ended { return ended{map[string]access.Session{}, map[string]left{}} }

// rotated takes in that the provider has given another refresh token for a session.
func (e ended) rotated(id, refresh string) {
	if session, there := e.seen[id]; there {
		session.Refresh = refresh
		e.seen[id] = session
	}
}

// look takes in which sessions there are, and returns the IDs of those gone whose refresh tokens are to be taken back,
// in order: of who has no other session that is renewed. Some providers end all of one sign-in with one of its tokens,
// so signing out at the page would have the command line signed out an hour later.
func (e ended) look(all []access.Session, now time.Time) (due []string) {
	type person struct{ issuer, subject string }
	there, renewed := map[string]bool{}, map[person]bool{}
	for _, session := range all {
		there[session.ID] = true
		if session.Refresh != "" {
			renewed[person{session.Issuer, session.Subject}] = true
		}
	}
	for id, was := range e.seen {
		if !there[id] {
			e.gone[id] = left{was.Issuer, was.Subject, was.Refresh, now}
		}
	}
	maps.DeleteFunc(e.gone, func(_ string, one left) bool { return !now.Before(one.since.Add(keptFor)) })
	clear(e.seen)
	for _, session := range all {
		if session.Refresh != "" {
			e.seen[session.ID] = session
		}
	}
	for id, one := range e.gone {
		if !renewed[person{one.issuer, one.subject}] {
			due = append(due, id)
		}
	}
	slices.SortFunc(due, strings.Compare)
	return due
}

// revoke takes back what the provider has given for sessions that are no more.
func (r *Renewer) revoke(ctx context.Context, all []access.Session) {
	for _, id := range r.ended.look(all, r.options.Now()) {
		one := r.ended.gone[id]
		if from := r.options.SignIn; from != nil && from.Issuer() == one.issuer {
			err := from.Revoke(ctx, one.refresh)
			switch {
			case err != nil && (signin.ForAll(err) || ctx.Err() != nil): // the next time
				return
			case err != nil:
				r.options.Logger.WarnContext(ctx, "a refresh token of a session that has ended goes on to count at the "+
					"identity provider", "subject", one.subject, "reason", err)
			}
		}
		delete(r.ended.gone, id)
	}
}
