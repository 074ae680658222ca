// Package training is the training stage: it divides a model among the devices at hand, trains it over the parts,
// reports, and keeps checkpoints.
package training

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// Job is what to train and how. The zero value of a field but Executor and Directory is its default.
type Job struct {
	// Executor runs the model.
	Executor exec.Executor
	// Partitions is into how many parts the model is split; 0 chooses by the predicted time of a step, 1 does not split.
	Partitions int
	// Devices are those that may be used, one part each; nil is what this process may use. CUDA devices of one Index are
	// one device, and one without Memory may use what is free of it.
	Devices []exec.Device
	// Schedule is OneForwardOneBackward or GPipe; empty is the first.
	Schedule string
	// Batch is the number of samples of a step; 0 is 64.
	Batch int
	// MicroBatches is into how many parts a batch is cut; 0 takes those of Resume where the batch is the same, and chooses
	// otherwise.
	MicroBatches int
	// Steps is how many steps to train; 0 is Epochs passes over the data.
	Steps int64
	// Epochs is how many passes over the data, where Steps is 0; 0 is 1. Data of unknown size needs Steps.
	Epochs int
	// Seed makes parameters, the order of samples and dropout masks.
	Seed uint64
	// Precision is float32 where empty.
	Precision exec.Precision
	// Compile has the executor compile the parts; what it cannot compile is refused.
	Compile bool
	// Optimizer is the model's own where it is zero.
	Optimizer exec.Optimizer
	// EvaluateEvery is after how many steps the model is evaluated with the validation data, where there are any; 0 is
	// once an epoch. It is evaluated at the end, too.
	EvaluateEvery int64
	// Best is the [Goal] by which the best step is found, whose parameters are kept beside those of the last; empty is the
	// least ValidationLoss.
	Best string
	// Result says whose parameters the trained model has: ResultLast or ResultBest; empty is the first.
	Result string
	// Patience ends the training after so many evaluations in turn of which none was better by more than MinDelta than the
	// best before them; 0 does not.
	Patience int
	// MinDelta is from 0.
	MinDelta float64
	// ClipNorm bounds the norm of all gradients together; 0 does not.
	ClipNorm float64
	// DataWorkers is how many processes fetch the batches that follow while a step computes; 0 chooses by how long that
	// takes and what cores are left, NoDataWorkers has none. Data that can only be read one after another have one at
	// most, and a DataLoader that has processes keeps those.
	DataWorkers int
	// DataTimeout is how long a batch may be waited for; 0 is the executor's bound, ten minutes for PyTorch.
	DataTimeout time.Duration
	// Recompute is RecomputeAuto, RecomputeNever or RecomputeAlways; empty is the first, which recomputes where memory
	// would not do.
	Recompute string
	// Directory gets checkpoints and the result; required, but for InStage.
	Directory string
	// CheckpointEvery is the time between checkpoints; 0 is [Interval] of what they cost and TimeToLoss, a negative number
	// makes none but the last.
	CheckpointEvery time.Duration
	// TimeToLoss is how long attempts like this one go on in the mean before they are lost with their host; 0 is a day.
	TimeToLoss time.Duration
	// Resume is a checkpoint to go on from; empty is none.
	Resume string
	// Stop ends the training in good order when it is closed or yields: after the step that is going on a last checkpoint
	// is made, and [Run] returns an error that wraps [ErrStopped]. Nil never does.
	Stop <-chan struct{}
	// Past is how earlier trainings went, which corrects the plan where the model is the same.
	Past []predictor.Training
	// Replicas is how many copies of the parts train together, each on its share of every batch, where the executor can; 0
	// is 1. Losses and gradients are those of the whole batch, but the statistics of batch normalization are of a
	// replica's share, and the first one's are saved. AutoReplicas chooses by the predicted time of a step, with the parts
	// and micro-batches, takes those of Resume where the batch is the same, and has one where a model has such statistics
	// or is compiled.
	Replicas int
	// Sharding says what replicas divide among themselves instead of each having all of it; empty is nothing unless memory
	// wants it, and then as little as does.
	Sharding exec.Sharding
	// CollectiveTimeout is how long a replica or part waits for others before the attempt fails; 0 is ten minutes.
	CollectiveTimeout time.Duration
	// Hosts are those of the gang that trains, this process's first, whose Devices are those above; nil trains on this
	// one alone. The others are used where that is predicted to be faster, or where the model fits no other way; EveryHost
	// uses them whatever it costs. The executor is an [exec.Ganger] that holds them.
	Hosts     []Host
	EveryHost bool
	// Logger gets what the model prints and what is done; nil discards it.
	Logger *slog.Logger

	resumed bool // Replicas are those of Resume
}

