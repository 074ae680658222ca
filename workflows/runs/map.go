package runs

import (
	"encoding/json"
	"errors"
	"fmt"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// MapWorkflow is the name of the child workflow that runs a part of a Map. app.Main registers it.
const MapWorkflow = "spillway.map"

const (
	// maxChunk bounds the shards of one child workflow: 500 shards take about 3,000 history events of Temporal's 51,200.
	maxChunk = 500
	// openChunks is how many chunks go on at a time at least: two, so that the stragglers of one leave no slot idle.
	openChunks = 2
	// windowSignal tells a chunk its part of the window.
	windowSignal = "spillway.window"
	// prioritySignal tells a chunk the priority of its tasks.
	prioritySignal = "spillway.priority"
)

// chunk is the input of one child workflow of a Map.
type chunk struct {
	Run      string            `json:"run"`
	Pipeline string            `json:"pipeline"`
	App      string            `json:"app"`
	Build    string            `json:"build"`
	Team     string            `json:"team,omitempty"`
	Stage    wire.Stage        `json:"stage"`
	First    int               `json:"first"`            // number of the first task
	Offset   int               `json:"offset"`           // the shard of the first input
	Shards   []int             `json:"shards,omitempty"` // that of each input; nil when they follow one another
	Inputs   []json.RawMessage `json:"inputs"`
	Trace    string            `json:"traceparent,omitempty"`
	Version  int               `json:"version,omitempty"` // that of the run
	Window   int               `json:"window"`
	Priority int               `json:"priority,omitempty"` // 0 is the usual one
	// Money is what the chunk has to begin with, and Prices are those of the run.
	Money  account.Block `json:"money,omitzero"`
	Prices *wire.Prices  `json:"prices,omitempty"`
	// Budget is what the chunk of a run of version 0 may spend; 0 means no limit.
	Budget quantity.Money `json:"budget_picodollars,omitempty"`
}

// shard is the index, in the whole Map, of input i.
func (c chunk) shard(i int) int {
	if c.Shards == nil {
		return c.Offset + i
	}
	return c.Shards[i]
}

// chunkResult is what the child workflow returns.
type chunkResult struct {
	Outputs []json.RawMessage `json:"outputs"`
	Spent   quantity.Money    `json:"spent_picodollars"`
	Highest quantity.Money    `json:"highest_picodollars"`
	// Price is what the chunk knows of the stage's price.
	Price account.Price `json:"price,omitzero"`
}

// fanOut runs the chunks of a Map.
func (r *run) fanOut(ctx workflow.Context, stage wire.Stage, inputs []json.RawMessage) ([]json.RawMessage, error) {
	outputs := make([]json.RawMessage, len(inputs))
	if len(inputs) == 0 {
		return outputs, nil
	}
	r.open++
	defer func() { r.open-- }()
	if _, err := r.newCall(stage, nil); err != nil {
		return nil, err
	}
	first := r.next[stage.Name] - 1
	r.next[stage.Name] = first + len(inputs)

	shards, err := r.reuseShards(ctx, stage, inputs, outputs)
	if err != nil || len(shards) == 0 {
		return outputs, err
	}
	like := r.place(stage, "", inputs[shards[0]]) // what one is for, the others most often are
	r.announce(ctx, like, len(shards), false)
	sizes := chunkSizes(len(shards))
	group, cancel := workflow.WithCancel(ctx)
	defer cancel()
	open := map[string]workflow.ChildWorkflowFuture{}
	var failure error
	for i, offset := 0, 0; i < len(sizes); i, offset = i+1, offset+sizes[i] {
		if err := workflow.Await(ctx, func() bool {
			return failure != nil || len(open) < r.concurrentChunks(stage.Name)
		}); err != nil {
			return nil, err
		}
		if failure != nil {
			break
		}
		part := r.chunkOf(stage, first, shards[offset:offset+sizes[i]], inputs)
		id := fmt.Sprintf("%s/%s-%d", workflow.GetInfo(ctx).WorkflowExecution.ID, stage.Name, part.First)
		if r.version >= versionAccount {
			part.Money = r.account.Open(id, stage.Name, len(part.Inputs), r.quote(like.stage))
		}
		child := workflow.ExecuteChildWorkflow(workflow.WithChildOptions(group, workflow.ChildWorkflowOptions{
			WorkflowID:          id,
			ParentClosePolicy:   enums.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
			WaitForCancellation: true,
		}), MapWorkflow, part)
		open[id] = child
		workflow.Go(ctx, func(ctx workflow.Context) {
			var result chunkResult
			err := child.Get(ctx, &result)
			delete(open, id)
			r.closeChunk(id, stage.Name, result, err)
			if err != nil && failure == nil {
				failure = mapError(err)
				cancel()
			}
			for i, output := range result.Outputs {
				outputs[part.shard(i)] = output
			}
		})
		if r.version >= versionAccount {
			r.tellChunk(ctx, id, child, func() bool { return open[id] == nil })
		}
		if r.version >= versionTold {
			r.steer(ctx, steered{
				stage: stage.Name, tasks: part.Window, window: func() int { return r.chunkWindow(stage.Name) },
				priority: part.Priority, over: func() bool { return open[id] == nil },
			}, child)
		}
	}
	if err := r.followWindow(ctx, stage.Name, open); err != nil {
		return nil, err
	}
	if failure != nil { // the pipeline may go on without them
		r.withdraw(ctx, stage.Name, len(shards))
	}
	return outputs, failure
}

// steered is a child workflow that is told its part of the window and its priority.
type steered struct {
	stage    string
	window   func() int // its part
	tasks    int        // the part, and the priority, that it was told last
	priority int
	over     func() bool
}

// steer tells a child workflow its part of the window and its priority whenever they are not what it was told last,
// until it is over.
func (r *run) steer(ctx workflow.Context, s steered, child workflow.ChildWorkflowFuture) {
	changed := func() bool { return s.window() != s.tasks || r.priorities[s.stage] != s.priority }
	workflow.Go(ctx, func(ctx workflow.Context) {
		if child.GetChildWorkflowExecution().Get(ctx, nil) != nil {
			return // it was not started, which its own future tells
		}
		for {
			if err := workflow.Await(ctx, func() bool { return s.over() || changed() }); err != nil || s.over() {
				return
			}
			if now := s.window(); now != s.tasks {
				s.tasks = now
				child.SignalChildWorkflow(ctx, windowSignal, s.tasks)
			}
			if now := r.priorities[s.stage]; now != s.priority {
				s.priority = now
				child.SignalChildWorkflow(ctx, prioritySignal, s.priority)
			}
		}
	})
}

// followWindow waits until no chunk is open. In runs of earlier versions it tells them until then the window and the
// priority of their stage when those change.
func (r *run) followWindow(ctx workflow.Context, stage string, open map[string]workflow.ChildWorkflowFuture) error {
	if r.version >= versionTold {
		return workflow.Await(ctx, func() bool { return len(open) == 0 })
	}
	tasks, priority := r.windowOf(stage), r.priorities[stage]
	for {
		changed := func() bool { return r.windowOf(stage) != tasks || r.priorities[stage] != priority }
		if err := workflow.Await(ctx, func() bool { return len(open) == 0 || changed() }); err != nil || len(open) == 0 {
			return err
		}
		wider, moved := r.windowOf(stage) != tasks, r.priorities[stage] != priority
		tasks, priority = r.windowOf(stage), r.priorities[stage]
		for _, id := range workflow.DeterministicKeys(open) {
			if wider {
				open[id].SignalChildWorkflow(ctx, windowSignal, r.chunkWindow(stage))
			}
			if moved {
				open[id].SignalChildWorkflow(ctx, prioritySignal, priority)
			}
		}
	}
}

// closeChunk counts what a chunk that is over has cost.
func (r *run) closeChunk(id, stage string, result chunkResult, err error) {
	if r.version < versionAccount {
		r.ledger.spent += result.Spent
		r.ledger.highest[stage] = max(r.ledger.highest[stage], result.Highest)
		return
	}
	cost, told := spending{Spent: result.Spent, Price: result.Price}, true
	if err != nil {
		cost, told = spendingOf(err)
	}
	r.account.Close(id, cost.Spent, cost.Price, told)
}

// reuseShards puts the outputs that earlier runs have made into outputs, and returns the shards that are left to run.
func (r *run) reuseShards(
	ctx workflow.Context, stage wire.Stage, inputs, outputs []json.RawMessage,
) (left []int, err error) {
	kept, err := r.reuse(ctx, stage, inputs)
	if err != nil {
		return nil, err
	}
	copy(outputs, kept)
	for i, output := range outputs {
		if output == nil {
			left = append(left, i)
		}
	}
	return left, nil
}

// chunkSizes divides n shards into chunks of nearly equal size, each of at most maxChunk, at least openChunks where
// there are so many shards.
func chunkSizes(n int) []int {
	chunks := max((n+maxChunk-1)/maxChunk, min(n, openChunks))
	sizes := make([]int, chunks)
	for i := range sizes {
		sizes[i] = n / chunks
		if i < n%chunks {
			sizes[i]++
		}
	}
	return sizes
}

func (r *run) concurrentChunks(stage string) int {
	return max(openChunks, (r.windowOf(stage)+maxChunk-1)/maxChunk)
}

func (r *run) chunkWindow(stage string) int {
	return max(1, r.windowOf(stage)/r.concurrentChunks(stage))
}

func (r *run) chunkOf(stage wire.Stage, first int, shards []int, inputs []json.RawMessage) chunk {
	part := chunk{
		Run: r.id, Pipeline: r.pipeline, App: r.app, Build: r.build, Team: r.options.Team, Stage: stage,
		First:  first + shards[0],
		Offset: shards[0],
		Inputs: make([]json.RawMessage, len(shards)), Window: r.chunkWindow(stage.Name), Trace: r.options.Traceparent,
		Version:  r.version,
		Priority: r.priorities[stage.Name],
	}
	for i, shard := range shards {
		part.Inputs[i] = inputs[shard]
	}
	if shards[len(shards)-1]-shards[0] != len(shards)-1 {
		part.Shards = shards
	}
	if part.Prices = r.options.Prices; r.goal.Budget > 0 && r.version < versionAccount {
		part.Budget = max(1, (r.goal.Budget-r.ledger.spent)/quantity.Money(r.concurrentChunks(stage.Name)))
	}
	return part
}

// shardError names the shard that failed; a cancellation stays what it is.
func shardError(stage string, index int, err error) error {
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) {
		return err
	}
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s[%d]: %s", stage, index, failed.Message()),
		failed.Type(), err)
}

