package engine

import (
	"context"
	"errors"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

const (
	// renewEvery is how often it is looked which sessions have to be renewed, and which have had their time.
	renewEvery = 15 * time.Second
	// renewLeast is how long a renewed session is believed at least: providers with ID tokens of a minute are not asked
	// each minute for each of them.
	renewLeast = 5 * time.Minute
)

// keepSessions renews sessions while this server leads, so that no two servers show a provider the same refresh token,
// which some take for a theft.
func (f *front) keepSessions() {
	f.work("sessions", func(ctx context.Context) error {
		if f.signIn != nil {
			_ = f.signIn.Reach(ctx) // it has told the log; whoever signs in asks again
		}
		f.whileLeading(ctx, "renew sessions", func(ctx context.Context) {
			for wait.For(ctx, renewEvery) {
				f.renewSessions(ctx)
			}
		})
		return nil
	})
}

// renewSessions asks the provider to stand further for who it has stood for as long as it said, and forgets what has
// had its time.
func (f *front) renewSessions(ctx context.Context) {
	if err := f.sessions.Prune(ctx, time.Now()); err != nil {
		f.logger.WarnContext(ctx, "sessions that have ended are not forgotten; it is tried again", "error", err)
	}
	for _, session := range f.sessions.All() {
		if !dueForRenewal(session, time.Now()) {
			continue
		}
		err := f.renewSession(ctx, session)
		switch {
		case errors.Is(err, signin.ErrUnreachable): // nobody is locked out meanwhile; the log has it
			return
		case errors.Is(err, access.ErrNoSession), ctx.Err() != nil:
		case err != nil:
			f.logger.WarnContext(ctx, "a session has ended", "who", session.Name, "subject", session.Subject, "way",
				session.Way, "reason", err)
			if err := f.sessions.End(ctx, session.ID); err != nil && !errors.Is(err, access.ErrNoSession) {
				f.logger.WarnContext(ctx, "a session cannot be ended", "who", session.Name, "error", err)
			}
		}
	}
}

// dueForRenewal says whether the provider has to be asked again whether it stands for a session.
func dueForRenewal(session access.Session, now time.Time) bool {
	return session.Refresh != "" && !now.Before(session.Fresh) && now.Before(session.Until)
}

// renewSession takes in what the provider says now of whose session it is.
func (f *front) renewSession(ctx context.Context, session access.Session) error {
	if f.signIn == nil || f.signIn.Issuer() != session.Issuer {
		return errors.New("people do not sign in with " + session.Issuer + " any more")
	}
	signed, err := f.signIn.Renew(ctx, session.Refresh, session.Subject)
	if err != nil {
		return err
	}
	return f.sessions.Change(ctx, session.ID, func(now access.Session) (access.Session, error) {
		return renewed(now, signed, time.Now()), nil
	})
}

// renewed is a session after the provider has stood for it again.
func renewed(session access.Session, signed signin.Signed, now time.Time) access.Session {
	session.Name, session.Role, session.Team = signed.Name, signed.Role, signed.Team
	session.Fresh = signed.Fresh
	if least := now.Add(renewLeast); session.Fresh.Before(least) {
		session.Fresh = least
	}
	if signed.Refresh != "" { // else the one before goes on to count (RFC 6749, section 6)
		session.Refresh = signed.Refresh
	}
	return session
}
