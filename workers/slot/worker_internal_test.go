package slot

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// telling is a poller that stops once Temporal has taken what an attempt came to.
type telling struct{ taken chan struct{} }

func (telling) Start() error { return nil }
func (t telling) Stop()      { <-t.taken }

// TestAStopDoesNotWaitForATemporalThatIsAway closes workers while Temporal takes nothing: of an attempt that has
// returned that is no error, and of one that has not it is.
func TestAStopDoesNotWaitForATemporalThatIsAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handling int64
		want     string // of the error; empty for none
	}{
		"all have returned": {0, ""},
		"two have not":      {2, "2 attempts did not return"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				away := telling{make(chan struct{})}
				w := New(nil, predictor.StageID{App: "digits", Build: "b1", Name: "score"}, nil, slog.New(slog.DiscardHandler))
				w.create = func(queue) (poller, error) { return away, nil }
				if err := w.Set(1, false); err != nil {
					t.Fatal(err)
				}
				w.handling.Store(c.handling)
				stop, cancel := context.WithCancel(t.Context())
				cancel()
				began := time.Now()
				err := w.Close(stop)
				if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want an error that says %q", err, c.want)
				}
				if took := time.Since(began); took != obeyGrace {
					t.Errorf("it took %v, want %v", took, obeyGrace)
				}
				close(away.taken)
			})
		})
	}
}
