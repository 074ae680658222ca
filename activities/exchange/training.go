package exchange

import (
	"cmp"
	"context"
	"encoding"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// Pattern is how workers come to the mean of a round.
type Pattern string

// The patterns, and what each of w workers transfers by them in a round, of a model of m bytes.
const (
	// ScatterReduce is m/w, 3w-2 times: each worker adds up a piece of the model (J. Jiang et al., "Towards Demystifying
	// Serverless Machine Learning Training", SIGMOD 2021, section 3.2.3). For large models.
	ScatterReduce Pattern = "scatter-reduce"
	// AllGather is m, w times: each worker reads all parts and adds up all of it. For small models, whose transfers take
	// the channel's latency more than anything else, and for two workers always.
	AllGather Pattern = "all-gather"
	// ParameterServer is m, twice: a server adds up. It needs one that the workers reach.
	ParameterServer Pattern = "parameter-server"
)

// Patterns are all of them.
func Patterns() []Pattern { return []Pattern{ScatterReduce, AllGather, ParameterServer} }

// Usual is the pattern that takes less time through a store of objects, whose every transfer takes its latency: by the
// constants of LambdaML, 80 ms and 65 MB/s (section 5), w workers read whole models of at most 10.4 MB times w/(w-2),
// and two do so whatever the size.
func Usual(workers, bytes int) Pattern {
	const latency, perByte = 0.08, 1 / 65e6
	w, m := float64(workers), float64(bytes)
	if w*(m*perByte+latency) <= (3*w-2)*(m/w*perByte+latency) {
		return AllGather
	}
	return ScatterReduce
}

// ErrNoServer says that a process reaches no parameter server: another may.
var ErrNoServer = errors.New("no parameter server is reached from here")

// Averager is a board that adds up: a parameter server.
type Averager interface {
	activities.Board
	// Mean waits until messages of vectors are under all names, and returns their mean in the order of the names. After
	// patience it returns the indices of those that are missing instead.
	Mean(ctx context.Context, group string, names []string, patience time.Duration) (
		sum Vector, missing []int, err error)
}

// Model is what is trained, in one worker: its state is the same in all of them after the same rounds. It is one
// goroutine's.
type Model interface {
	// Part computes one of parts parts of a round, from 0 both, from the state after the rounds before: the gradient over
	// a part of the batch, or the whole state after some steps on a part of the data. It is the same whoever computes it,
	// at least but for rounding, and leaves the state as it is.
	Part(ctx context.Context, round, part, parts int) (Vector, error)
	// Apply makes the state the one after a round, by the mean of its parts.
	Apply(ctx context.Context, round int, mean Vector) error
	// The encoding is that of the whole state, an optimizer's included.
	encoding.BinaryMarshaler
	encoding.BinaryUnmarshaler
}

// Job is a worker's part in a training. Board, Group, Workers and Rounds are required, and the same for all workers,
// as are Pattern and Every.
type Job struct {
	// Board is where messages are left; for ParameterServer it is an Averager.
	Board activities.Board
	// Group names the training on the board; no two have the same.
	Group string
	// Worker is this one's number, from 0, and Workers how many there are, from 1: as many parts has each round.
	Worker, Workers int
	// Rounds is after how many rounds the training is over, from 1.
	Rounds int
	// Pattern is how the mean is come by; empty is what Usual says.
	Pattern Pattern
	// Every is after how many rounds one of the workers saves the state, in turn; 0 is 16, or what a parameter server has
	// room for where that is less, see ErrNoFit.
	Every int
	// Patience is how long a worker of the first round is waited for, once this one has posted its part, before another
	// computes its part, too; 0 is 2 s. In later rounds it is a fifth of that, or three times as long as the round before
	// took where that is more. It is never less than three times as long as a part takes to be computed.
	Patience time.Duration
	// Limit is how long this call may take before it saves its state and returns an AgainError; 0 leaves that to the
	// deadline of the context. Four fifths of the time until that, as of a function's invoke, are a limit in any case.
	Limit time.Duration
	// State is where an earlier call has stopped; the zero value is the beginning.
	State Saved
	// Each is told after each round how it goes; nil ignores it.
	Each func(Told)
}

// Saved is a stored state.
type Saved struct {
	// Round is how many rounds are in it.
	Round int `json:"round"`
	// State is the artifact.
	State activities.Ref `json:"state"`
}

// AgainError says that a call has stopped in time before its limit: the next one goes on from its state.
type AgainError struct{ Saved }

// Error says after how many rounds.
func (e *AgainError) Error() string {
	return fmt.Sprintf("the training has stopped after %d rounds, because its time is nearly over: call it again with "+
		"this state", e.Round)
}

// Told is how a training went in one call.
type Told struct {
	// Rounds is how many rounds this call has done, Parts how many parts it has computed in them: more than rounds where
	// it has done the work of workers who were not there.
	Rounds, Parts int
	// Skipped is how many rounds others had done before it came, and Done how many the model has seen altogether.
	Skipped, Done int
	// Bytes is what the values of a part take.
	Bytes int
	// Computing and Exchanging are how long it has computed, and read, written and waited for others.
	Computing, Exchanging time.Duration
}

const (
	usualEvery    = 16
	usualPatience = 2 * time.Second
	// patienceOver is how many times as long as a round, or as a part takes to be computed, others are waited for at
	// least.
	patienceOver = 3
	// spare is how many times as long as the longest round must be left before the limit for another to begin.
	spare = 2
	// reserve is what is left besides, to save the state.
	reserve = 500 * time.Millisecond
)

func (j Job) check() error {
	if err := activities.CheckMessage(j.Group); err != nil {
		return fmt.Errorf("the group: %w", err)
	}
	switch _, adds := j.Board.(Averager); {
	case j.Pattern == ParameterServer && !adds:
		return fmt.Errorf("%w, as from functions that run elsewhere: use %s or %s", ErrNoServer, ScatterReduce, AllGather)
	case j.Board == nil:
		return errors.New("there is no board: the artifact store that this attempt has is none")
	case j.Workers < 1 || j.Worker < 0 || j.Worker >= j.Workers:
		return fmt.Errorf("worker %d of %d: numbers are 0 to 1 less than there are", j.Worker, j.Workers)
	case j.Rounds < 1:
		return fmt.Errorf("%d rounds: give at least 1", j.Rounds)
	case j.Every < 0 || j.Patience < 0 || j.Limit < 0:
		return errors.New("a negative number of rounds or time: leave it out for the usual one")
	case j.Pattern != "" && j.Pattern != ScatterReduce && j.Pattern != AllGather && j.Pattern != ParameterServer:
		return fmt.Errorf("pattern %q: there are %q", j.Pattern, Patterns())
	}
	return nil
}

// Train does this worker's part of a training until all rounds are done, whoever did them; the model then has the final
// state. It returns an AgainError when it stops before that, because its limit is near. Its context is that of an
// attempt, whose checkpoints it keeps: the next attempt goes on where the group is.
func Train(ctx context.Context, job Job, model Model) (Told, error) {
	return train(ctx, job, model, memoryRoom)
}

func train(ctx context.Context, job Job, model Model, room int64) (Told, error) {
	job.Patience = cmp.Or(job.Patience, usualPatience)
	if job.Pattern != ParameterServer || job.Workers == 1 { // else fit chooses it
		job.Every = cmp.Or(job.Every, usualEvery)
	}
	if err := job.check(); err != nil {
		return Told{}, fmt.Errorf("train by several workers: %w", err)
	}
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return Told{}, fmt.Errorf("train by several workers: %w", err)
	}
	w := &worker{
		Job: job, room: room, model: model, attempt: attempt, began: time.Now(), adopted: map[int]bool{},
		patience: job.Patience,
	}
	if end, bounded := ctx.Deadline(); bounded {
		left := max(time.Until(end)*4/5, 1)
		w.Limit = min(cmp.Or(w.Limit, left), left)
	}
	err = w.train(ctx)
	if again := (*AgainError)(nil); err != nil && !errors.As(err, &again) {
		err = fmt.Errorf("worker %d of %d, round %d of %d: %w", job.Worker, job.Workers, w.round+1, job.Rounds, err)
	}
	return w.told, err
}