// mapError drops the layer that only says that a child workflow was in between.
func mapError(err error) error {
	if failed, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return failed
	}
	return err
}

// runChunk is the child workflow of a Map.
func runChunk(ports Ports) func(workflow.Context, chunk) (chunkResult, error) {
	return func(ctx workflow.Context, part chunk) (chunkResult, error) {
		mustKnow(part.Version)
		r := ports.part(part)
		if err := r.hearParent(ctx, part.Stage.Name, workflow.GetInfo(ctx).WorkflowExecution.ID); err != nil {
			return chunkResult{}, err
		}
		result := chunkResult{Outputs: make([]json.RawMessage, len(part.Inputs))}
		group, cancel := workflow.WithCancel(ctx)
		defer cancel()
		started, done, failed := 0, 0, 0
		var failure error
		for i, input := range part.Inputs {
			shard := part.shard(i)
			c := r.place(part.Stage, fmt.Sprintf("%s-%d", part.Stage.Name, part.First-part.Offset+shard), input)
			if err := workflow.Await(ctx, func() bool { return failure != nil || started-done < r.window }); err != nil {
				if r.version < versionAccount {
					return chunkResult{}, err
				}
				failure = err // what runs is waited for: it has cost something
			}
			if failure != nil {
				break
			}
			workflow.Go(group, func(ctx workflow.Context) {
				output, err := r.runTask(ctx, c)
				done++
				result.Outputs[i] = output
				if err != nil && failure == nil {
					failure, failed = err, shard
					cancel()
				}
			})
			started++
		}
		settled, _ := workflow.NewDisconnectedContext(ctx)
		if err := workflow.Await(settled, func() bool { return done == started }); err != nil {
			return chunkResult{}, err
		}
		if r.version < versionAccount {
			result.Spent, result.Highest = r.ledger.spent, r.ledger.highest[part.Stage.Name]
			return result, shardError(part.Stage.Name, failed, failure)
		}
		result.Spent, result.Price = r.account.Spent(), r.account.Price()
		return result, withSpending(failure, part.Stage.Name, failed, spending{Spent: result.Spent, Price: result.Price})
	}
}

// hearParent has a chunk listen to its run: to money, under the name that the run has for it, its part of the window
// and the priority of its tasks.
func (r *run) hearParent(ctx workflow.Context, stage, part string) error {
	if r.version >= versionAccount {
		r.hearRun(ctx, part)
		if err := r.answerReserve(ctx); err != nil {
			return err
		}
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var tasks int
			workflow.GetSignalChannel(ctx, windowSignal).Receive(ctx, &tasks)
			r.window = max(1, tasks)
		}
	})
	if r.version < versionPriority {
		return nil
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var priority int
			workflow.GetSignalChannel(ctx, prioritySignal).Receive(ctx, &priority)
			r.priorities[stage] = priority
		}
	})
	return nil
}
