package runs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// runTuning is the child workflow of a tuning.
func runTuning(ports Ports) func(workflow.Context, tuningPart) (tuningResult, error) {
	return func(ctx workflow.Context, part tuningPart) (tuningResult, error) {
		mustKnow(part.Version)
		t, err := newTuner(ports, part)
		if err != nil { // the search is another than that of the part before
			return tuningResult{}, temporal.NewNonRetryableApplicationError(
				fmt.Sprintf("tuning of stage %s: %v", part.Request.Stage.Name, err), wire.StageError, err, spending{})
		}
		if err := t.r.hearParent(ctx, part.Request.Stage.Name, part.Account); err != nil {
			return tuningResult{}, err
		}
		t.hearDeadline(ctx)
		if err := workflow.SetQueryHandler(ctx, TuningQuery, func(page TuningPage) (Tuning, error) {
			return t.log.tuning(t.q, part.First, t.search, t.jobs, t.ended, t.endedAt).page(page), nil
		}); err != nil {
			return tuningResult{}, fmt.Errorf("answer query %s: %w", TuningQuery, err)
		}
		return t.run(ctx)
	}
}

// tuner does the jobs of one part of a tuning. Workflow code owns it.
type tuner struct {
	r       *run
	q       TuneRequest
	part    tuningPart
	search  *search.Search
	jobs    []search.Job // those of the log's lines
	log     tuningLog
	running int
	turn    time.Duration // how long the job that ended last waited for each of those that were under way before it
	reused  taken         // what was taken since it was told last
	reports int
	bytes   int // of inputs and outputs in this part
	unsaved int // of what was looked up since the history was last sent to the server
	told    int // jobs that told an objective, or diverged
	failed  int // those that failed for good
	failure string
	ended   string
	endedAt time.Time
	err     error // why it failed
}

func newTuner(ports Ports, part tuningPart) (*tuner, error) {
	s, jobs, err := part.Log.restore(part.Request)
	if err != nil {
		return nil, err
	}
	r := newRun(part.Run, part.Window)
	r.pipeline, r.app, r.build, r.tell, r.version = part.Pipeline, part.App, part.Build, ports.Tell, part.Version
	r.priorities[part.Request.Stage.Name] = part.Priority
	r.options.Traceparent, r.options.Prices, r.options.Team, r.find = part.Trace, part.Prices, part.Team, ports.Find
	left := min(part.Request.Options.Trials*part.Request.Options.Rungs()-len(jobs), partJobs)
	r.account = account.NewPart(part.Request.Stage.Name, max(left, 1), part.Money)
	r.purse = newPurse(part.Request.Money)
	t := &tuner{r: r, q: part.Request, part: part, search: s, jobs: jobs, log: part.Log}
	if t.log.Checkpoints == nil {
		t.log.Checkpoints = map[int]trialCheckpoint{}
	}
	for i, line := range t.log.Jobs {
		if line.Taken == "" {
			r.purse.settle("", line.Spent, units(jobs[i], line.From), line.ran(),
				line.End == jobTold || line.End == jobDiverged)
		}
		t.count(line)
	}
	return t, nil
}

// count counts a line of a job that is over.
func (t *tuner) count(line jobLine) {
	if line.Report > 0 {
		t.reports++
	}
	switch line.End {
	case jobTold, jobDiverged:
		t.told++
	case jobFailed:
		t.failed++
		t.failure = cmp.Or(t.failure, line.Why)
	default: // it counts for nothing
	}
}

// hearDeadline takes over what the run tells of its deadline.
func (t *tuner) hearDeadline(ctx workflow.Context) {
	workflow.Go(ctx, func(ctx workflow.Context) {
		for {
			var deadline time.Time
			workflow.GetSignalChannel(ctx, deadlineSignal).Receive(ctx, &deadline)
			t.part.Deadline = deadline
		}
	})
}

