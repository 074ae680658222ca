package wire

import (
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Environment variables by which the engine tells a user's binary what it is. That of NATS holds a secret, which
// only workflow workers are given, and that of artifacts may hold one, which lets all of them put and open these.
const (
	// RoleEnvironment is one of the roles below; unset when a person starts the binary.
	RoleEnvironment = "SPILLWAY_ROLE"
	// ArtifactsEnvironment is the artifact store, as package stores opens it: a file:// URL, the http:// URL of the
	// engine's relay, which holds a token that opens and puts artifacts, or for functions elsewhere an s3:// URL.
	ArtifactsEnvironment = "SPILLWAY_ARTIFACTS"
	// ServerEnvironment is the http:// URL of the engine's relay, which has a parameter server for trainings by several
	// workers, with its token, for functions; unset where they cannot reach it, as those elsewhere cannot. A child is told
	// it in ToChild.
	ServerEnvironment = "SPILLWAY_SERVER"
	// TemporalEnvironment and NATSEnvironment are the addresses for the workflow worker; that of NATS holds the name and
	// the password of its build.
	TemporalEnvironment = "SPILLWAY_TEMPORAL"
	NATSEnvironment     = "SPILLWAY_NATS"
	// NamespaceEnvironment is where in Temporal runs are; unset means "default".
	NamespaceEnvironment = "SPILLWAY_NAMESPACE"
	// BuildEnvironment is the digest of the binary, as the engine computed it.
	BuildEnvironment = "SPILLWAY_BUILD"
	// EnforcedEnvironment is "1" when the kernel holds a child to its grant, so that its runtime need not.
	EnforcedEnvironment = "SPILLWAY_ENFORCED"
	// ResultsKeyEnvironment is the public key, in hexadecimal digits, of the engine that signs results. A workflow worker
	// without one takes none.
	ResultsKeyEnvironment = "SPILLWAY_RESULTS_KEY"
	// WindowEnvironment is the number of tasks of one run and stage in flight at first.
	WindowEnvironment = "SPILLWAY_WINDOW"
)

// Roles of a user's binary.
const (
	// RoleWorkflows polls the workflow queue.
	RoleWorkflows = "workflows"
	// RoleChild runs attempts that it is told of on file descriptor 3, and answers on 4.
	RoleChild = "child"
)

// File descriptors of a child: one JSON message per line. Standard output and error are the stage's log.
const (
	ChildInput  = 3
	ChildOutput = 4
)

// OutputEnd is what a child writes to its standard output and to its standard error when an attempt is over and before
// it says so: all that the attempt has printed comes before it. The supervisor takes it out.
const OutputEnd = "\x00\x02spillway: end of attempt\x03\x00"

// ToChild is a message from the supervisor to a child. Exactly one of the fields is set, but for Server.
type ToChild struct {
	Start *StartAttempt `json:"start,omitempty"`
	// Server goes with Start: the http:// URL of the engine's relay, which has a parameter server for trainings by several
	// workers; empty where there is none. It holds a token, which an environment would show to other processes.
	Server string         `json:"server,omitempty"`
	Limit  *quantity.Size `json:"limit,omitempty"`  // the grant of the attempt going on is this from now on
	Cancel bool           `json:"cancel,omitempty"` // the context of the attempt going on ends
	// Propose asks an idle child which size an attempt shall have; it answers with Recommended.
	Propose *ProposeSize `json:"propose,omitempty"`
}

// ProposeSize asks a stage's own recommender.
type ProposeSize struct {
	Task     Task            `json:"task"`
	Input    json.RawMessage `json:"input"`
	Proposal Proposal        `json:"proposal"`
}

// Proposal is what an attempt would be given, and what that rests on.
type Proposal struct {
	// Size is what is proposed.
	Size quantity.Size `json:"size"`
	// Expected is the peak of memory that is expected, in bytes, and Source what that rests on.
	Expected predictor.Interval `json:"expected_bytes"`
	Source   string             `json:"source"`
	// Input is the size of the input with its artifacts.
	Input quantity.Bytes `json:"input_bytes"`
	// Attempt counts from 1; OutOfMemory counts those before that ran out of memory, LargestFailed is the most memory that
	// was not enough.
	Attempt       int            `json:"attempt"`
	OutOfMemory   int            `json:"out_of_memory,omitempty"`
	LargestFailed quantity.Bytes `json:"largest_failed_bytes,omitempty"`
	// Capacity is all that the host has.
	Capacity quantity.Size `json:"capacity"`
}

// Recommended is the answer to ProposeSize: a size, or why there is none.
type Recommended struct {
	Size  quantity.Size `json:"size"`
	Error string        `json:"error,omitempty"`
}

// StartAttempt begins one attempt; the child is idle.
type StartAttempt struct {
	Task    Task            `json:"task"`
	Attempt int             `json:"attempt"`
	Input   json.RawMessage `json:"input"`
	Grant   quantity.Size   `json:"grant"`
	Resume  activities.Ref  `json:"resume"`
	// Secrets are those of the stage, by their names. They are in nothing that is kept.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Past is how earlier split trainings of the stage went, newest first; functions are told of none.
	Past []predictor.Training `json:"past,omitempty"`
	// TimeToLoss is how long attempts like this one go on in the mean before they are lost with their host; 0 where nobody
	// says, as of functions.
	TimeToLoss time.Duration `json:"time_to_loss_ns,omitempty"`
	// Bound is how long a function may take before its run's money for the task is used up; 0 means no bound.
	Bound time.Duration `json:"bound_ns,omitempty"`
}

// FromChild is a message from a child to its supervisor. Exactly one of the fields is set, but for CheckpointParts.
type FromChild struct {
	// Ready is the first message: the child can take attempts.
	Ready bool `json:"ready,omitempty"`
	// Progress and Checkpoint belong to the attempt going on.
	Progress   *Progress       `json:"progress,omitempty"`
	Checkpoint *activities.Ref `json:"checkpoint,omitempty"`
	// CheckpointParts are artifacts that were stored for Checkpoint alone: they go with it.
	CheckpointParts []activities.Ref `json:"checkpoint_parts,omitempty"`
	// Training is how a split training of the attempt going on goes; it replaces all before it.
	Training *predictor.Training `json:"training,omitempty"`
	// Done ends the attempt.
	Done *Answer `json:"done,omitempty"`
	// Recommended answers Propose.
	Recommended *Recommended `json:"recommended,omitempty"`
}

// Progress is one finished step of a long stage.
type Progress struct {
	Step int `json:"step"`
	// Of is how many there are; 0 where the stage did not say.
	Of      int                `json:"of,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// NotFinite are the metrics, by name, that were NaN or infinite, which JSON has not, in order.
	NotFinite []string `json:"not_finite,omitempty"`
}

// NewProgress is one finished step of so many, 0 where nobody says, with its metrics, those that are not finite too.
func NewProgress(step, of int, metrics map[string]float64) Progress {
	told := Progress{Step: step, Of: of}
	for name, value := range metrics {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			told.NotFinite = append(told.NotFinite, name)
			continue
		}
		if told.Metrics == nil {
			told.Metrics = make(map[string]float64, len(metrics))
		}
		told.Metrics[name] = value
	}
	slices.Sort(told.NotFinite)
	return told
}

// Answer is how user code ended, at every venue.
type Answer struct {
	// Output is the encoded output when Error is nil.
	Output json.RawMessage `json:"output,omitempty"`
	Error  *StageFailure   `json:"error,omitempty"`
	// Read and Written are artifact bytes.
	Read    quantity.Bytes `json:"read_bytes"`
	Written quantity.Bytes `json:"written_bytes"`
	// BeganAt is when the user's code began, by the clock of where it ran.
	BeganAt time.Time `json:"began_at,omitzero"`
	// Wall and CPU are what the user's code took, as its process measured them; PeakMemory is the process's high-water
	// mark.
	Wall       time.Duration  `json:"wall_ns"`
	CPU        time.Duration  `json:"cpu_ns"`
	PeakMemory quantity.Bytes `json:"peak_memory_bytes"`
	// Fetch and Publish are the parts of Wall in which the code waited for artifacts to be read and to be written; Fetch
	// of a command at a function is the time before Wall in which it was prepared.
	Fetch   time.Duration `json:"fetch_ns,omitempty"`
	Publish time.Duration `json:"publish_ns,omitempty"`
	// Squeezed says that the process collected garbage harder than it would have with more memory: its peak is then that
	// of its limit.
	Squeezed bool `json:"squeezed,omitempty"`
	// Printed is what a command has printed at a function, in order; of more than MaxPrinted bytes the last. Elsewhere it
	// is told while it comes.
	Printed []Printed `json:"printed,omitempty"`
	// Checkpoint and Progress are the newest ones; a function has no other way to tell them.
	Checkpoint *activities.Ref `json:"checkpoint,omitempty"`
	Progress   *Progress       `json:"progress,omitempty"`
	// Curve is how the metric of its training went, over all of its reports, at a function; nil where there is none.
	Curve *predictor.Curve `json:"curve,omitempty"`
}

// Printed is a part of what a program has printed.
type Printed struct {
	// Error says that it is of its standard error; else it is of its standard output.
	Error bool   `json:"error,omitempty"`
	Text  []byte `json:"text"`
}

// MaxPrinted is how much of a command's output a function returns at most, less where the two streams take many turns:
// an answer may hold 6 MB, its result included.
const MaxPrinted = 2 << 20

// StageFailure is an error of user code.
type StageFailure struct {
	Message string `json:"message"`
	// Stack is set when the code panicked.
	Stack string `json:"stack,omitempty"`
	// Permanent is true when a retry cannot help: the input does not decode, or the code said so.
	Permanent bool `json:"permanent,omitempty"`
	// OutOfMemory is true when the code itself reported that memory was refused.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// Bounded is true when the code was stopped at the attempt's Bound.
	Bounded bool `json:"bounded,omitempty"`
	// TimedOut is true when the code was stopped at the stage's timeout, or shortly before the function's own.
	TimedOut bool `json:"timed_out,omitempty"`
	// Unfit says that the function lacks what the code needs, and the pool may have it: predictor.CauseStart for a program
	// or a module, predictor.CauseDisk for room. Empty when it does not.
	Unfit predictor.Cause `json:"unfit,omitempty"`
	// Crowded is true when the code has run and its output is too large to be returned with those before it.
	Crowded bool `json:"crowded,omitempty"`
}

// TimeoutPassed is what a function's environment says that ended because the code of one of several tasks did not stop
// at its stage's timeout.
const TimeoutPassed = "the attempt ran past its timeout and did not stop"

// BoundPassed is what a function's environment says that ended because the code did not stop at the attempt's Bound.
const BoundPassed = "the attempt used up its run's money and did not stop"

// MaxBoundGrace is the longest BoundGrace.
const MaxBoundGrace = 500 * time.Millisecond

// BoundGrace is how long before an attempt's Bound the context of its code ends, so that it has time to stop: a quarter
// of the Bound, and half a second at most. It is less than the Bound: code always has time to begin.
func BoundGrace(bound time.Duration) time.Duration { return min(MaxBoundGrace, bound/4) }

// Invoke is the payload of a function call; the answer's payload is an Answer, or Answers where there are More.
type Invoke struct {
	Version int          `json:"v"`
	Start   StartAttempt `json:"start"`
	// More are attempts that run one after another once Start's is over. Only builds whose tasks say so (Task.Batches)
	// are sent any: others would leave them out.
	More []StartAttempt `json:"more,omitempty"`
}

// Answers is how the user code of the attempts of one invoke ended, in their order. Where there are fewer than there
// were attempts, the others were not begun: the answers would have become too large, or the invoke too long.
type Answers struct {
	Version int      `json:"v"`
	Answers []Answer `json:"answers"`
}
