package web

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
)

// acceptedFor is how long a run is known to be on its way, and mostAccepted of how many that is known.
const (
	acceptedFor  = 10 * time.Minute
	mostAccepted = 10_000
)

// accepted are the runs whose events were taken last: one may be asked for before it has started. The zero value has
// none. It may be used concurrently.
type accepted struct {
	mu     sync.Mutex
	at     map[string]time.Time // by run
	oldest []string             // the keys of at, oldest first
}

// add notes that the event of a run was taken.
func (a *accepted) add(run string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.at[run]; known || run == "" {
		return
	}
	if a.at == nil {
		a.at = map[string]time.Time{}
	}
	for len(a.oldest) > 0 && (len(a.oldest) >= mostAccepted || now.Sub(a.at[a.oldest[0]]) > acceptedFor) {
		delete(a.at, a.oldest[0])
		a.oldest = a.oldest[1:]
	}
	a.at[run], a.oldest = now, append(a.oldest, run)
}

// has reports whether the event of a run was taken lately.
func (a *accepted) has(run string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.at[run]
	return known && now.Sub(at) <= acceptedFor
}

// find returns a run. One that is not there because it has not started yet is told from one that never will be.
func (s *Server) find(ctx context.Context, run string) (ledger.RunView, error) {
	view, err := s.engine.Run(ctx, run)
	if err == nil && !s.sees(ctx, view.Team) {
		if team, err := s.teamOf(ctx, run, false); err != nil || !s.sees(ctx, team) {
			return ledger.RunView{}, NoRun(run)
		}
	}
	refused, isRefusal := errors.AsType[*Error](err)
	if !isRefusal || refused.Status != http.StatusNotFound || !s.accepted.has(run, time.Now()) {
		return view, err
	}
	late := NotFound("ask again in a moment; `spillway bindings` says how many events wait for their runs, and "+
		"`spillway dead list` which could start none", "run %.100q has not started yet: its event was taken", run)
	late.RetryAfter = time.Second
	return view, late
}
