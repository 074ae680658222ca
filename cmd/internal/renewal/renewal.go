// Package renewal has sessions go on for as long as the identity provider stands for who has signed in.
package renewal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

const (
	// least is how long a renewed session is believed at least: providers with ID tokens of a minute are not asked each
	// minute for each of them.
	least = 5 * time.Minute
	// firstPause is how long a session that could not be renewed is left alone; each time in a row it doubles, up to
	// longestPause. So one that never can be delays no other.
	firstPause   = 15 * time.Second
	longestPause = 10 * time.Minute
)

// Options are what a Renewer works with.
type Options struct {
	// Sessions are those that are renewed; required.
	Sessions *access.Sessions
	// SignIn is the provider with which people sign in; nil for none.
	SignIn *signin.Provider
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Logger is told of sessions that end, and when some cannot be renewed, once each time; nil discards.
	Logger *slog.Logger
}

// Renewer renews sessions. One server of a stack does at a time: many providers take a refresh token that is shown
// twice for a stolen one. Its methods may be called concurrently, other than Pass. Use New.
type Renewer struct {
	options  Options
	troubles map[string]trouble // by the ID of the session; of Pass
	halted   bool               // whether the last question to the provider failed as each would; of Pass
	ended    ended              // what is to be taken back; of Pass

	mu    sync.Mutex
	given map[string]rotated // refresh tokens on their way into their sessions, by ID; guarded by mu
	told  bool               // whether the log has that they cannot be stored; guarded by mu
}

// trouble is that a session could not be renewed.
type trouble struct {
	failures int       // in a row
	again    time.Time // when it is tried again
}

// rotated is a refresh token that the provider has given, and the one in the session, in whose place it comes.
type rotated struct{ was, now string }

// New returns what renews the sessions.
func New(options Options) *Renewer {
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Renewer{options: options, troubles: map[string]trouble{}, given: map[string]rotated{}, ended: newEnded()}
}

// Pass asks the provider to stand further for who it has stood for as long as it said, and forgets what has had its
// time. A session ends where the provider or the rules say so; whatever else is wrong, it goes on and is tried again.
// What the provider has given for sessions that are no more is taken back.
func (r *Renewer) Pass(ctx context.Context) {
	if err := r.options.Sessions.Prune(ctx, r.options.Now()); err != nil {
		r.options.Logger.WarnContext(ctx, "sessions that have ended are not forgotten; it is tried again", "error", err)
	}
	if !r.Keep(ctx) { // nothing more is asked for that cannot be stored
		return
	}
	all := r.options.Sessions.All()
	r.forget(all)
	r.revoke(ctx, all)
	for _, session := range all {
		if !due(session, r.troubles[session.ID], r.options.Now()) {
			continue
		}
		err := r.renew(ctx, session)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, access.ErrNoSession):
		case err == nil:
			r.goesOn(ctx, session)
		case signin.Ends(err):
			r.end(ctx, session, err)
		default:
			r.fails(ctx, session, err)
			if signin.ForAll(err) || !r.Keep(ctx) {
				return
			}
		}
	}
}

// due says whether the provider is to be asked now whether it stands for a session further.
func due(session access.Session, trouble trouble, now time.Time) bool {
	return session.Refresh != "" && !now.Before(session.Fresh) && now.Before(session.Until) && !now.Before(trouble.again)
}

// after is the trouble of a session that could not be renewed once more.
func (t trouble) after(now time.Time) trouble {
	const doubled = 10 // times, after which it is the longest
	pause := min(firstPause<<min(t.failures, doubled), longestPause)
	return trouble{t.failures + 1, now.Add(pause)}
}

// renew takes in what the provider says now of whose session it is.
func (r *Renewer) renew(ctx context.Context, session access.Session) error {
	from := r.options.SignIn
	if from == nil || from.Issuer() != session.Issuer {
		return fmt.Errorf("people do not sign in with %s at this server", session.Issuer)
	}
	signed, err := from.Renew(ctx, r.refreshOf(session), session.Subject, func(refresh string) {
		r.mu.Lock()
		r.given[session.ID] = rotated{session.Refresh, refresh}
		r.mu.Unlock()
		r.ended.rotated(session.ID, refresh)
		r.Keep(context.WithoutCancel(ctx)) // whatever becomes of the rest
	})
	if err != nil {
		return err
	}
	return r.options.Sessions.Change(ctx, session.ID, func(now access.Session) (access.Session, error) {
		return renewed(now, signed, r.options.Now()), nil
	})
}

