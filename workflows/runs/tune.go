package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// Tune runs a tuning in child workflows, and returns how it stands at its end and the encoded output of the best
// trial's last job. It fails where no trial told a finite objective.
func Tune(ctx workflow.Context, request TuneRequest) (Tuning, json.RawMessage, error) {
	return runOf(ctx).tune(ctx, request.WithDefaults())
}

// tuningPart is the input of one child workflow of a tuning: each does about partJobs jobs, and the next goes on with
// its log.
type tuningPart struct {
	Run      string        `json:"run"`
	Pipeline string        `json:"pipeline"`
	App      string        `json:"app"`
	Build    string        `json:"build"`
	Team     string        `json:"team,omitempty"`
	Version  int           `json:"version"`
	Trace    string        `json:"traceparent,omitempty"`
	Number   int           `json:"number"` // of the part, from 0 on
	First    int           `json:"first"`  // number of the tuning's first task
	Window   int           `json:"window"`
	Priority int           `json:"priority,omitempty"`
	Money    account.Block `json:"money"`
	Account  string        `json:"account"` // what the run's account calls the part
	Prices   *wire.Prices  `json:"prices,omitempty"`
	Deadline time.Time     `json:"deadline,omitzero"` // of the run
	// RetryOf is the run that this one tries again: jobs that it has done are taken from it. Empty where it tries none.
	RetryOf string      `json:"retry_of,omitempty"`
	Request TuneRequest `json:"request"`
	Log     tuningLog   `json:"log"`
}

// tuningResult is what the child workflow returns: its own jobs, and what the log has besides.
type tuningResult struct {
	Log   tuningLog      `json:"log"`
	Ended string         `json:"ended,omitempty"` // empty where another part goes on
	At    time.Time      `json:"at"`
	Spent quantity.Money `json:"spent_picodollars"`
	Price account.Price  `json:"price,omitzero"`
	// Taken is what was taken from the run that this one tries again and is not told yet. The run tells it: Temporal
	// refuses the end of a child that a signal comes in before, and all that it has done goes for nothing and is done
	// anew, which tells it twice.
	Taken taken `json:"taken,omitzero"`
}

// taken are jobs that were taken from the run that this one tries again.
type taken struct {
	Tasks int            `json:"tasks"`
	From  string         `json:"from"`
	Saved quantity.Money `json:"saved_picodollars"`
	Wall  time.Duration  `json:"wall_ns"`
}

// tellTaken tells the loop of jobs of a stage that were taken; nothing of none. They were announced before it was known
// which would be.
func (r *run) tellTaken(ctx workflow.Context, stage string, of taken) {
	if of.Tasks == 0 || r.tell == nil || workflow.IsReplaying(ctx) {
		return
	}
	r.tell(predictor.Reused{
		Run: r.id, Stage: r.stageID(stage), Tasks: of.Tasks, From: of.From, Saved: of.Saved, Wall: of.Wall,
		At: workflow.Now(ctx),
	})
	r.withdraw(ctx, stage, of.Tasks)
}

const (
	// partJobs is after how many jobs a part ends, and partEvents after how many events of its history, partBytes after
	// how many bytes of inputs and outputs: Temporal keeps 51,200 events and 50 MiB.
	partJobs   = 1000
	partEvents = 8000
	partBytes  = 12 << 20
)