// run does jobs until the tuning or this part of it is over, and waits until none is under way.
func (t *tuner) run(ctx workflow.Context) (tuningResult, error) {
	before := len(t.log.Jobs)
	group, cancel := workflow.WithCancel(ctx)
	defer cancel()
	t.watchTime(group, cancel)
	for t.ended == "" && len(t.log.Jobs)-before < partJobs && t.bytes < partBytes &&
		workflow.GetInfo(ctx).GetCurrentHistoryLength() < partEvents {
		if err := t.step(ctx, group, cancel); err != nil {
			why := EndedFailed
			if temporal.IsCanceledError(err) {
				why = EndedCancelled
			}
			t.end(ctx, why) // what runs is waited for: it has cost something
			t.err = err
		}
	}
	settled, _ := workflow.NewDisconnectedContext(ctx)
	if err := workflow.Await(settled, func() bool { return t.running == 0 }); err != nil {
		return tuningResult{}, err
	}
	if t.ended == "" && t.search.Done() {
		t.end(ctx, EndedDone)
	}
	if t.ended != "" && t.err == nil && len(t.log.Candidates) == 0 {
		t.err = t.fruitless()
		t.ended = EndedFailed
	}
	cost := spending{Spent: t.r.account.Spent(), Price: t.r.account.Price(), Taken: t.reused}
	if t.err != nil {
		return tuningResult{}, t.withCost(t.err, cost)
	}
	result := tuningResult{
		Log: t.log, Ended: t.ended, At: t.endedAt, Spent: cost.Spent, Price: cost.Price, Taken: t.reused,
	}
	result.Log.Jobs = t.log.Jobs[before:]
	return result, nil
}

// withCost makes an error say what the part has spent.
func (t *tuner) withCost(err error, cost spending) error {
	if temporal.IsCanceledError(err) {
		return temporal.NewCanceledError("the tuning was cancelled", cost)
	}
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf("tuning of stage %s: %s", t.q.Stage.Name, err),
		wire.StageError, nil, cost)
}

// end ends the tuning; the first reason counts.
func (t *tuner) end(ctx workflow.Context, why string) {
	if t.ended == "" {
		t.ended, t.endedAt = why, workflow.Now(ctx)
	}
}

// watchTime stops all jobs when the tuning's time has passed.
func (t *tuner) watchTime(group workflow.Context, cancel func()) {
	if t.q.Time == 0 {
		return
	}
	workflow.Go(group, func(ctx workflow.Context) {
		if workflow.Await(ctx, func() bool { return len(t.log.Jobs) > 0 }) != nil {
			return
		}
		if left := t.startedAt().Add(t.q.Time).Sub(workflow.Now(ctx)); workflow.Sleep(ctx, left) != nil {
			return
		}
		t.end(ctx, EndedTime)
		cancel()
	})
}

// startedAt is when the first job was begun.
func (t *tuner) startedAt() time.Time { return time.UnixMilli(t.log.Jobs[0].Started) }

// step begins the next job, once there is one and there is room for it, or ends the tuning. An error says that it was
// cancelled.
func (t *tuner) step(ctx, group workflow.Context, cancel func()) error {
	if err := workflow.Await(ctx, func() bool { return t.ended != "" || t.running < t.r.window }); err != nil {
		return err
	}
	if t.ended != "" {
		return nil
	}
	job, found := t.search.Next()
	if !found {
		if t.search.Done() {
			t.end(ctx, EndedDone)
			return nil
		}
		reports := t.reports
		return workflow.Await(ctx, func() bool { return t.ended != "" || t.reports > reports })
	}
	after := t.reports // what decided; others may be reported until the job can be paid
	from := t.log.Checkpoints[job.Trial].At
	if taken, err := t.take(ctx, job, jobLine{After: after, From: from}); taken || err != nil {
		return err
	}
	task := taskOf(t.q.Stage.Name, t.part.First+len(t.log.Jobs))
	for {
		atOnce, inTurn := t.late(ctx, units(job, from))
		if atOnce != "" {
			t.end(ctx, atOnce)
			return nil
		}
		if inTurn == "" && t.r.purse.hold(task, units(job, from)) {
			break
		}
		running := t.running
		if running == 0 {
			t.end(ctx, EndedMoney)
			return nil
		}
		if err := workflow.Await(ctx, func() bool {
			_, can := t.r.purse.pays(units(job, from))
			return t.ended != "" || t.running < running || inTurn == "" && can
		}); err != nil {
			return err
		}
		if t.ended != "" {
			return nil
		}
	}
	return t.begin(ctx, group, cancel, job, task, jobLine{After: after, From: from})
}