// refreshOf is what the provider is asked with: the last that it gave.
func (r *Renewer) refreshOf(session access.Session) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if given, there := r.given[session.ID]; there && given.was == session.Refresh {
		return given.now
	}
	return session.Refresh
}

// Keep writes refresh tokens into their sessions that could not be written yet, and says whether all are. A server does
// that whether it leads or not: whoever leads next asks with them.
func (r *Renewer) Keep(ctx context.Context) bool {
	r.mu.Lock()
	given := maps.Clone(r.given)
	r.mu.Unlock()
	stored := true
	for id, one := range given {
		err := r.options.Sessions.Change(ctx, id, func(now access.Session) (access.Session, error) {
			if now.Refresh == one.was { // else another server has asked since
				now.Refresh = one.now
			}
			return now, nil
		})
		stored = r.kept(ctx, id, one, err) && stored
	}
	return stored
}

// kept notes what came of storing a refresh token, and says whether nothing is left to do.
func (r *Renewer) kept(ctx context.Context, id string, one rotated, err error) bool {
	stored := err == nil || errors.Is(err, access.ErrNoSession)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case stored && r.given[id] == one:
		delete(r.given, id)
		r.told = r.told && len(r.given) > 0
	case !stored && !r.told:
		r.told = true
		r.options.Logger.WarnContext(ctx, "what sessions are renewed with is not stored; it is tried again", "error", err)
	}
	return stored
}

// renewed is a session after the provider has stood for it again.
func renewed(session access.Session, signed signin.Signed, now time.Time) access.Session {
	session.Role, session.Team = signed.Role, signed.Team
	if signed.Name != signed.Subject { // else no claim says a name now
		session.Name = signed.Name
	}
	session.Fresh = signed.Fresh
	if soonest := now.Add(least); session.Fresh.Before(soonest) {
		session.Fresh = soonest
	}
	if signed.Refresh != "" { // else the one before goes on to count (RFC 6749, section 6)
		session.Refresh = signed.Refresh
	}
	return session
}

// forget drops what is known of sessions that are no more.
func (r *Renewer) forget(all []access.Session) {
	there := map[string]bool{}
	for _, session := range all {
		there[session.ID] = true
	}
	maps.DeleteFunc(r.troubles, func(id string, _ trouble) bool { return !there[id] })
}

// fails notes that a session could not be renewed.
func (r *Renewer) fails(ctx context.Context, session access.Session, err error) {
	before := r.troubles[session.ID]
	r.troubles[session.ID] = before.after(r.options.Now())
	switch {
	case signin.ForAll(err) && !r.halted:
		r.halted = true
		r.options.Logger.WarnContext(ctx, "no session is renewed, and all go on; it is tried again", "reason", err)
	case !signin.ForAll(err) && before.failures == 0:
		r.options.Logger.WarnContext(ctx, "a session is not renewed, and goes on; it is tried again", "who", session.Name,
			"subject", session.Subject, "way", session.Way, "reason", err)
	}
}

// goesOn notes that a session was renewed.
func (r *Renewer) goesOn(ctx context.Context, session access.Session) {
	if r.halted {
		r.halted = false
		r.options.Logger.InfoContext(ctx, "sessions are renewed again")
	}
	if r.troubles[session.ID].failures > 0 {
		delete(r.troubles, session.ID)
		r.options.Logger.InfoContext(ctx, "a session is renewed again", "who", session.Name, "subject", session.Subject)
	}
}

// end ends a session.
func (r *Renewer) end(ctx context.Context, session access.Session, reason error) {
	r.options.Logger.WarnContext(ctx, "a session has ended", "who", session.Name, "subject", session.Subject, "way",
		session.Way, "reason", reason)
	if err := r.options.Sessions.End(ctx, session.ID); err != nil && !errors.Is(err, access.ErrNoSession) {
		r.options.Logger.WarnContext(ctx, "a session cannot be ended", "who", session.Name, "error", err)
	}
}
