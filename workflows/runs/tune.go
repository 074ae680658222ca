package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// turnField is the field of a function's input that holds its Turn.
const turnField = "trial"

// WithDefaults returns the request with what it means in the place of zeros. Rungs end at whole numbers where Most is
// one: they count steps or epochs then.
func (q TuneRequest) WithDefaults() TuneRequest {
	q.Name = cmp.Or(q.Name, q.Stage.Name)
	if told, err := q.told(); err == nil && !told {
		q.Options.Algorithm = cmp.Or(q.Options.Algorithm, search.Random)
		if q.Options.Most == 0 && q.Options.Least == 0 {
			q.Options.Most = 1
		}
	}
	if isWhole(q.Options.Most) && q.Options.Most > 0 && (q.Options.Least == 0 || q.Options.Least >= 1) {
		q.Options.Whole = true
	}
	q.Options = q.Options.WithDefaults()
	return q
}

// told reports whether a trial is told how far to train.
func (q TuneRequest) told() (bool, error) {
	if !q.Command {
		return q.Turns, nil
	}
	var command wire.Command
	if err := json.Unmarshal(q.Input, &command); err != nil {
		return false, fmt.Errorf("decode the command: %w", err)
	}
	return checkTemplate(command, q.Space)
}

// Check reports everything that is wrong with a request.
func (q TuneRequest) Check() error {
	q = q.WithDefaults()
	wrong := []error{CheckName(q.Name), q.Space.Check()}
	told, err := q.told()
	optionsErr := q.Options.Check()
	wrong = append(wrong, err, optionsErr)
	if q.Objective == "" {
		wrong = append(wrong, errors.New("it has no objective: name the loss, or the score, that a trial tells"))
	}
	if q.Time < 0 || q.Money < 0 {
		wrong = append(wrong, fmt.Errorf("its time of %s or its money of %s is negative", q.Time, q.Money))
	}
	if optionsErr == nil {
		rungs := q.Options.Rungs()
		if err == nil && !told && rungs > 1 {
			how := `give its input a field "trial" of type Trial`
			if q.Command {
				how = "use {to} for how far it trains, and {from} where it needs to know"
			}
			wrong = append(wrong, fmt.Errorf("%s has %d rungs, and a trial is not told how far to train: %s, or use "+
				"algorithm random", q.Options.Algorithm, rungs, how))
		}
		if q.Options.Trials > MaxTrials {
			wrong = append(wrong, fmt.Errorf("%d trials: a tuning has at most %d", q.Options.Trials, MaxTrials))
		} else if jobs := q.Options.Trials * rungs; q.Options.GoOn && jobs > MaxJobs {
			wrong = append(wrong, fmt.Errorf("%d trials that all go on to the last of %d rungs are %d jobs: a tuning has at "+
				"most %d", q.Options.Trials, rungs, jobs, MaxJobs))
		}
		if most := mostDrawn(len(q.Space)); q.Options.Algorithm == search.BOHB && q.Options.Trials > most {
			wrong = append(wrong, fmt.Errorf("%d trials by bohb: with %d parameters it has at most %d, for each is drawn by "+
				"all before it: use asha or hyperband", q.Options.Trials, len(q.Space), most))
		}
	}
	if len(q.Input) > MaxInput {
		wrong = append(wrong, fmt.Errorf("its input of %d bytes is borne by each of its trials, and has at most %d: pass "+
			"what is large as an artifact", len(q.Input), MaxInput))
	}
	if !q.Command {
		wrong = append(wrong, q.checkInput())
	}
	return errors.Join(wrong...)
}

// mostDrawn is how many trials BOHB has at most with so many parameters: a search is made again in one go, within what
// a workflow may take without a pause, and what that takes grows with their square. 4e6 take 3 s of a busy core.
func mostDrawn(parameters int) int { return int(math.Sqrt(4e6 / float64(max(parameters, 1)))) }

// checkInput refuses what values cannot be set in.
func (q TuneRequest) checkInput() error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(q.Input, &fields); err != nil || fields == nil {
		return errors.New("its input is no JSON object, in which the values of a trial are set")
	}
	for _, p := range q.Space {
		if strings.EqualFold(p.Name, turnField) {
			return fmt.Errorf("parameter %q: the field is the trial's own: give the parameter another name", p.Name)
		}
		if _, found := fields[p.Name]; found {
			continue
		}
		// encoding/json takes either for the same field, and the last of them counts: the value might never be seen.
		for _, field := range workflow.DeterministicKeys(fields) {
			if strings.EqualFold(field, p.Name) {
				return fmt.Errorf("parameter %q: the field of the input is called %q: write it so", p.Name, field)
			}
		}
	}
	return nil
}

// Sample is an input as trials are given it, with a value for each parameter of the space, also where no configuration
// has them all: for who checks that it decodes.
func (q TuneRequest) Sample() (json.RawMessage, error) {
	configuration := search.Configuration{}
	for _, p := range q.Space {
		value := search.Value{Number: p.Low}
		switch {
		case p.Kind == search.Choice && len(p.Choices) > 0:
			value = search.Value{Text: p.Choices[0]}
		case p.Kind == search.Float: // no whole number where there is another
			value.Number += (p.High - p.Low) / math.Pi
		}
		configuration[p.Name] = value
	}
	return q.input(configuration, Turn{To: q.Options.Most})
}

