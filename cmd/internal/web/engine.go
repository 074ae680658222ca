package web

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/predictor/whatif"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Engine is what the handlers need of the running engine. Its methods may be called concurrently. An error that is an
// [Error] is answered with its status; any other is answered as a failure of the engine (500).
type Engine interface {
	Stacks
	Runs
	Events
	Apps
	Steering
	Accounts
	Tunings
	Space
	Hosts
}

// Stacks describes the running engine.
type Stacks interface {
	// Stack describes the stack as it is now.
	Stack(ctx context.Context) (Stack, error)
	// Check returns an error that names the part that does not work, or nil when a run could be started.
	Check(ctx context.Context) error
	// Plan returns the plan in force; the zero Plan before the first.
	Plan(ctx context.Context) (predictor.Plan, error)
}

// Runs answers questions about runs.
type Runs interface {
	// Runs returns a page of the runs that match, newest first.
	Runs(ctx context.Context, query RunQuery) (ledger.Page, error)
	// RunTotals adds up all runs that match, of whichever page.
	RunTotals(ctx context.Context, query RunQuery) (ledger.RunTotals, error)
	// Run returns one run; an Error with StatusNotFound when there is none.
	Run(ctx context.Context, run string) (ledger.RunView, error)
	// TeamOf says whose a run is, empty for the default team: by what it was started with, which no build can say
	// otherwise, unlike Team of what Run returns. An Error with StatusNotFound when there is no such run.
	TeamOf(ctx context.Context, run string) (string, error)
	// Decisions returns the decisions that match, oldest first: the newest Limit of them.
	Decisions(ctx context.Context, query DecisionQuery) ([]predictor.Decision, error)
	// History returns the recorded history of a run as JSON, in the form that Temporal's replayer reads; StatusNotFound
	// when there is none.
	History(ctx context.Context, run string) (json.RawMessage, error)
	// Result returns the encoded result of a run that has succeeded, whatever its size; StatusNotFound when there is no
	// such run, StatusConflict when it goes on or has not succeeded.
	Result(ctx context.Context, run string) (json.RawMessage, error)
	// Logs calls handle with what the attempts of query.Run have printed, and print until query.Until is closed, as
	// logs.Follow does. The run is known. All lines of an attempt are there once the attempt's Record is.
	Logs(ctx context.Context, query logs.Query, handle func(logs.Line) error) error
	// Cancel asks that the run ends; it returns once the request is durable, not once the run has ended.
	// An Error with StatusNotFound when there is no such run, with StatusConflict when it has ended already.
	Cancel(ctx context.Context, run string) error
}

// Steering changes what goes on.
type Steering interface {
	// SetGoal gives a run that goes on another goal and returns what is expected under it; it returns once the run has
	// taken it. An Error with StatusNotFound when there is no such run, with StatusConflict when it has ended, with
	// StatusUnprocessableEntity when the goal cannot be met: its message says why, its hint what could be.
	SetGoal(ctx context.Context, run string, goal predictor.Goal) (predictor.Outlook, error)
	// Outlook returns what would be expected of a run under goal, and changes nothing. Errors are those of Run.
	Outlook(ctx context.Context, run string, goal predictor.Goal) (predictor.Outlook, error)
	// Frontier returns every time and cost that a run could come to under goal, and what is read off them: of one that
	// goes on what is still left, of one that has ended what it could have come to. Errors are those of Run.
	Frontier(ctx context.Context, run string, goal predictor.Goal) (whatif.Answer, error)
	// PipelineFrontier is that of a run of a pipeline that could be started with an input; where that is empty, with one
	// like those of earlier runs.
	PipelineFrontier(ctx context.Context, pipeline string, input json.RawMessage, goal predictor.Goal) (
		whatif.Answer, error)
	// Retry starts a run again that has ended, with the build that is current now and with all results that are still
	// good. An Error with StatusConflict when it goes on or nothing of it is kept, with StatusGone when artifacts of kept
	// results are gone: it says which.
	Retry(ctx context.Context, run string, request Retry) (Retried, error)
}

// Retry is the body of POST /api/v1/runs/{run}/retry.
type Retry struct {
	// From is the first stage, in the order of the run, of which nothing is reused; empty reuses whatever succeeded.
	From string `json:"from,omitempty"`
	// Goal is that of the new run; nil takes the goal of the run that is tried again.
	Goal *predictor.Goal `json:"goal,omitempty"`
}

