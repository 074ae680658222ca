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

// Channels are what connects a child with its supervisor.
type Channels struct {
	// In brings messages, and Out takes the answers.
	In  io.Reader
	Out io.Writer
	// Printed are the streams that stages print to; each attempt's part of them is marked as ended.
	Printed []io.Writer
	// Enforced says that the kernel holds this process to its grant.
	Enforced bool
	// Server returns the context of an attempt that is told of a parameter server; nil leaves it as it is.
	Server func(ctx context.Context, location string) (context.Context, error)
}

// Serve runs the attempts that arrive, one at a time, and answers, until no more can arrive. A supervisor that goes
// away closes In, and the attempt going on is cancelled.
func Serve(ctx context.Context, stages Stages, store activities.Store, logger *slog.Logger, channels Channels) error {
	s := &slot{
		stages: stages, store: store, logger: logger, out: json.NewEncoder(channels.Out), printed: channels.Printed,
		enforced: channels.Enforced, server: channels.Server,
	}
	if err := s.send(wire.FromChild{Ready: true}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer s.running.Wait()
	defer stop()
	messages := json.NewDecoder(bufio.NewReaderSize(channels.In, 64<<10))
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
	stages   Stages
	store    activities.Store
	logger   *slog.Logger
	printed  []io.Writer
	enforced bool
	server   func(ctx context.Context, location string) (context.Context, error)

	running sync.WaitGroup
	cancel  context.CancelFunc // of the attempt going on; owned by the loop of Serve

	mu  sync.Mutex // guards out: progress and answers come from the attempt's goroutines
	out *json.Encoder
}

func (s *slot) obey(ctx context.Context, message wire.ToChild) {
	switch {
	case message.Start != nil:
		limit(message.Start.Grant, s.enforced)
		ctx, cancel := context.WithCancel(s.reach(ctx, message.Server))
		s.cancel = cancel
		s.running.Go(func() {
			defer cancel()
			s.attempt(ctx, *message.Start)
		})
	case message.Limit != nil:
		limit(*message.Limit, s.enforced)
	case message.Cancel && s.cancel != nil:
		s.cancel()
	case message.Propose != nil:
		s.running.Go(func() { s.recommend(ctx, *message.Propose) })
	}
}

// reach is the context in which stages find a parameter server. One that cannot be reached is missed by the stages that
// ask for it, and by no others.
func (s *slot) reach(ctx context.Context, location string) context.Context {
	if location == "" || s.server == nil {
		return ctx
	}
	reached, err := s.server(ctx, location)
	if err != nil {
		s.logger.WarnContext(ctx, "stages have no parameter server", "error", err)
		return ctx
	}
	return reached
}

// recommend asks the stage. A panic of its recommender is an answer like any other.
func (s *slot) recommend(ctx context.Context, asked wire.ProposeSize) {
	var answer wire.Recommended
	defer func() {
		if reason := recover(); reason != nil {
			answer.Error = fmt.Sprintf("the recommender of stage %s panicked: %v", asked.Task.Stage.Name, reason)
		}
		s.report(wire.FromChild{Recommended: &answer})
	}()
	stage, listed := s.stages[asked.Task.Stage.Name]
	if !listed {
		answer.Error = fmt.Sprintf("stage %q is not listed in app.Main of this build", asked.Task.Stage.Name)
		return
	}
	size, err := stage.Recommend(ctx, asked.Input, asked.Proposal)
	if err != nil {
		answer.Error = err.Error()
		return
	}
	answer.Size = size
}

func (s *slot) attempt(ctx context.Context, start wire.StartAttempt) {
	answer := wire.Answer{Error: &wire.StageFailure{
		Message: fmt.Sprintf("stage %s ended its goroutine with runtime.Goexit: return an error instead",
			start.Task.Stage.Name),
	}}
	// Deferred, because Goexit runs nothing else: without an answer the supervisor would wait for the stage's timeout.
	var over atomic.Bool // what a goroutine that the stage left behind reports belongs to no attempt
	defer func() {
		over.Store(true)
		s.endOutput()
		giveBack() // before the supervisor can begin to measure the next attempt
		s.report(wire.FromChild{Done: &answer})
	}()
	tell := func(message wire.FromChild) {
		if !over.Load() {
			s.report(message)
		}
	}
	answer = s.stages.execute(ctx, predictor.Pool, s.store, s.logger, start, hooks{
		progress: func(p wire.Progress) { tell(wire.FromChild{Progress: &p}) },
		checkpoint: func(ref activities.Ref, parts ...activities.Ref) {
			tell(wire.FromChild{Checkpoint: &ref, CheckpointParts: parts})
		},
		trained: func(training predictor.Training) { tell(wire.FromChild{Training: &training}) },
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

// memoryShare is the part of the grant at which the Go runtime collects harder: the rest is for what is not Go's. Less
// would squeeze attempts whose limit is a tenth above their peaks.
const memoryShare = 0.95

// endOutput marks the end of the attempt's part of what was printed.
func (s *slot) endOutput() {
	for _, stream := range s.printed {
		// A stage may have closed it; then the supervisor waits for a moment and goes on.
		_, _ = io.WriteString(stream, wire.OutputEnd)
	}
}

// hoard is how much memory that nothing uses a process may keep between two attempts. Below it, the next attempt gains
// more from it than the host does.
const hoard = 32 << 20

// giveBack returns memory that the last attempt used to the system, so that the next one is not measured with it.
func giveBack() {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	if memory.HeapSys-memory.HeapReleased > hoard {
		debug.FreeOSMemory()
	}
}

// leastThreads is how many threads run Go code at least where the kernel holds the CPU, as in Go's own default for a
// quota: with one, code that could use more would never be seen to be held back, and would never be given more.
const leastThreads = 2

// limit keeps this process within size as far as the Go runtime can: whole cores, and a soft limit of memory.
func limit(size quantity.Size, enforced bool) {
	if size.CPU > 0 {
		threads := int(math.Ceil(size.CPU.Cores()))
		if enforced {
			threads = max(threads, min(leastThreads, runtime.NumCPU()))
		}
		runtime.GOMAXPROCS(threads)
	}
	if size.Memory > 0 {
		debug.SetMemoryLimit(int64(float64(size.Memory) * memoryShare))
	}
}
