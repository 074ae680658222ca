package engine

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/renewal"
)

const (
	// renewEvery is how often it is looked which sessions have to be renewed, and which have had their time.
	renewEvery = 15 * time.Second
	// storeEvery is how often it is tried again to store what sessions are renewed with, and to reach a provider that
	// could not be.
	storeEvery = 5 * time.Second
)

// keepSessions renews sessions while this server leads, so that no two servers show a provider the same refresh token.
func (f *front) keepSessions() {
	renewer := renewal.New(renewal.Options{Sessions: f.sessions, SignIn: f.signIn, Logger: f.logger})
	f.work("sessions", func(ctx context.Context) error {
		if f.signIn != nil {
			_ = f.signIn.Reach(ctx) // it has told the log; whoever signs in asks again
		}
		f.whileLeading(ctx, "renew sessions", func(ctx context.Context) {
			for wait.For(ctx, renewEvery) {
				renewer.Pass(ctx)
			}
		})
		return nil
	})
	f.work("refresh tokens", func(ctx context.Context) error {
		for wait.For(ctx, storeEvery) {
			renewer.Keep(ctx)
			if f.signIn != nil && f.signIn.Problem() != "" { // which the page shows until it is over
				_ = f.signIn.Reach(ctx)
			}
		}
		return nil
	})
}