// Retried is the answer of POST /api/v1/runs/{run}/retry.
type Retried struct {
	// Run is the new run, Event the event that starts it.
	Run   string `json:"run"`
	Event string `json:"event"`
	// Stages are those whose results are reused where the inputs are the same, Tasks how many results there are.
	Stages []string `json:"stages"`
	Tasks  int      `json:"tasks"`
	// Resumed are the stages of tasks that the run has not finished, and that go on from their newest checkpoints where
	// the inputs are the same.
	Resumed []string `json:"resumed,omitempty"`
	// Unsigned is how many results are not taken because this engine did not sign them: one of an earlier version kept
	// them, or the credentials have been made anew since. Their tasks run again.
	Unsigned int `json:"unsigned,omitempty"`
}

// Accounts tells what runs did and cost. For a run that there is not, each answers as Run does.
type Accounts interface {
	// Timeline lays out the attempts of a run in at most about marks marks.
	Timeline(ctx context.Context, run string, marks int) (timeline.View, error)
	// Attempts returns attempts of a run by when they were scheduled.
	Attempts(ctx context.Context, query AttemptQuery) ([]timeline.Attempt, error)
	// Allocation returns what each stage of a run held and used, at about so many points in time.
	Allocation(ctx context.Context, run string, points int) ([]timeline.Allocation, error)
	// Breakdown returns where the time of a run went.
	Breakdown(ctx context.Context, run string) (timeline.Breakdown, error)
	// Curves returns what the tasks of a run reported as progress.
	Curves(ctx context.Context, run string) ([]timeline.Curve, error)
	// Learning returns how the trainings of tasks of a run that run go by their metrics, and are expected to go on.
	Learning(ctx context.Context, run string) ([]predictor.Learning, error)
	// Hindsight sets what was predicted of the attempts of a run beside what came, with at most so many points of each
	// stage; of one stage, or where it is empty of all.
	Hindsight(ctx context.Context, run, stage string, points int) ([]hindsight.Stage, error)
	// Arrivals says what comes at the stages of a run, of all runs, minute by minute, and what is forecast, in the order
	// of the run; a stage of which nothing came for long, or that is one of too many, is left out.
	Arrivals(ctx context.Context, run string) ([]predictor.Arriving, error)
	// Capacity says how much of the pool what is forecast to arrive, of all runs, would be worth; nil where nobody knows.
	Capacity(ctx context.Context) (*predictor.Capacity, error)
	// Measured returns what the attempts of a stage have shown, named "stage" or "app/stage"; where there is none of the
	// name, or several apps have one, the error names those that are near.
	Measured(ctx context.Context, stage string) (predictor.Measured, error)
	// Trainings returns how the split trainings of a run go, or went, beside their plans.
	Trainings(ctx context.Context, run string) ([]ledger.TrainingView, error)
	// Bill returns who spent what.
	Bill(ctx context.Context, query ledger.BillQuery) (ledger.Bill, error)
	// Diff compares two runs.
	Diff(ctx context.Context, a, b string) (ledger.Diff, error)
	// Prices returns the catalogue of prices in force.
	Prices(ctx context.Context) ([]pricing.Row, error)
	// Alerts returns the latest alerts, newest first, at most limit.
	Alerts(ctx context.Context, limit int) ([]alerting.Alert, error)
}

// Space gives space on the disk back.
type Space interface {
	// Collect removes the artifacts that nothing needs any more and says what went; where dry, it says what would go.
	Collect(ctx context.Context, dry bool) (retention.Collection, error)
}

// AttemptQuery selects attempts of a run. Its Limit is at least 1 (the handler sets the default of 1000).
type AttemptQuery = ledger.AttemptQuery

// RunQuery selects runs. Its Limit is at least 1 (the handler sets the default of 100).
type RunQuery = ledger.Query

// DecisionQuery selects decisions. Zero fields select all.
type DecisionQuery struct {
	// Limit is the most decisions to return; at least 1 (the handler sets the default of 1000).
	Limit int
	// Run keeps only decisions about this run's windows, or about the stages of its build while it ran.
	Run string
}

// Events takes events in, and tells what became of those that started nothing.
type Events interface {
	// Publish makes the event durable and returns its ID and the run that it starts. It does not wait for the run to
	// start. An Error with StatusBadRequest when the event can start nothing: unknown pipeline, an input that its schema
	// refuses.
	Publish(ctx context.Context, event Event) (Published, error)
	// Bindings returns every binding, declared and made by command.
	Bindings(ctx context.Context) ([]Binding, error)
	// Bind makes a binding and returns it with its key; the same binding again changes nothing.
	Bind(ctx context.Context, binding wire.Binding) (Binding, error)
	// Unbind removes the binding made by command with this key; StatusNotFound when there is none.
	Unbind(ctx context.Context, key string) error
	// Dead returns the dead letters, oldest first, at most limit.
	Dead(ctx context.Context, limit int) ([]DeadLetter, error)
	// Replay publishes the dead letter with this sequence again, or all of them when sequence is 0, and returns what
	// became of them within a few seconds.
	Replay(ctx context.Context, sequence uint64) (Replayed, error)
}

