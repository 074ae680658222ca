package runs

import (
	"errors"
	"fmt"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// moneySignal tells a chunk of a Map of its money (account.Block), and its run of the chunk's (chunkReport).
const moneySignal = "spillway.money"

// chunkReport is what a chunk tells its run of its money.
type chunkReport struct {
	Chunk  string         `json:"chunk"` // its workflow ID; of a tuning with the number of its part
	Report account.Report `json:"report"`
}

// spending is the detail of the errors of tasks and of chunks that says what they cost.
type spending struct {
	Spent quantity.Money `json:"spent_picodollars"`
	// Failures are the attempts of a task that count as failed.
	Failures int `json:"failures,omitempty"`
	// Price is what a chunk knows of its stage's price.
	Price account.Price `json:"price"`
	// Checkpoint is the newest one of a task that will have no further attempt here.
	Checkpoint activities.Ref `json:"checkpoint,omitzero"`
	// Taken is that of the [tuningResult] which a part of a tuning would have returned.
	Taken taken `json:"taken,omitzero"`
}

// spendingOf reads what a task or a chunk that failed or was cancelled has cost; told is false when the error does
// not say.
func spendingOf(err error) (cost spending, told bool) {
	if failed, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return cost, failed.HasDetails() && failed.Details(&cost) == nil
	}
	if cancelled, ok := errors.AsType[*temporal.CanceledError](err); ok {
		var message string
		return cost, cancelled.HasDetails() && cancelled.Details(&message, &cost) == nil
	}
	return cost, false
}

// costOf is what a task has cost whose activity ended with err. Of one that nobody heard of again the last heartbeat
// tells, and the failure that the error is about is that of an earlier attempt.
func (r *run) costOf(err error) spending {
	if silent, ok := errors.AsType[*temporal.TimeoutError](err); ok && r.version >= versionSilent &&
		silent.HasLastHeartbeatDetails() {
		var last wire.Heartbeat
		if silent.LastHeartbeatDetails(&last) == nil {
			return spending{Spent: last.Spent.Plus(last.Running)}
		}
	}
	cost, _ := spendingOf(err)
	return cost
}

// quote is what an attempt of the stage can cost at most as far as its hints and the prices of the run say; 0 when
// that is not known.
func (r *run) quote(stage wire.Stage) quantity.Money {
	if r.options.Prices == nil {
		return 0
	}
	return r.options.Prices.Most(stage)
}

// admit waits until the run's money lets the task start. It fails when nothing in flight could make room.
func (r *run) admit(ctx workflow.Context, c call) error {
	name := c.stage.Name
	if r.version < versionAccount {
		held, err := r.ledger.reserve(ctx, r, name)
		r.held[c.id] = held
		return err
	}
	r.account.Ask(c.id, name, r.quote(c.stage))
	err := workflow.Await(ctx, func() bool { return r.account.Started(c.id) || r.account.Refused(c.id) != nil })
	if err == nil && c.price > r.account.Reserved(c.id) && r.account.Started(c.id) {
		r.account.Grow(c.id, c.price, c.price, true)
		err = workflow.Await(ctx, func() bool { return !r.account.Growing(c.id) })
	}
	if refusal := r.account.Refused(c.id); err == nil && refusal != nil {
		err = tooDear(name, *refusal)
	}
	if err != nil {
		r.account.Settle(c.id, 0, false)
	}
	return err
}

// settle ends a task that admit has let start.
func (r *run) settle(c call, cost quantity.Money, err error) {
	if r.version >= versionAccount {
		r.account.Settle(c.id, cost, err == nil)
		delete(r.before, c.id)
		return
	}
	if err != nil {
		cost = 0 // runs of earlier engines repeat what they did
	}
	r.ledger.settle(c.stage.Name, r.held[c.id], cost)
	delete(r.held, c.id)
}

// tooDear says why a task may not start, and what helps.
func tooDear(stage string, why account.Refusal) error {
	costs := "nobody knows what a task of stage " + stage + " costs"
	if why.Needs > 0 {
		costs = fmt.Sprintf("a task of stage %s may cost up to %s", stage, why.Needs)
	}
	spent := fmt.Sprintf("%s of the budget of %s is spent", why.Spent, why.Limit)
	if over := why.Spent - why.Limit; over > 0 {
		spent = fmt.Sprintf("%s is spent, %s more than the budget of %s", why.Spent, over, why.Limit)
	}
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf(
		"%s, and %s%s", costs, spent, wire.RaiseBudget), wire.BudgetError, nil)
}