// worker is a Job that goes on.
type worker struct {
	Job

	room     int64 // of a parameter server, in bytes
	model    Model
	attempt  *activities.Attempt
	began    time.Time
	round    int // that are done
	saved    Saved
	adopted  map[int]bool // parts whose workers were not there in the last round
	patience time.Duration
	longest  time.Duration // of a round, without what was waited in vain
	waited   bool          // for somebody, in vain, in this round
	ahead    *turn         // the next round, where a part of it is computed already
	told     Told
}

func (w *worker) train(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	for w.round < w.Rounds {
		if w.late(ctx) {
			if err := w.save(ctx); err != nil {
				return err
			}
			return &AgainError{w.saved}
		}
		began, computed := time.Now(), w.told.Computing
		w.waited = false
		sum, err := w.exchange(ctx)
		if errors.Is(err, errPassed) {
			continue // catchUp has made it so
		}
		if err != nil {
			return err
		}
		if err := w.model.Apply(ctx, w.round, sum); err != nil {
			return fmt.Errorf("apply the mean: %w", err)
		}
		if err := w.did(ctx, sum, time.Since(began), w.told.Computing-computed); err != nil {
			return err
		}
	}
	return w.end(ctx)
}

// did ends a round that took so long, and was computed for a part of that.
func (w *worker) did(ctx context.Context, sum Vector, took, computed time.Duration) error {
	w.round++
	w.told.Rounds++
	w.told.Done, w.told.Bytes = w.round, 4*len(sum.Values)
	w.told.Exchanging += took - computed
	if w.waited {
		took = computed // the next one waits for nobody
	} else {
		w.patience = max(w.Patience/5, patienceOver*took)
	}
	w.longest = max(w.longest, took)
	if w.Each != nil {
		w.Each(w.told)
	}
	if w.round%w.Every != 0 || w.round == w.Rounds {
		return nil
	}
	if err := w.mark(ctx); err != nil {
		return err
	}
	if len(w.adopted) < w.Workers-1 {
		return nil
	}
	_, err := w.catchUp(ctx) // who waits for nobody would else never look
	return err
}