// input is that of a job.
func (q TuneRequest) input(configuration search.Configuration, turn Turn) (json.RawMessage, error) {
	if q.Command {
		var command wire.Command
		if err := json.Unmarshal(q.Input, &command); err != nil {
			return nil, err
		}
		return json.Marshal(fill(command, configuration, turn))
	}
	var fields map[string]any
	var base map[string]json.RawMessage
	if err := json.Unmarshal(q.Input, &base); err != nil {
		return nil, err
	}
	fields = make(map[string]any, len(base)+len(configuration)+1)
	//workflowcheck:ignore the order changes nothing
	for name, value := range base {
		fields[name] = value
	}
	//workflowcheck:ignore the order changes nothing
	for name, value := range configuration {
		fields[name] = value
	}
	if q.Turns {
		fields[turnField] = turn
	}
	return json.Marshal(fields)
}

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
	Request  TuneRequest   `json:"request"`
	Log      tuningLog     `json:"log"`
}

// tuningResult is what the child workflow returns: its own jobs, and what the log has besides.
type tuningResult struct {
	Log   tuningLog      `json:"log"`
	Ended string         `json:"ended,omitempty"` // empty where another part goes on
	At    time.Time      `json:"at"`
	Spent quantity.Money `json:"spent_picodollars"`
	Price account.Price  `json:"price,omitzero"`
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
		Run: r.id, Pipeline: r.pipeline, App: r.app, Build: r.build, Version: r.version, Trace: r.options.Traceparent,
		First: first, Prices: r.options.Prices, Request: q,
	}
	r.announce(ctx, r.place(q.Stage, "", q.Input), q.Options.Trials)
	for {
		result, err := r.tunePart(ctx, id, part)
		if err != nil {
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
	part.Window, part.Priority, part.Deadline = r.windowOf(stage.Name), r.priorities[stage.Name], r.deadline()
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
		stage: stage.Name, tasks: part.Window, window: func() int { return r.windowOf(stage.Name) },
		priority: part.Priority, over: func() bool { return over },
	}, child)
	err = child.Get(ctx, &result)
	over = true
	cost, told := spending{Spent: result.Spent, Price: result.Price}, true
	if err != nil {
		cost, told = spendingOf(err)
	}
	r.account.Close(part.Account, cost.Spent, cost.Price, told)
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
	reports int
	bytes   int // of inputs and outputs in this part
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
	r.options.Traceparent, r.options.Prices = part.Trace, part.Prices
	left := min(part.Request.Options.Trials*part.Request.Options.Rungs()-len(jobs), partJobs)
	r.account = account.NewPart(part.Request.Stage.Name, max(left, 1), part.Money)
	r.purse = newPurse(part.Request.Money)
	t := &tuner{r: r, q: part.Request, part: part, search: s, jobs: jobs, log: part.Log}
	if t.log.Checkpoints == nil {
		t.log.Checkpoints = map[int]trialCheckpoint{}
	}
	for i, line := range t.log.Jobs {
		r.purse.settle("", line.Spent, units(jobs[i], line.From), time.Duration(line.Took)*time.Millisecond,
			line.End == jobTold || line.End == jobDiverged)
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
	cost := spending{Spent: t.r.account.Spent(), Price: t.r.account.Price()}
	if t.err != nil {
		return tuningResult{}, t.withCost(t.err, cost)
	}
	result := tuningResult{Log: t.log, Ended: t.ended, At: t.endedAt, Spent: cost.Spent, Price: cost.Price}
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
	task := taskOf(t.q.Stage.Name, t.part.First+len(t.log.Jobs))
	for !t.r.purse.hold(task, units(job, from)) {
		if t.running == 0 {
			t.end(ctx, EndedMoney)
			return nil
		}
		if err := workflow.Await(ctx, func() bool {
			_, can := t.r.purse.pays(units(job, from))
			return t.ended != "" || t.running == 0 || can
		}); err != nil {
			return err
		}
		if t.ended != "" {
			return nil
		}
	}
	if why := t.late(ctx, units(job, from)); why != "" {
		delete(t.r.purse.held, task)
		t.end(ctx, why)
		return nil
	}
	return t.begin(ctx, group, cancel, job, task, jobLine{After: after, From: from})
}

// late says why a job is not begun that would end too late; a tuning without a result goes on.
func (t *tuner) late(ctx workflow.Context, units float64) string {
	if len(t.log.Candidates) == 0 {
		return ""
	}
	ends := workflow.Now(ctx).Add(t.r.purse.takes(units))
	switch {
	case t.q.Time > 0 && ends.After(t.startedAt().Add(t.q.Time)):
		return EndedTime
	case !t.part.Deadline.IsZero() && ends.After(t.part.Deadline):
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
	line := len(t.log.Jobs)
	begun.Started = workflow.Now(ctx).UnixMilli()
	t.log.Jobs = append(t.log.Jobs, begun)
	t.jobs = append(t.jobs, job)
	t.running++
	t.bytes += len(input)
	workflow.Go(group, func(ctx workflow.Context) {
		result, err := t.r.runWithin(ctx, c)
		t.settle(ctx, line, result, err)
		t.running--
		if t.told == 0 && t.failed >= min(mostFailed, t.q.Options.Trials) && t.ended == "" {
			t.end(ctx, EndedFailed)
			cancel()
		}
	})
	return nil
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
	line.End, line.Objective, line.Why = t.verdict(result, err)
	t.r.purse.settle(taskOf(t.q.Stage.Name, t.part.First+number), line.Spent, units(job, line.From),
		time.Duration(line.Took)*time.Millisecond, line.End == jobTold || line.End == jobDiverged)
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