// answerReserve lets tasks in flight ask for more money than was reserved for them.
func (r *run) answerReserve(ctx workflow.Context) error {
	err := workflow.SetUpdateHandler(ctx, wire.ReserveUpdate,
		func(ctx workflow.Context, ask wire.Reserve) (wire.Reserved, error) {
			id := strings.TrimSuffix(ask.Task, PoolSuffix)
			before := r.before[id]
			if grown, err := r.growOwn(ctx, id, ask.Least+before, ask.Want+before, ask.Waits); err != nil || !grown {
				return r.reserved(id), err
			}
			r.account.Grow(id, ask.Least+before, ask.Want+before, ask.Waits)
			if !ask.Unlimited { // who knows of no budget goes on without an answer, and must hear of one first
				if err := workflow.Await(ctx, func() bool { return !r.account.Growing(id) }); err != nil {
					return wire.Reserved{}, err
				}
			}
			return r.reserved(id), nil
		})
	if err != nil {
		return fmt.Errorf("answer update %s: %w", wire.ReserveUpdate, err)
	}
	return nil
}

// reserved is what a task may cost now where it runs: of the job of a tuning that has a limit of its own no more than
// that allows.
func (r *run) reserved(id string) wire.Reserved {
	told := wire.Reserved{
		Unlimited: !r.account.Limited(), Amount: r.account.Reserved(id) - r.before[id], Budget: r.account.Limit(),
		Spent: r.account.Spent(),
	}
	if r.purse == nil || r.purse.limit == 0 {
		return told
	}
	own := r.purse.held[id] - r.before[id]
	if told.Unlimited || own <= told.Amount {
		told = wire.Reserved{Amount: own, Budget: r.purse.limit, Spent: r.purse.spent}
	}
	return told
}

// growOwn waits until the limit of a tuning allows one of its jobs to cost so much, and holds it. It reports false
// where the end of no other job could free as much: those that wait as well, and do not run until then, end no sooner.
func (r *run) growOwn(ctx workflow.Context, id string, least, want quantity.Money, waits bool) (bool, error) {
	if r.purse == nil || r.purse.limit == 0 {
		return true, nil
	}
	r.purse.growing[id] = waits
	defer delete(r.purse.growing, id)
	err := workflow.Await(ctx, func() bool { return r.purse.allows(id, least) || !r.purse.busyBeside(id) })
	if err != nil {
		return false, err
	}
	grown := r.purse.grow(id, least, want) >= least
	r.purse.refused[id] = !grown
	return grown, nil
}

// hearChunks takes over what chunks of this run's Maps tell of their money.
func (r *run) hearChunks(ctx workflow.Context) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var told chunkReport
			workflow.GetSignalChannel(ctx, moneySignal).Receive(ctx, &told)
			r.account.Reported(told.Chunk, told.Report)
		}
	})
}

// tellChunk sends a chunk what there is to say of its money, until it is over.
func (r *run) tellChunk(ctx workflow.Context, id string, child workflow.ChildWorkflowFuture, over func() bool) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		if child.GetChildWorkflowExecution().Get(ctx, nil) != nil {
			return // it was not started, which its own future tells
		}
		for {
			if err := workflow.Await(ctx, func() bool { return over() || r.account.Due(id) }); err != nil || over() {
				return
			}
			block := r.account.Tell(id)
			block.Part = id
			child.SignalChildWorkflow(ctx, moneySignal, block) // to a chunk that has just ended it is nothing
		}
	})
}

// hearRun takes over what a chunk's run tells of its money, and sends what the chunk has to say back, under the name
// that the run's account has for it.
func (r *run) hearRun(ctx workflow.Context, part string) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var block account.Block
			workflow.GetSignalChannel(ctx, moneySignal).Receive(ctx, &block)
			if block.Part == "" || block.Part == part { // else it has come too late for the part before of a tuning
				r.account.Told(block)
			}
		}
	})
	parent := workflow.GetInfo(ctx).ParentWorkflowExecution
	if parent == nil {
		return
	}
	workflow.Go(ctx, func(ctx workflow.Context) {
		for workflow.Await(ctx, r.account.ReportDue) == nil {
			report := chunkReport{Chunk: part, Report: r.account.Report()}
			workflow.SignalExternalWorkflow(ctx, parent.ID, parent.RunID, moneySignal, report) // a run that has ended needs none
		}
	})
}

// withSpending makes a chunk's error say what the chunk has spent; nil stays nil.
func withSpending(err error, stage string, shard int, cost spending) error {
	if err == nil {
		return nil
	}
	if failed, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		text := fmt.Sprintf("%s[%d]: %s", stage, shard, failed.Message())
		return temporal.NewNonRetryableApplicationError(text, failed.Type(), err, cost)
	}
	if temporal.IsCanceledError(err) {
		return temporal.NewCanceledError("the chunk was cancelled", cost)
	}
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s[%d]: %s", stage, shard, rootMessage(err)),
		wire.LostError, err, cost)
}