// late reports whether another round may not end before the limit.
func (w *worker) late(ctx context.Context) bool {
	needed := spare*w.longest + reserve
	if w.ahead != nil { // what takes long of the next round is done
		needed = reserve
	}
	if w.Limit > 0 && w.told.Rounds > 0 && time.Since(w.began)+needed > w.Limit {
		return true
	}
	deadline, limited := ctx.Deadline()
	return limited && time.Until(deadline) < needed
}

// begin restores the newest state that this worker knows of, and then the newest of the group.
func (w *worker) begin(ctx context.Context) error {
	// A checkpoint is of an attempt that was lost; its own state says how far it is.
	for _, state := range []activities.Ref{w.attempt.Resume, w.State.State} {
		if state.Digest == "" {
			continue
		}
		err := w.restore(ctx, Saved{State: state})
		if err == nil {
			break
		}
		if !errors.Is(err, activities.ErrMissing) {
			return err
		}
		activities.Log(ctx).WarnContext(ctx, "a state is lost: the training goes on from an earlier one", "error", err)
	}
	if err := w.meet(ctx); err != nil || w.Pattern != ParameterServer || w.Workers == 1 || w.round == w.Rounds {
		return err
	}
	if err := w.fit(ctx); err != nil {
		return err
	}
	return w.meet(ctx)
}

// meet tells the group how far this worker is, and takes over how far it is. Before Every is known, only the end of the
// training is found.
func (w *worker) meet(ctx context.Context) error {
	if w.round > 0 && w.round < w.Rounds { // the board may have lost it, as the memory of a server that was restarted has
		if err := w.tell(ctx, w.saved); err != nil {
			return err
		}
	}
	further, err := w.catchUp(ctx)
	if further {
		w.ahead = nil
	}
	return err
}
