package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Serve runs the attempts that arrive on in, one at a time, and answers on out, until in ends. A supervisor that goes away closes in,
// and the attempt going on is cancelled.
func Serve(ctx context.Context, stages Stages, store activities.Store, logger *slog.Logger, in io.Reader, out io.Writer) error {
	s := &slot{stages: stages, store: store, logger: logger, out: json.NewEncoder(out)}
	if err := s.send(wire.FromChild{Ready: true}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer s.running.Wait()
	defer stop()
	messages := json.NewDecoder(bufio.NewReaderSize(in, 64<<10))
	for {
		var message wire.ToChild
		if err := messages.Decode(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read from supervisor: %w", err)
		}
		s.obey(ctx, message)
	}
}

// slot is the state of a child process.
type slot struct {
	stages Stages
	store  activities.Store
	logger *slog.Logger

	running sync.WaitGroup
	cancel  context.CancelFunc // of the attempt going on; owned by the loop of Serve

	mu  sync.Mutex // guards out: progress and answers come from the attempt's goroutines
	out *json.Encoder
}

func (s *slot) obey(ctx context.Context, message wire.ToChild) {
	switch {
	case message.Start != nil:
		limit(message.Start.Grant)
		ctx, cancel := context.WithCancel(ctx)
		s.cancel = cancel
		s.running.Go(func() {
			defer cancel()
			s.attempt(ctx, *message.Start)
		})
	case message.Limit != nil:
		limit(*message.Limit)
	case message.Cancel && s.cancel != nil:
		s.cancel()
	}
}

func (s *slot) attempt(ctx context.Context, start wire.StartAttempt) {
	answer := wire.Answer{Error: &wire.StageFailure{
		Message: fmt.Sprintf("stage %s ended its goroutine with runtime.Goexit: return an error instead", start.Task.Stage.Name),
	}}
	// Deferred, because Goexit runs nothing else: without an answer the supervisor would wait for the stage's timeout.
	var over atomic.Bool // what a goroutine that the stage left behind reports belongs to no attempt
	defer func() {
		over.Store(true)
		s.report(wire.FromChild{Done: &answer})
	}()
	tell := func(message wire.FromChild) {
		if !over.Load() {
			s.report(message)
		}
	}
	answer = s.stages.execute(ctx, predictor.Pool, s.store, s.logger, start, hooks{
		progress:   func(p wire.Progress) { tell(wire.FromChild{Progress: &p}) },
		checkpoint: func(ref activities.Ref) { tell(wire.FromChild{Checkpoint: &ref}) },
	})
}

// report sends what can be sent; when the supervisor is gone there is nobody left to tell, and Serve ends by itself.
func (s *slot) report(message wire.FromChild) {
	if err := s.send(message); err != nil {
		s.logger.Debug("report to supervisor", "error", err)
	}
}

func (s *slot) send(message wire.FromChild) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(message); err != nil {
		return fmt.Errorf("write to supervisor: %w", err)
	}
	return nil
}

// memoryShare is the part of the grant at which the Go runtime collects harder: the rest is for stacks, code and what is not Go's.
const memoryShare = 0.9

// limit keeps this process within size as far as the Go runtime can: whole cores, and a soft limit of memory.
func limit(size quantity.Size) {
	if size.CPU > 0 {
		runtime.GOMAXPROCS(int(math.Ceil(size.CPU.Cores())))
	}
	if size.Memory > 0 {
		debug.SetMemoryLimit(int64(float64(size.Memory) * memoryShare))
	}
}
