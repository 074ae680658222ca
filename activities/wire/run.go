package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// WorkflowVersion is that of the steps that runs take beside their pipeline's own: how money is reserved, chunks are
// told, results looked up. A run keeps the version it was started with, so that a newer engine replays it step by step.
// Whatever changes steps raises it, and keeps the steps of every version before that a run may still have.
const WorkflowVersion = 5

// TeamsVersion is the WorkflowVersion from which on a run's tasks, and those of all its child workflows, are on the
// queues of the run's team. Builds of before know of no teams, and can run for none but the default one.
const TeamsVersion = 5

// RunOptions is how a run is started, besides its input and its goal. The zero value is an ordinary run.
type RunOptions struct {
	// Cache takes what other runs have made of the same input with the same code, also of stages that do not declare it.
	// Commands that come with their run refuse.
	Cache bool `json:"cache,omitempty"`
	// NoCache runs every stage, whatever earlier runs have done.
	NoCache bool `json:"no_cache,omitempty"`
	// RetryOf is the run that this one tries again: what it has finished is taken from it, wherever the input is the same,
	// also by another build.
	RetryOf string `json:"retry_of,omitempty"`
	// Only are the only stages whose results are taken from earlier runs; empty means all.
	Only []string `json:"only,omitempty"`
	// Resumes are the checkpoints from which tasks go on that the run of RetryOf had begun and not finished.
	Resumes []Resumption `json:"resumes,omitempty"`
	// Team is whose the run is: that of who starts it, else of who owns its pipeline; empty is the default team.
	Team string `json:"team,omitempty"`
	// EventAt is when the event was published, Traceparent the trace context that came with it.
	EventAt     time.Time `json:"event_at,omitzero"`
	Traceparent string    `json:"traceparent,omitempty"`
	// Version is the WorkflowVersion with which the run was started; 0 is that of engines which did not say. The starter
	// sets it.
	Version int `json:"version,omitempty"`
	// Window is how many tasks of one stage are in flight at first; 0 is that of the process that runs the workflow. The
	// starter sets it.
	Window int `json:"window,omitempty"`
	// Prices are those in force when the run was started; nil when nobody said. The starter sets it.
	Prices *Prices `json:"prices,omitempty"`
	// Attributes says that the run bears search attributes at Temporal, and keeps them up to date. The starter sets it.
	Attributes bool `json:"attributes,omitempty"`
}

// Resumption is where a task of a run had come to that did not finish it.
type Resumption struct {
	Stage string `json:"stage"`
	// Content is that of the [ResultKey] of the task.
	Content    string         `json:"content"`
	Checkpoint activities.Ref `json:"checkpoint"`
}

// IsZero reports whether the run is an ordinary one.
func (o RunOptions) IsZero() bool {
	return !o.Cache && !o.NoCache && o.RetryOf == "" && len(o.Only) == 0 && o.EventAt.IsZero() && o.Traceparent == "" &&
		o.Team == ""
}

// Reuses reports whether a run may take results of a stage from earlier runs instead of running it: those of the run
// that it tries again, or those that it shares.
func (o RunOptions) Reuses(stage Stage) bool {
	if o.NoCache {
		return false
	}
	if len(o.Only) > 0 && !slices.Contains(o.Only, stage.Name) {
		return false
	}
	return o.RetryOf != "" || o.Shares(stage)
}

// Shares reports whether a run may take results of a stage from any run: where the stage declares it or the run asks
// for it, and the stage does not refuse. Runs of version 0 ask always.
func (o RunOptions) Shares(stage Stage) bool {
	return !stage.NoCache && (stage.Cache || o.Cache || o.Version == 0)
}

// ResultKey names the result of a task by what it was made of. Equal keys have the same result, as far as stages depend
// on their input alone.
type ResultKey struct {
	// Content is the digest of the stage's name, the version of its cache where it has one, and its encoded input.
	Content string `json:"content"`
	// Code is what ran: the digest of the build or, for a command, that of its code, its requirements and its image.
	Code string `json:"code"`
}

// NewResultKey names the result of a task of stage, which is a command or a function of its build. Version is that of
// the stage's cache; the empty one is no part of the name.
func NewResultKey(stage predictor.StageID, command bool, version string, input json.RawMessage) ResultKey {
	key := ResultKey{Code: stage.Build}
	var c Command
	if command && json.Unmarshal(input, &c) == nil {
		// A retry takes what other code has made of the same input, so code is no part of the input.
		key.Code = digestToken(c.Code.Digest + " " + c.Requirements.Digest + " " + c.Image)
		c.Code, c.Requirements, c.Image = activities.Ref{}, activities.Ref{}, ""
		c.Program, c.Imports = "", nil // they follow from the code
		if encoded, err := json.Marshal(c); err == nil {
			input = encoded
		}
	}
	digest := sha256.New()
	digest.Write([]byte(stage.Name))
	digest.Write([]byte{0})
	if version != "" { // no name, version or JSON holds a zero byte
		digest.Write([]byte(version))
		digest.Write([]byte{0})
	}
	digest.Write(input)
	key.Content = hex.EncodeToString(digest.Sum(nil))
	return key
}

// Kept is a result that later runs may take.
type Kept struct {
	Version int       `json:"v"`
	Key     ResultKey `json:"key"`
	Run     string    `json:"run"`
	Stage   string    `json:"stage"`
	Task    string    `json:"task"`
	// Output is the encoded output, or Stored its address when it is large.
	Output json.RawMessage `json:"output,omitempty"`
	Stored activities.Ref  `json:"stored"`
	// Cost is what all attempts of the task cost, Wall for how long the last one ran.
	Cost quantity.Money `json:"cost_picodollars"`
	Wall time.Duration  `json:"wall_ns"`
	At   time.Time      `json:"at"`
	// Told is what its Result told besides where its task asked for that; nil where it did not.
	Told *Told `json:"told,omitempty"`
}

// Told is what the Result of a task tells where Task.Tells and Task.Stretch ask for it, as the Result has it.
type Told struct {
	Checkpoint activities.Ref     `json:"checkpoint,omitzero"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	NotFinite  []string           `json:"not_finite,omitempty"`
	// Prospect is of the training that Stretch is a part of.
	Prospect *predictor.Prospect `json:"prospect,omitempty"`
	Stretch  *predictor.Stretch  `json:"stretch,omitempty"`
}

// Lookup asks for results that a run may take.
type Lookup struct {
	// Run is a run whose own results are taken whatever code made them; empty for none.
	Run string `json:"run,omitempty"`
	// Shared says that results of all runs are taken that the same code made, where they are not from before NotBefore.
	// The zero NotBefore takes them all.
	Shared    bool        `json:"shared"`
	NotBefore time.Time   `json:"not_before,omitzero"`
	Keys      []ResultKey `json:"keys"`
	// For is the run that asks: what it takes is kept as its own, so that a retry of it finds that as well. Empty keeps
	// nothing.
	For string `json:"for,omitempty"`
}