// Apps serves users' apps and chains.
type Apps interface {
	// Register serves the stored build whose executable is path; from now on its pipelines start with it. The same build
	// again changes nothing.
	Register(ctx context.Context, path string) (App, error)
	// RegisterChain stores a chain and serves it; from now on its runs start with it. The same chain again changes
	// nothing. All that it needs is packed, and its names and numbers are right. An Error with StatusConflict when its
	// name is that of another app.
	RegisterChain(ctx context.Context, c chain.Chain) (App, error)
}

// Stack is what GET /api/v1/stack answers.
type Stack struct {
	// Version is that of the engine.
	Version string `json:"version"`
	// PID is the engine's process.
	PID int `json:"pid"`
	// StateDir is the absolute path of the state directory.
	StateDir string `json:"state_dir"`
	// StartedAt is when the engine was ready.
	StartedAt time.Time `json:"started_at"`
	// Addresses is where its parts listen.
	Addresses Addresses `json:"addresses"`
	// Servers are the servers of the stack, the one that answers first, and last those that are there no more since less
	// than an hour, as far as this one has seen them.
	Servers []StackServer `json:"servers,omitempty"`
	// Hosts are the hosts of the pool; a laptop has one.
	Hosts []predictor.Host `json:"hosts"`
	// Apps are the builds that are served, sorted by name, newest build first.
	Apps []App `json:"apps"`
	// Policy is the configuration of the autoscaler.
	Policy predictor.Policy `json:"policy"`
	// Functions is the function venue.
	Functions predictor.FunctionVenue `json:"functions"`
	// FunctionBuilds are the digests of the builds whose functions the engine may call: those that are served, older ones
	// whose runs go on, and the program that runs commands. Null says that it is not known: the engine has only just
	// started, or has no functions.
	FunctionBuilds []string `json:"function_builds"`
	// FunctionPlace tells its functions from those of other engines at the same address: where its artifacts are. It is
	// empty at the engine's own host, which has no others.
	FunctionPlace string `json:"function_place"`
	// Artifacts is where artifacts are: "files", or the location of another store.
	Artifacts string `json:"artifacts"`
	// ArtifactsNotes are what keeps that store from working as well as it could.
	ArtifactsNotes []string `json:"artifacts_notes,omitempty"`
	// Retention says what artifacts are kept.
	Retention retention.Policy `json:"retention"`
	// KeepHours is for how long costs are known by the hour.
	KeepHours time.Duration `json:"keep_hours_ns"`
	// Ledger says where the ledger of costs is, and LedgerFailing why it is not kept now; empty while it is.
	Ledger        string `json:"ledger,omitempty"`
	LedgerFailing string `json:"ledger_failing,omitempty"`
	// PoolCPUs and FunctionCPUs are the CPU numbers that each venue may use here.
	PoolCPUs     []int `json:"pool_cpus"`
	FunctionCPUs []int `json:"function_cpus"`
}

// StackServer is a server of the stack: each answers for the API and lets hosts in, and one of them leads.
type StackServer struct {
	// Name is that of its machine.
	Name string `json:"name"`
	// Address is the URL by which other machines reach it; empty where it has no port for them.
	Address string `json:"address,omitempty"`
	// Own says that it is the one that answers, Leads that it decides and does what one of them does.
	Own   bool `json:"own,omitempty"`
	Leads bool `json:"leads,omitempty"`
	// Term is that in which it leads, which grows whenever another server begins to, and LeadsSince when that began;
	// absent where it does not lead.
	Term       uint64    `json:"term,omitempty"`
	LeadsSince time.Time `json:"leads_since,omitzero"`
	// SeenAt is when it said last that it is there, which servers do every two seconds. Gone says that it does no more: it
	// has ended, or reaches nobody.
	SeenAt time.Time `json:"seen_at"`
	Gone   bool      `json:"gone,omitempty"`
	// Version is that of its program.
	Version string `json:"version"`
	// StartedAt is when it was started.
	StartedAt time.Time `json:"started_at"`
}