// mostUnsaved is how many bytes of what is looked up one workflow task has about at most: it is all sent to the server
// at its end, which takes 4 MiB. lookedUp is about what a look-up comes to besides the output that it finds.
const (
	mostUnsaved = 1 << 20
	lookedUp    = 1 << 10
)

// take ends a job by what it told in the run that this one tries again, where that is kept: it costs nothing, and its
// trial goes on from the checkpoint that it made there. What that run decided need not be decided again in its order:
// each job is looked up when it is due. An error says that the tuning was cancelled.
func (t *tuner) take(ctx workflow.Context, job search.Job, line jobLine) (found bool, err error) {
	if t.part.RetryOf == "" {
		return false, nil
	}
	input, err := t.q.input(job.Configuration, Turn{Number: job.Trial, Rung: job.Rung, From: line.From, To: job.To})
	if err != nil {
		return false, fmt.Errorf("trial %d: %w", job.Trial, err)
	}
	if t.unsaved >= mostUnsaved {
		t.unsaved = 0
		if err := workflow.Sleep(ctx, time.Millisecond); err != nil || t.ended != "" { // what ends a workflow task
			return t.ended != "", err
		}
	}
	stage := t.q.Stage
	key := wire.NewResultKey(t.r.stageID(stage.Name), stage.Command, stage.CacheVersion, input)
	kept, err := t.r.lookUp(ctx, inquiry{
		Lookup: wire.Lookup{Run: t.part.RetryOf, For: t.r.id, Keys: []wire.ResultKey{key}}, Had: []bool{false},
	})
	t.unsaved += lookedUp
	if len(kept) > 0 && kept[0] != nil {
		t.unsaved += len(kept[0].Output)
	}
	// Engines of before kept no checkpoints with results.
	if err != nil || t.ended != "" || len(kept) == 0 || kept[0] == nil || kept[0].Told == nil {
		return t.ended != "", err
	}
	one := *kept[0]
	result := wire.Result{
		Output: one.Output, Checkpoint: one.Told.Checkpoint, Metrics: one.Told.Metrics, NotFinite: one.Told.NotFinite,
	}
	if end, _, _ := t.verdict(result, nil); end == jobFailed {
		return false, nil // the code may be another now, or the objective
	}
	if stretch := t.stretch(job, line.From); stretch != nil && one.Told.Stretch != nil && *stretch == *one.Told.Stretch {
		result.Prospect = one.Told.Prospect
	}
	line.Taken, line.Started = one.From, workflow.Now(ctx).UnixMilli()
	number := len(t.log.Jobs)
	t.log.Jobs, t.jobs = append(t.log.Jobs, line), append(t.jobs, job)
	t.bytes += len(input)
	t.settle(ctx, number, result, nil)
	t.reused.Tasks++
	t.reused.From, t.reused.Saved, t.reused.Wall = one.From, t.reused.Saved.Plus(one.Cost), t.reused.Wall+one.Wall
	return true, nil
}

// late says why a job would end too late even if it ran at once, and why it would if it waited for those under way,
// which end sooner or later; a tuning without a result goes on.
func (t *tuner) late(ctx workflow.Context, units float64) (atOnce, inTurn string) {
	if len(t.log.Candidates) == 0 {
		return "", ""
	}
	ends := workflow.Now(ctx).Add(t.r.purse.takes(units))
	return t.beyond(ends), t.beyond(ends.Add(time.Duration(t.running) * t.turn))
}

