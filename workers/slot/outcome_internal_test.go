package slot

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestAnOutcomeIsToldUntilItIsTaken has Temporal answer nothing for a while, longer than its SDK waits.
func TestAnOutcomeIsToldUntilItIsTaken(t *testing.T) {
	t.Parallel()
	away, unknown := status.Error(codes.Unavailable, "away"), status.Error(codes.NotFound, "unknown")
	much := status.Error(codes.ResourceExhausted, "too much")
	for name, c := range map[string]struct {
		down, lives time.Duration // 0: it lives on
		answer      error         // while it is down
		hangs       bool          // it gives no answer while it is down
		want        codes.Code
		after       time.Duration // at most
	}{
		"at once":                   {want: codes.OK},
		"the database is away":      {down: 30 * time.Second, answer: away, after: 33 * time.Second},
		"nothing is answered":       {down: 30 * time.Second, hangs: true, after: 33 * time.Second},
		"the task is known no more": {down: time.Hour, answer: unknown, want: codes.NotFound},
		"a rate is reached":         {down: time.Hour, answer: much, want: codes.ResourceExhausted},
		"it stays away":             {down: time.Hour, hangs: true, want: codes.DeadlineExceeded, after: outcomeFor},
		"the host ends":             {down: time.Hour, lives: 1, hangs: true, want: codes.Canceled, after: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				life, end := context.WithCancel(t.Context())
				defer end()
				if c.lives > 0 {
					time.AfterFunc(c.lives, end)
				}
				asked, giveUp := context.WithTimeout(t.Context(), 10*time.Second) // as the SDK asks
				defer giveUp()
				began := time.Now()
				err := tellOutcome(asked, life, func(ctx context.Context) error {
					if time.Since(began) >= c.down {
						return nil
					}
					if c.hangs {
						<-ctx.Done()
						return status.FromContextError(ctx.Err()).Err()
					}
					return c.answer
				})
				if got := status.Code(err); got != c.want {
					t.Errorf("got %v, want %v", err, c.want)
				}
				if took := time.Since(began); took > c.after {
					t.Errorf("it took %v, want at most %v", took, c.after)
				}
			})
		})
	}
}