// Addresses is where the parts of the stack listen. Empty when a part is off.
type Addresses struct {
	// HTTP is the URL of this API: "http://127.0.0.1:7474".
	HTTP string `json:"http"`
	// TLS is the URL by which other machines reach the engine: "https://train.example.com:7475".
	TLS string `json:"tls,omitempty"`
	// Temporal is host and port of Temporal's gRPC frontend.
	Temporal string `json:"temporal"`
	// TemporalUI is the URL of Temporal's web UI.
	TemporalUI string `json:"temporal_ui,omitempty"`
	// NATS is the URL of the NATS server.
	NATS string `json:"nats"`
	// Functions is the URL of the Lambda API that tasks spill to: that of the function host of this machine, or AWS's.
	Functions string `json:"functions,omitempty"`
}

// App is one build that is served.
type App struct {
	wire.App
	// Build is the digest of the binary, or of the chain.
	Build string `json:"build"`
	// Path is the stored executable, or the stored chain.
	Path string `json:"path"`
	// Chain is true for a chain of commands, which has no binary.
	Chain bool `json:"chain,omitempty"`
	// Current is true for the build that new runs start with.
	Current bool `json:"current"`
}

// Event is the body of POST /api/v1/events.
type Event struct {
	// Pipeline or Subject says what to start; exactly one is set.
	Pipeline string `json:"pipeline,omitempty"`
	Subject  string `json:"subject,omitempty"`
	// ID makes the event the same as every other with this ID; empty makes a new one.
	ID string `json:"id,omitempty"`
	// Input is the pipeline's input; empty means {}.
	Input json.RawMessage `json:"input,omitempty"`
	// Goal is the run's goal; nil leaves the binding's or the pipeline's own.
	Goal *predictor.Goal `json:"goal,omitempty"`
	// Cache takes what other runs have made of the same input with the same code, also of stages that do not declare it.
	Cache bool `json:"cache,omitempty"`
}

// Coming is the body of POST /api/v1/pipelines/{pipeline}/frontier: a run that could be started.
type Coming struct {
	// Input is that of the run; empty means one like those of earlier runs.
	Input json.RawMessage `json:"input,omitempty"`
	// Goal is the run's goal; the zero goal is none.
	Goal predictor.Goal `json:"goal,omitzero"`
}

// Published is the answer of POST /api/v1/events.
type Published struct {
	// Event is the ID of the event.
	Event string `json:"event"`
	// Run is the ID of the run that it starts; empty when the event was published to a subject and not to a pipeline.
	Run string `json:"run,omitempty"`
}

// Binding is a binding with its key.
type Binding struct {
	wire.Binding
	// Key names the binding.
	Key string `json:"key"`
	// Declared is true when the pipeline's code declares it; such a binding cannot be removed by command.
	Declared bool `json:"declared,omitempty"`
	// Waiting is how many events wait for a run.
	Waiting int `json:"waiting"`
	// Running is how many of its runs go on.
	Running int `json:"running"`
}

// DeadLetter is an event that could not start a run.
type DeadLetter struct {
	// Sequence names it for a replay.
	Sequence uint64 `json:"sequence"`
	// Event is the event's ID.
	Event string `json:"event"`
	// Pipeline is what it was meant for; empty when that is not known.
	Pipeline string `json:"pipeline,omitempty"`
	// Subject is where it was published.
	Subject string `json:"subject"`
	// Reason is one sentence that says what was wrong.
	Reason string `json:"reason"`
	// Body is the event's body, cut to 4 KiB.
	Body string `json:"body"`
	// At is when it was found dead.
	At time.Time `json:"at"`
}

// Replayed is what became of dead letters that were published again.
type Replayed struct {
	// Replayed is how many were published.
	Replayed int `json:"replayed"`
	// Outcomes are one for each of them, the oldest first.
	Outcomes []ReplayOutcome `json:"outcomes"`
}

// ReplayOutcome is what became of a dead letter. Where neither Run nor Refused says anything, that was not known after
// some seconds: its event waits, or the filters of the bindings that read it do not want it.
type ReplayOutcome struct {
	// Sequence named the dead letter.
	Sequence uint64 `json:"sequence"`
	// Run is the run of the event.
	Run string `json:"run,omitempty"`
	// Refused is why the event is a dead letter again.
	Refused string `json:"refused,omitempty"`
}

// HostPricePerHour is the price of holding all hosts of the stack for an hour.
func (s Stack) HostPricePerHour() quantity.Money {
	var sum quantity.Money
	for _, host := range s.Hosts {
		sum += host.PricePerHour
	}
	return sum
}