// beyond says what limit a time is beyond; empty where none.
func (t *tuner) beyond(at time.Time) string {
	switch {
	case t.q.Time > 0 && at.After(t.startedAt().Add(t.q.Time)):
		return EndedTime
	case !t.part.Deadline.IsZero() && at.After(t.part.Deadline):
		return EndedDeadline
	}
	return ""
}

// begin begins a job; its line says when it was taken and where it goes on from.
func (t *tuner) begin(
	ctx, group workflow.Context, cancel func(), job search.Job, task string, begun jobLine,
) error {
	input, err := t.q.input(job.Configuration, Turn{Number: job.Trial, Rung: job.Rung, From: begun.From, To: job.To})
	if err != nil {
		return fmt.Errorf("trial %d: %w", job.Trial, err)
	}
	c := t.r.place(t.q.Stage, task, input)
	c.resume, c.tells = t.log.Checkpoints[job.Trial].Ref, true
	c.price = t.r.purse.price(units(job, begun.From))
	c.stretch = t.stretch(job, begun.From)
	t.r.tellTaken(ctx, t.q.Stage.Name, t.reused)
	t.reused = taken{}
	line := len(t.log.Jobs)
	begun.Started = workflow.Now(ctx).UnixMilli()
	t.log.Jobs = append(t.log.Jobs, begun)
	t.jobs = append(t.jobs, job)
	before := t.running
	t.running++
	t.bytes += len(input)
	workflow.Go(group, func(ctx workflow.Context) {
		result, err := t.r.runWithin(ctx, c)
		t.settle(ctx, line, result, err)
		t.running--
		if t.log.Jobs[line].Ran > 0 && before > 0 {
			t.turn = t.log.Jobs[line].waited() / time.Duration(before)
		}
		if t.told == 0 && t.failed >= min(mostFailed, t.q.Options.Trials) && t.ended == "" {
			t.end(ctx, EndedFailed)
			cancel()
		}
	})
	return nil
}

// stretch is which part of the training a job does, where its curve may tell that its trial need not go on: nil in the
// last rung, and of searches that go by no curves.
func (t *tuner) stretch(job search.Job, from float64) *predictor.Stretch {
	o := t.q.Options
	if t.r.version < versionAhead || o.Algorithm != search.ASHA || job.Rung == o.Rungs()-1 {
		return nil
	}
	return &predictor.Stretch{From: from, Before: job.To / float64(o.Eta), To: job.To, Most: o.Most}
}

// mostFailed is after how many trials that failed, before any told an objective, a tuning fails.
const mostFailed = 5

// maxWhy bounds what is kept of why a trial failed, in bytes.
const maxWhy = 300

// settle notes how a job ended, and reports it to the search.
func (t *tuner) settle(ctx workflow.Context, number int, result wire.Result, err error) {
	job, line := t.jobs[number], &t.log.Jobs[number]
	line.Spent = result.Cost
	line.Took = workflow.Now(ctx).UnixMilli() - line.Started
	if t.r.version >= versionAhead {
		line.Ran = result.Took.Milliseconds()
	}
	line.End, line.Objective, line.Why = t.verdict(result, err)
	if line.Taken == "" {
		t.r.purse.settle(taskOf(t.q.Stage.Name, t.part.First+number), line.Spent, units(job, line.From),
			line.ran(), line.End == jobTold || line.End == jobDiverged)
	}
	t.bytes += len(result.Output)
	if line.End == jobUnpaid {
		why := t.unpaid(taskOf(t.q.Stage.Name, t.part.First+number))
		if why == EndedMoney {
			line.Why = fmt.Sprintf("the %s that the tuning may cost was used up", t.q.Money)
		}
		t.end(ctx, why)
		return
	}
	if line.End == jobCancelled {
		return
	}
	line.Report = t.reports + 1
	t.count(*line)
	if err := t.search.Report(job.Trial, line.reported()); err != nil {
		panic(fmt.Sprintf("report job %d of the tuning: %v", number, err)) // it has run
	}
	if line.Ahead = aheadOf(t.q, *line, result.Prospect); line.Ahead != nil {
		if err := t.search.Expect(job.Trial, line.Ahead.of(t.q.Options.Maximise)); err != nil {
			panic(fmt.Sprintf("expect of job %d of the tuning: %v", number, err)) // it was reported
		}
	}
	if line.End != jobTold || job.Rung == t.search.Rungs()-1 {
		delete(t.log.Checkpoints, job.Trial)
	} else if had := t.log.Checkpoints[job.Trial].Ref; result.Checkpoint.Digest != had.Digest {
		t.log.Checkpoints[job.Trial] = trialCheckpoint{Ref: result.Checkpoint, At: job.To}
	}
	if line.End != jobTold {
		t.log.Candidates = dismiss(t.log.Candidates, job.Trial)
		return
	}
	objective := line.Objective
	if t.q.Options.Maximise {
		objective = -objective
	}
	t.log.Candidates = nominate(t.log.Candidates, candidate{
		Job: number, Trial: job.Trial, Rung: job.Rung, Objective: objective, Output: result.Output,
	})
}