func (r *run) tune(ctx workflow.Context, q TuneRequest) (Tuning, json.RawMessage, error) {
	refuse := func(err error) (Tuning, json.RawMessage, error) {
		return Tuning{}, nil, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("tuning of stage %s: %v", q.Stage.Name, err), InputError, err)
	}
	if err := q.Check(); err != nil {
		return refuse(err)
	}
	if r.version < versionAccount {
		return refuse(errors.New("the run was started by an engine that knows of no tunings: start it anew"))
	}
	if _, err := r.newCall(q.Stage, nil); err != nil {
		return Tuning{}, nil, err
	}
	r.open++
	defer func() { r.open-- }()
	// How many tasks there will be nobody knows; what is left over is given back where no other task has come since.
	first := r.next[q.Stage.Name] - 1
	reserved := first + min(q.Options.Trials*q.Options.Rungs(), MaxJobs)
	r.next[q.Stage.Name] = reserved
	id := TuningID(workflow.GetInfo(ctx).WorkflowExecution.ID, q.Name, r.tunings[q.Name])
	r.tunings[q.Name]++
	part := tuningPart{
		Run: r.id, Pipeline: r.pipeline, App: r.app, Build: r.build, Team: r.options.Team, Version: r.version,
		Trace: r.options.Traceparent, First: first, Prices: r.options.Prices,
	}
	if r.version >= versionAhead {
		q.Options.Rules = rulesAhead
	}
	part.Request = q
	if r.version >= versionAhead && r.find != nil && !r.continued && r.options.Reuses(q.Stage) {
		part.RetryOf = r.options.RetryOf
	}
	r.announce(ctx, r.place(q.Stage, "", q.Input), q.Options.Trials, r.version >= versionAhead)
	for {
		result, err := r.tunePart(ctx, id, part)
		if err != nil {
			r.withdraw(ctx, q.Stage.Name, q.Options.Trials-len(part.Log.Jobs))
			return Tuning{}, nil, mapError(err)
		}
		outputs := part.Log.Candidates
		part.Log.Jobs = append(part.Log.Jobs, result.Log.Jobs...)
		part.Log.Checkpoints = result.Log.Checkpoints
		part.Log.Candidates = withOutputs(result.Log.Candidates, outputs)
		if result.Ended == "" {
			part.Number++
			continue
		}
		r.withdraw(ctx, q.Stage.Name, q.Options.Trials-len(part.Log.Jobs))
		if r.next[q.Stage.Name] == reserved {
			r.next[q.Stage.Name] = first + len(part.Log.Jobs)
		}
		s, jobs, err := part.Log.restore(q)
		if err != nil {
			return refuse(err)
		}
		tuning := part.Log.tuning(q, first, s, jobs, result.Ended, result.At)
		return tuning, part.Log.Candidates[0].Output, nil
	}
}

// withOutputs returns candidates with the outputs that an earlier part has told.
func withOutputs(candidates, earlier []candidate) []candidate {
	for i, c := range candidates {
		for _, e := range earlier {
			if c.Output == nil && c.Job == e.Job {
				candidates[i].Output = e.Output
			}
		}
	}
	return candidates
}

// tunePart runs one part of a tuning.
func (r *run) tunePart(ctx workflow.Context, id string, part tuningPart) (result tuningResult, err error) {
	stage := part.Request.Stage
	part.Account = fmt.Sprintf("%s#%d", id, part.Number)
	part.Window, part.Priority, part.Deadline = r.tuningWindow(stage.Name), r.priorities[stage.Name], r.deadline()
	left := min(part.Request.Options.Trials*part.Request.Options.Rungs()-len(part.Log.Jobs), partJobs)
	part.Money = r.account.Open(part.Account, stage.Name, max(left, 1), r.quote(stage))
	candidates := make([]candidate, len(part.Log.Candidates))
	copy(candidates, part.Log.Candidates)
	for i := range candidates {
		candidates[i].Output = nil
	}
	part.Log.Candidates = candidates
	child := workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID:          id,
		ParentClosePolicy:   enums.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
		WaitForCancellation: true,
	}), TuneWorkflow, part)
	over := false
	r.tellDeadline(ctx, part.Deadline, child, func() bool { return over })
	r.tellChunk(ctx, part.Account, child, func() bool { return over })
	r.steer(ctx, steered{
		stage: stage.Name, tasks: part.Window, window: func() int { return r.tuningWindow(stage.Name) },
		priority: part.Priority, over: func() bool { return over },
	}, child)
	err = child.Get(ctx, &result)
	over = true
	cost, told := spending{Spent: result.Spent, Price: result.Price}, true
	if err != nil {
		cost, told = spendingOf(err)
		result.Taken = cost.Taken
	}
	r.account.Close(part.Account, cost.Spent, cost.Price, told)
	r.tellTaken(ctx, stage.Name, result.Taken)
	return result, err
}

// deadline is when the run is to have ended; the zero time where it has none.
func (r *run) deadline() time.Time {
	if r.goal.Deadline <= 0 {
		return time.Time{}
	}
	return r.startedAt.Add(r.goal.Deadline)
}

// deadlineSignal tells a tuning the deadline of its run.
const deadlineSignal = "spillway.deadline"

// tellDeadline tells a tuning the deadline of the run whenever it is not what the tuning was told last, until the
// tuning is over.
func (r *run) tellDeadline(
	ctx workflow.Context, told time.Time, child workflow.ChildWorkflowFuture, over func() bool,
) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		if child.GetChildWorkflowExecution().Get(ctx, nil) != nil {
			return // it was not started, which its own future tells
		}
		for {
			err := workflow.Await(ctx, func() bool { return over() || !r.deadline().Equal(told) })
			if err != nil || over() {
				return
			}
			told = r.deadline()
			child.SignalChildWorkflow(ctx, deadlineSignal, told)
		}
	})
}