// Host is a host of a gang.
type Host struct {
	// Name is the host's in the pool.
	Name string
	// Devices are its own, with their number of the host; not looked at of the first.
	Devices []exec.Device
}

// refusedError is about what a [Job] asks for; it matches [exec.ErrRequest].
type refusedError struct{ message string }

func refused(format string, arguments ...any) error {
	return &refusedError{fmt.Sprintf(format, arguments...)}
}

func (e *refusedError) Error() string { return e.message }

// Is reports whether target is [exec.ErrRequest].
func (e *refusedError) Is(target error) bool { return target == exec.ErrRequest }

// ErrStopped says that [Job.Stop] ended a training.
var ErrStopped = errors.New("the training was stopped")

// Schedules.
const (
	OneForwardOneBackward = exec.OneForwardOneBackward
	GPipe                 = exec.GPipe
)

// When activations are computed again instead of kept.
const (
	RecomputeAuto   = "auto"
	RecomputeNever  = "never"
	RecomputeAlways = "always"
)

// Observer is told how a training goes. Its functions are called one at a time; nil ones are not.
type Observer struct {
	// Planned is told once, before the training begins, and Progressed after steps, at most every tenth of a second and
	// after the last.
	Planned    func(predictor.Training)
	Progressed func(Progress)
	// Checkpointed is told of each complete checkpoint. It stays until the next two are complete.
	Checkpointed func(directory string, step int64)
}

// Progress is how far a training is.
type Progress struct {
	// Training has the steps that are done and what was measured so far.
	Training predictor.Training
	// Loss is that of the last step, SamplesPerSecond the speed since the last Progress.
	Loss             float64
	SamplesPerSecond float64
	// TokensPerSecond is the same for tokens; 0 where samples are no sequences of them.
	TokensPerSecond float64
	// Utilization is the part of what the devices of all parts do at most, in products of matrices, that the model's
	// products took of them since the last Progress: the model FLOP utilization; 0 where it is not known.
	Utilization float64
	// Left is how long the steps that are left take, with evaluations and checkpoints as they came so far; 0 at the end,
	// and as long as nobody knows.
	Left time.Duration
	// Data is the part of the time in which batches were waited for, from 0 to 1.
	Data float64
	// Validation is the newest evaluation; nil before the first of this run.
	Validation *Evaluated
}

// Result is what a training comes to.
type Result struct {
	// Model is the file of the trained model, in the executor's usual form; Checkpoint is the directory of the last
	// checkpoint.
	Model, Checkpoint string
	// BestModel is the file of the model of the best step, where that is another one than Model's; else empty.
	BestModel string
	// Validation is the newest evaluation of this run, Best how all stand; nil where there was none.
	Validation *Evaluated
	Best       *exec.Standing
	// Artifact is the trained model in the attempt's store, where InStage trained it.
	Artifact activities.Artifact[[]byte]
	// Loss is the last step's, Losses every step's since the start or the resumed checkpoint.
	Loss   float64
	Losses []float64
	// Training is what was planned and what came.
	Training predictor.Training
}