// unpaid is whose money a job had too little of: that of the tuning where it has refused the job more, or where the run
// has no budget.
func (t *tuner) unpaid(task string) string {
	if t.r.purse.refused[task] || t.q.Money > 0 && !t.r.account.Limited() {
		return EndedMoney
	}
	return EndedBudget
}

// verdict says how a job ended, what it told, and why it told nothing.
func (t *tuner) verdict(result wire.Result, err error) (end jobEnd, objective float64, why string) {
	failed, isFailure := errors.AsType[*temporal.ApplicationError](err)
	switch {
	case err == nil:
		objective, err = objectiveOf(t.q.Objective, t.q.Command, result)
		switch {
		case err != nil:
			return jobFailed, 0, short(err.Error(), maxWhy)
		case math.IsNaN(objective) || math.IsInf(objective, 0):
			return jobDiverged, 0, fmt.Sprintf("its %s is no finite number", t.q.Objective)
		}
		return jobTold, objective, ""
	case temporal.IsCanceledError(err):
		return jobCancelled, 0, "it was stopped: " + cmp.Or(stoppedBy[t.ended], "the tuning was cancelled")
	case isFailure && failed.Type() == wire.BudgetError:
		return jobUnpaid, 0, short(failed.Message(), maxWhy)
	case isFailure && diverged(failed.Message()):
		return jobDiverged, 0, "its output holds a NaN or an infinity"
	}
	return jobFailed, 0, short(rootMessage(err), maxWhy)
}

// stoppedBy is why jobs under way are stopped, by why the tuning ended.
var stoppedBy = map[string]string{
	EndedTime: "the tuning's time was up", EndedFailed: "the first trials failed, and the tuning with them",
}

// fruitless is why a tuning failed none of whose trials told an objective.
func (t *tuner) fruitless() error {
	begun := t.search.Begun()
	switch {
	case t.failed > 0 && t.told == 0:
		return fmt.Errorf("none of %d trials told %q, and %d failed; the first: %s", begun, t.q.Objective, t.failed,
			t.failure)
	case t.told > 0:
		return fmt.Errorf("none of %d trials told a finite %q: %d diverged and %d failed", begun, t.q.Objective, t.told,
			t.failed)
	case t.ended == EndedTime:
		return fmt.Errorf("no trial told %q within the %s that the tuning may take: give it more time, or its trials less "+
			"to do", t.q.Objective, t.q.Time)
	case t.ended == EndedMoney:
		return fmt.Errorf("no trial could be paid from the %s that the tuning may cost: give it more money, or its trials "+
			"less to do", t.q.Money)
	}
	for _, line := range t.log.Jobs {
		if line.End == jobUnpaid {
			return errors.New(line.Why)
		}
	}
	return fmt.Errorf("no trial told %q", t.q.Objective)
}
