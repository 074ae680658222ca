package chaos

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

//go:embed ladder.yaml
var ladder []byte

const (
	// sends is how often each event is sent.
	sends = 3
	// longestEcho is how much later an event is sent again, at most.
	longestEcho = 20 * time.Second
	// inFlight is how many runs there are at a time.
	inFlight = 8
	// mostRuns is more than there will ever be.
	mostRuns = 1000
)

// sender sends events, each several times, however often the engine is away.
type sender struct {
	engine  *engine
	hurry   context.Context //nolint:containedctx // once it has ended, what is to be sent later is sent now
	working sync.WaitGroup

	mu   sync.Mutex
	sent []event // guarded by mu
	runs map[string]event
	err  error
}

func newSender(hurry context.Context, e *engine) *sender {
	return &sender{engine: e, hurry: hurry, runs: map[string]event{}}
}

// send sends an event and returns when it has been accepted once; it is sent again later.
func (s *sender) send(ctx context.Context, seed uint64, e event) error {
	run, err := s.publish(ctx, e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := rand.New(rand.NewPCG(seed, 5000+uint64(len(s.sent))))
	s.sent, s.runs[run] = append(s.sent, e), e
	for range sends - 1 {
		pause := time.Duration(r.Int64N(int64(longestEcho)))
		s.working.Go(func() {
			wait.For(s.hurry, pause) //nolint:contextcheck // the end of all sending, not of this event, cuts the pause short
			if again, err := s.publish(ctx, e); err != nil || again != run {
				s.fail(errors.Join(err, fmt.Errorf("event %s sent again: run %q, want %q", e.ID, again, run)))
			}
		})
	}
	return nil
}

// once sends an event a single time.
func (s *sender) once(ctx context.Context, e event) error {
	run, err := s.publish(ctx, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[run] = e
	return err
}

// publish tries until the engine has accepted the event.
func (s *sender) publish(ctx context.Context, e event) (run string, err error) {
	encoded, err := json.Marshal(e.Input)
	if err != nil {
		return "", fmt.Errorf("encode the input of %s: %w", e.ID, err)
	}
	for began := time.Now(); ; time.Sleep(5 * poll) {
		published, err := s.engine.client.Publish(ctx,
			web.Event{Pipeline: e.Pipeline, ID: e.ID, Input: encoded, Goal: e.Goal})
		if err == nil {
			return published.Run, nil
		}
		refused, answered := errors.AsType[*web.Error](err)
		final := answered && (refused.Status == http.StatusBadRequest || refused.Status == http.StatusNotFound)
		if final || ctx.Err() != nil || time.Since(began) > s.engine.config.Patience {
			return "", fmt.Errorf("send event %s: %w", e.ID, err)
		}
	}
}

func (s *sender) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// expected returns what has been sent, by run.
func (s *sender) expected() map[string]event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.runs)
}

// flow keeps so many runs in flight until ctx ends, and returns how many events it has sent. In doubt, while the engine
// is away, it waits.
func (s *sender) flow(ctx context.Context, seed uint64) (sent int) {
	for ; ; time.Sleep(5 * poll) {
		views, err := s.views(ctx)
		if ctx.Err() != nil {
			return sent
		}
		if err != nil {
			continue
		}
		for open := s.open(views); open < inFlight && ctx.Err() == nil; open++ {
			if err := s.send(context.WithoutCancel(ctx), seed, load(seed, sent)); err != nil {
				s.fail(err)
				return sent
			}
			sent++
		}
	}
}

// open counts the runs that have not ended.
func (s *sender) open(views map[string]ledger.RunView) (count int) {
	for run := range s.expected() {
		if view, seen := views[run]; !seen || view.State == predictor.RunRunning {
			count++
		}
	}
	return count
}

// views returns all runs.
func (s *sender) views(ctx context.Context) (map[string]ledger.RunView, error) {
	listed, err := s.engine.client.Runs(ctx, web.RunQuery{Limit: mostRuns})
	views := make(map[string]ledger.RunView, len(listed))
	for _, view := range listed {
		views[view.Run] = view
	}
	return views, err
}

// drained waits until every run has ended, and returns when that was seen.
func (s *sender) drained(ctx context.Context) (time.Time, map[string]ledger.RunView, error) {
	for began := time.Now(); ; time.Sleep(5 * poll) {
		views, err := s.views(ctx)
		if err == nil && s.open(views) == 0 {
			return time.Now(), views, nil
		}
		if err == nil && time.Since(began) > s.engine.config.Patience {
			return time.Now(), views, fmt.Errorf("%d runs have not ended after %s", s.open(views), s.engine.config.Patience)
		}
		if ctx.Err() != nil || time.Since(began) > 2*s.engine.config.Patience {
			return time.Now(), views, fmt.Errorf("wait for the runs: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// serveChain runs the chain once from its file, so that events can start it from then on.
func (s *sender) serveChain(ctx context.Context) error {
	// The folder of a chain is its code: logs that go on being written do not belong there.
	path := filepath.Join(s.engine.config.Dir, chainName, chainName+".yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of the chain: %w", err)
	}
	if err := os.WriteFile(path, ladder, 0o600); err != nil {
		return fmt.Errorf("write the chain: %w", err)
	}
	command := exec.CommandContext(ctx, s.engine.config.Engine, "run", "--state", s.engine.state, "--id", "first", path)
	command.Env = append(os.Environ(), s.engine.config.Environment...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("run the chain: %w: %s", err, output)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[chainName+"-first"] = event{ID: "first", Pipeline: chainName, state: predictor.RunSucceeded}
	return nil
}

// difference says how a run differs from what its event asks for; empty when it does not.
func difference(e event, view ledger.RunView, full json.RawMessage) string {
	if view.State != e.state {
		return fmt.Sprintf("it %s (%s), want %s", view.State, view.Error, e.state)
	}
	if !strings.Contains(view.Error, e.failure) {
		return fmt.Sprintf("it failed with %q, want %q in it", view.Error, e.failure)
	}
	if e.state != predictor.RunSucceeded {
		return ""
	}
	if e.Pipeline == chainName {
		var got struct {
			Stages map[string]struct{ Values []map[string]float64 }
		}
		if err := json.Unmarshal(full, &got); err != nil || len(got.Stages["top"].Values) != 1 ||
			got.Stages["top"].Values[0]["rows"] != chainTasks {
			return fmt.Sprintf("its result is %s (%v), want %d rows at the top", full, err, chainTasks)
		}
		return ""
	}
	var got result
	if err := json.Unmarshal(full, &got); err != nil || got != wanted(e.Input.Shards) {
		return fmt.Sprintf("its result is %s (%v), want %+v", full, err, wanted(e.Input.Shards))
	}
	return ""
}
