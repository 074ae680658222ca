package ledger

import (
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
	"unique"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// CheckpointVersion is the version of what Checkpoint.Encode writes. It changes with the layout of the saved types and
// whenever the same events are folded to something else. oldestCheckpoint is the oldest version that Restore reads:
// forecasts of version 2 do not say what they rest on, nor how probable it is that they miss the goal,
// attempts before version 4 not which GPUs they had, stages before version 5 not how much there was to do, decisions
// before version 6 not what they rejected, attempts before version 7 not how the metric of their training went,
// trainings before version 8 not how much of one a worker has computed, those before version 9 neither their replicas
// nor how many operations a step takes, those before version 10 not the replicas of other layouts, runs before version
// 11 not whose they are, and attempts that go on before version 12 not what the other hosts of their gangs cost, which
// have had a field more since version 13.
const (
	CheckpointVersion = 13
	oldestCheckpoint  = 2
)

// Checkpoint is all that a Ledger knew when the Checkpoint was made, but for the plan, notices, and what attempts did
// of runs that take in no more: their details can be rebuilt, their sums stay. It does not change any more, so that it
// may be encoded while the ledger takes in more.
//
// A Ledger that is restored and takes in what came after knows what one knows that has taken in everything. Only where
// a bound was reached, such as of attempts that are kept, may it have room left that the other has not.
type Checkpoint struct {
	head savedLedger
	runs []keptRun
}

// savedLedger is a Ledger without its runs. Saved types are what is written; gob leaves out zero values.
type savedLedger struct {
	Version   int
	Latest    int64
	Over      savedRecent
	Decisions []savedDecision
	Prices    []spend.HostPrice
	Settling  []int // places among the runs
	Runs      int
}

// savedDecision is a decision with its inputs, which are not in One.
type savedDecision struct {
	One    predictor.Decision
	Inputs []savedNumber
}

// savedNumber is an entry of a map, and savedSize one of another: gob writes maps in no order.
type (
	savedNumber struct {
		Name  string
		Value float64
	}
	savedSize struct {
		Name string
		Size quantity.Size
	}
)

// savedRecent is a recent; its keys are sorted once they are written.
type savedRecent struct{ Newer, Older []uint64 }

// keptRun is one run: what is cheap to copy, and what is made of that when it is encoded.
type keptRun struct {
	saved    savedRun
	places   map[*stage]int // of the run's stages
	attempts attempts
	looks    []look
	static   comparison // where the run is frozen
}

type savedRun struct {
	ID, Pipeline, App, Build          string
	Failure, Event, RetryOf, Input    string
	Team                              string
	Known, Settled, Frozen, Dropped   bool
	Stopped                           bool
	State                             predictor.RunState
	Goal                              predictor.Goal
	StartedAt, EndedAt, Last, EventAt time.Time
	Revision, Kept, Decisions         int
	Result                            []byte
	Predicted, Latest                 RunPrediction
	Static                            Static // without its sizes
	Sizes                             []savedSize
	Stages                            []savedStage
	Seen                              savedRecent
	Running                           []savedRunning

	// Manners and Grants are those of the attempts and looks, each once.
	Manners   []savedManner
	Grants    []quantity.Size
	Attempts  []savedAttempt
	Looks     []savedLook
	Curves    []timeline.Curve
	Trainings []TrainingView
}

type savedStage struct {
	ID                          predictor.StageID
	Pipeline                    string    // of the owner
	View                        StageView // without its metrics
	Metrics                     []savedNumber
	Pool, Function              int
	Again, Announced            int
	WallSum, Walls, Predictions float64
	Expected                    predictor.Interval
	Hints                       []savedHint
	WallErrors, MemErrors       []float64
	NextWallError, NextMemError int
	Waits                       []savedWaits
	WaitCount                   int
	ShortestWait, LongestWait   float64
	Memory                      []savedHeld
	Features                    []string
}

type (
	savedHint  struct{ At, Tasks int64 }
	savedWaits struct{ Exponent, Count int }
	savedHeld  struct {
		Venue                predictor.Venue
		Peak, AtPeak, Latest quantity.Bytes
	}
	savedRunning struct {
		Key     uint64
		Stage   int
		Members []predictor.HostShare
	}
	savedManner struct {
		Venue   predictor.Venue
		Host    string
		Outcome predictor.Outcome
		Cause   predictor.Cause
		Cold    bool
		GPUs    string
	}
	savedAttempt struct {
		Stage, Manner, Grant                int
		Task, Failure                       string
		Scheduled, Admitted, Started, Ended int64
		Wall, Fetch, Publish, Settle, CPU   time.Duration
		Peak, GPUPeak, PredictedMemory      quantity.Bytes
		PredictedWall                       float64
		WallBand, MemoryBand                [2]float32
		Values                              []float32
		Cost                                quantity.Money
		Number                              int32
		Recorded                            bool
	}
	savedLook struct {
		At           int64
		Memory       quantity.Bytes
		Grant        int
		CPU, Attempt int32
		// GPUBusy is one more than is kept, so that nothing is written where nobody told.
		GPUMemory, GPUBusy int32
	}
)

// Checkpoint returns all that the ledger knows, in little time.
func (l *Ledger) Checkpoint() *Checkpoint {
	c := &Checkpoint{head: savedLedger{
		Version: CheckpointVersion, Latest: l.latest, Over: l.over.save(), Prices: l.prices.Told(), Runs: len(l.order),
	}}
	for _, decision := range l.decisions[max(0, len(l.decisions)-maxDecisions):] {
		saved := savedDecision{decision, numbersOf(decision.Inputs)}
		saved.One.Inputs = nil
		c.head.Decisions = append(c.head.Decisions, saved)
	}
	for i, a := range l.order {
		if slices.Contains(l.settling, a) {
			c.head.Settling = append(c.head.Settling, i)
		}
		c.runs = append(c.runs, a.keep())
	}
	slices.SortFunc(c.head.Settling, func(i, j int) int {
		return cmp.Compare(slices.Index(l.settling, l.order[i]), slices.Index(l.settling, l.order[j]))
	})
	return c
}

// keep copies what changes while more is taken in.
func (a *account) keep() keptRun {
	kept := keptRun{saved: savedRun{
		ID: a.id, Pipeline: a.pipeline, App: a.app, Build: a.build,
		Failure: a.failure, Event: a.event, RetryOf: a.retryOf, Input: a.input, Team: a.team,
		Known: a.known, Settled: a.settled(), Frozen: a.frozen, Dropped: a.dropped || a.settled(),
		Stopped: a.stopped,
		State:   a.state, Goal: a.goal, StartedAt: a.startedAt, EndedAt: a.endedAt, Last: a.last, EventAt: a.eventAt,
		Revision: a.revision, Kept: a.kept, Decisions: a.decisions, Result: a.result,
		Predicted: a.predicted, Latest: a.latest,
	}, places: make(map[*stage]int, len(a.stages))}
	for i, st := range a.stages {
		kept.places[st] = i
		kept.saved.Stages = append(kept.saved.Stages, st.save())
	}
	if a.frozen {
		kept.static = *a.static
	}
	if a.settled() {
		return kept
	}
	kept.saved.Seen = a.seen.save()
	for key, one := range a.running {
		kept.saved.Running = append(kept.saved.Running, savedRunning{key, kept.places[one.stage], one.members})
	}
	kept.attempts, kept.looks = a.detail.attempts.snapshot(), slices.Clone(a.detail.looks)
	for _, c := range a.detail.curves {
		kept.saved.Curves = append(kept.saved.Curves,
			timeline.Curve{Stage: c.stage, Task: c.task, Metric: c.metric, Points: slices.Clone(c.points)})
	}
	for _, training := range a.detail.trainings {
		kept.saved.Trainings = append(kept.saved.Trainings, *training)
	}
	return kept
}

// numbersOf are the entries of a map, sorted by name.
func numbersOf(of map[string]float64) (numbers []savedNumber) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		numbers = append(numbers, savedNumber{name, of[name]})
	}
	return numbers
}

// mapOf is the inverse of numbersOf; nil of none.
func mapOf(numbers []savedNumber) map[string]float64 {
	if len(numbers) == 0 {
		return nil
	}
	of := make(map[string]float64, len(numbers))
	for _, one := range numbers {
		of[one.Name] = one.Value
	}
	return of
}

func (r *recent) save() savedRecent {
	keys := func(set map[uint64]struct{}) []uint64 {
		return slices.AppendSeq(make([]uint64, 0, len(set)), maps.Keys(set))
	}
	return savedRecent{keys(r.newer), keys(r.older)}
}

func (s savedRecent) sort() {
	slices.Sort(s.Newer)
	slices.Sort(s.Older)
}

func (s savedRecent) restore() *recent {
	set := func(keys []uint64) map[uint64]struct{} {
		all := make(map[uint64]struct{}, len(keys))
		for _, key := range keys {
			all[key] = struct{}{}
		}
		return all
	}
	return &recent{newer: set(s.Newer), older: set(s.Older)}
}

func (st *stage) save() savedStage {
	saved := savedStage{
		ID: st.id, Pipeline: st.owner.Pipeline, View: st.view, Pool: st.pool, Function: st.function,
		Again: st.again, Announced: st.announced, WallSum: st.wallSum, Walls: st.walls,
		Predictions: st.predictions, Expected: st.expected,
		WallErrors: slices.Clone(st.wallErrors.values), NextWallError: st.wallErrors.next,
		MemErrors: slices.Clone(st.memErrors.values), NextMemError: st.memErrors.next,
		WaitCount: st.waited.count, ShortestWait: st.waited.shortest, LongestWait: st.waited.longest,
		Features: st.features,
	}
	saved.View.Metrics, saved.Metrics = nil, numbersOf(st.view.Metrics)
	for _, h := range st.hints {
		saved.Hints = append(saved.Hints, savedHint{h.at, int64(h.tasks)})
	}
	for _, b := range st.waited.buckets {
		saved.Waits = append(saved.Waits, savedWaits{b.exponent, b.count})
	}
	for venue, h := range st.memory {
		saved.Memory = append(saved.Memory, savedHeld{venue, h.peak, h.atPeak, h.latest})
	}
	slices.SortFunc(saved.Memory, func(a, b savedHeld) int { return cmp.Compare(a.Venue, b.Venue) })
	return saved
}

func (saved *savedStage) restore(run string) *stage {
	st := &stage{
		id: saved.ID, owner: &spend.Owner{Run: run, Pipeline: saved.Pipeline, Stage: saved.ID.Charged()}, view: saved.View,
		pool: saved.Pool, function: saved.Function, again: saved.Again, announced: saved.Announced,
		wallSum: saved.WallSum, walls: saved.Walls, predictions: saved.Predictions, expected: saved.Expected,
		wallErrors: errorRing{saved.WallErrors, saved.NextWallError},
		memErrors:  errorRing{saved.MemErrors, saved.NextMemError},
		waited:     waits{count: saved.WaitCount, shortest: saved.ShortestWait, longest: saved.LongestWait},
		features:   saved.Features,
	}
	st.view.Metrics = mapOf(saved.Metrics)
	for _, h := range saved.Hints {
		st.hints = append(st.hints, hint{h.At, int(h.Tasks)})
	}
	for _, b := range saved.Waits {
		st.waited.buckets = append(st.waited.buckets, waitBucket{b.Exponent, b.Count})
	}
	for _, h := range saved.Memory {
		if st.memory == nil {
			st.memory = make(map[predictor.Venue]held, len(saved.Memory))
		}
		st.memory[h.Venue] = held{h.Peak, h.AtPeak, h.Latest}
	}
	return st
}

// Encode writes the checkpoint; in one process, checkpoints of ledgers that know the same are the same bytes. An error
// is that of w. It is called once.
func (c *Checkpoint) Encode(w io.Writer) error {
	out := gob.NewEncoder(w)
	c.head.Over.sort()
	if err := out.Encode(c.head); err != nil {
		return fmt.Errorf("write a checkpoint of the ledger: %w", err)
	}
	for i := range c.runs {
		if err := out.Encode(c.runs[i].encoded()); err != nil {
			return fmt.Errorf("write run %q into a checkpoint of the ledger: %w", c.runs[i].saved.ID, err)
		}
	}
	return nil
}

// encoded is what is written of a run.
func (k *keptRun) encoded() *savedRun {
	saved := k.saved
	saved.Seen.sort()
	slices.SortFunc(saved.Running, func(a, b savedRunning) int { return cmp.Compare(a.Key, b.Key) })
	if saved.Frozen {
		saved.Static = k.static.static()
		for _, name := range slices.Sorted(maps.Keys(saved.Static.Sizes)) {
			saved.Sizes = append(saved.Sizes, savedSize{name, saved.Static.Sizes[name]})
		}
		saved.Static.Sizes = nil
	}
	manners, grants := table[manner]{}, table[quantity.Size]{}
	saved.Attempts = make([]savedAttempt, k.attempts.count)
	for i := range saved.Attempts {
		a := k.attempts.at(i)
		saved.Attempts[i] = savedAttempt{
			Stage: k.places[a.stage], Manner: manners.place(a.manner), Grant: grants.place(a.grant),
			Task: a.task, Failure: a.failure,
			Scheduled: a.scheduled, Admitted: a.admitted, Started: a.started, Ended: a.ended,
			Wall: a.wall, Fetch: a.fetch, Publish: a.publish, Settle: a.settle, CPU: a.cpu,
			Peak: a.peak, GPUPeak: a.gpuPeak, PredictedMemory: a.predictedMemory, PredictedWall: a.predictedWall,
			WallBand:   [2]float32{a.wallBand.low, a.wallBand.high},
			MemoryBand: [2]float32{a.memoryBand.low, a.memoryBand.high}, Values: a.values,
			Cost: a.cost, Number: a.number, Recorded: a.recorded,
		}
	}
	saved.Looks = make([]savedLook, len(k.looks))
	for i, l := range k.looks {
		saved.Looks[i] = savedLook{l.at, l.memory, grants.place(l.grant), l.cpu, l.attempt, l.gpu.memory, l.gpu.busy + 1}
	}
	for _, m := range manners.all {
		saved.Manners = append(saved.Manners, savedManner{m.venue, m.host, m.outcome, m.cause, m.cold, m.gpus})
	}
	saved.Grants = grants.all
	return &saved
}

// table gives each value a place, by when it was first asked for.
type table[T comparable] struct {
	places map[unique.Handle[T]]int
	all    []T
}

func (t *table[T]) place(value unique.Handle[T]) int {
	place, known := t.places[value]
	if !known {
		if t.places == nil {
			t.places = map[unique.Handle[T]]int{}
		}
		place = len(t.all)
		t.places[value] = place
		t.all = append(t.all, value.Value())
	}
	return place
}

// errCheckpoint says that what was read is no checkpoint of a ledger.
var errCheckpoint = errors.New("it contradicts itself")

// Restore returns the ledger of a checkpoint. It fails for one of a version that it does not read, and for one that
// makes no sense.
func Restore(r io.Reader) (*Ledger, error) {
	in := gob.NewDecoder(r)
	var head savedLedger
	if err := in.Decode(&head); err != nil {
		return nil, fmt.Errorf("read a checkpoint of the ledger: %w", err)
	}
	if head.Version < oldestCheckpoint || head.Version > CheckpointVersion {
		return nil, fmt.Errorf("read a checkpoint of the ledger: it has version %d, this engine reads %d to %d",
			head.Version, oldestCheckpoint, CheckpointVersion)
	}
	l := New()
	l.latest, l.over, l.prices = head.Latest, head.Over.restore(), spend.PricesOf(head.Prices)
	for _, saved := range head.Decisions {
		saved.One.Inputs = mapOf(saved.Inputs)
		l.decisions = append(l.decisions, saved.One)
	}
	for range head.Runs {
		var saved savedRun
		if err := in.Decode(&saved); err != nil {
			return nil, fmt.Errorf("read a run of a checkpoint of the ledger: %w", err)
		}
		if err := l.adopt(&saved); err != nil {
			return nil, fmt.Errorf("read run %q of a checkpoint of the ledger: %w", saved.ID, err)
		}
	}
	for _, i := range head.Settling {
		if i < 0 || i >= len(l.order) {
			return nil, fmt.Errorf("read a checkpoint of the ledger: %w", errCheckpoint)
		}
		l.settling = append(l.settling, l.order[i])
	}
	return l, nil
}

// adopt takes in a run that was read.
func (l *Ledger) adopt(saved *savedRun) error {
	a := &account{
		id: saved.ID, pipeline: saved.Pipeline, app: saved.App, build: saved.Build,
		failure: saved.Failure, event: saved.Event, retryOf: saved.RetryOf, input: saved.Input, team: saved.Team,
		known: saved.Known, frozen: saved.Frozen, dropped: saved.Dropped, stale: true,
		stopped: saved.Stopped,
		state:   saved.State, goal: saved.Goal, startedAt: saved.StartedAt, endedAt: saved.EndedAt, last: saved.Last,
		eventAt: saved.EventAt, revision: saved.Revision, kept: saved.Kept, decisions: saved.Decisions,
		result: saved.Result, predicted: saved.Predicted, latest: saved.Latest,
	}
	if a.frozen {
		for _, one := range saved.Sizes {
			if saved.Static.Sizes == nil {
				saved.Static.Sizes = make(map[string]quantity.Size, len(saved.Sizes))
			}
			saved.Static.Sizes[one.Name] = one.Size
		}
		a.static = &comparison{result: saved.Static}
	}
	for i := range saved.Stages {
		a.stages = append(a.stages, saved.Stages[i].restore(a.id))
	}
	if !saved.Settled {
		a.seen, a.running = saved.Seen.restore(), make(map[uint64]going, len(saved.Running))
		for _, one := range saved.Running {
			if one.Stage < 0 || one.Stage >= len(a.stages) {
				return errCheckpoint
			}
			a.running[one.Key] = going{a.stages[one.Stage], one.Members}
		}
		if err := a.restoreDetail(saved); err != nil {
			return err
		}
	}
	if l.runs[a.id] != nil {
		return errCheckpoint
	}
	l.runs[a.id] = a
	l.order = append(l.order, a)
	if a.ended() {
		l.ended++
	}
	l.kept.attempts += a.detail.attempts.count
	l.kept.looks += len(a.detail.looks)
	l.kept.points += a.detail.points
	l.kept.trainings += len(a.detail.trainings)
	return nil
}

func (a *account) restoreDetail(saved *savedRun) error {
	manners := make([]unique.Handle[manner], len(saved.Manners))
	for i, m := range saved.Manners {
		manners[i] = unique.Make(manner{m.Venue, m.Host, m.Outcome, m.Cause, m.Cold, m.GPUs})
	}
	grants := make([]unique.Handle[quantity.Size], len(saved.Grants))
	for i, size := range saved.Grants {
		grants[i] = unique.Make(size)
	}
	d := &a.detail
	for i, s := range saved.Attempts {
		if uint(s.Stage) >= uint(len(a.stages)) || uint(s.Manner) >= uint(len(manners)) ||
			uint(s.Grant) >= uint(len(grants)) {
			return errCheckpoint
		}
		*d.attempts.add() = attempt{
			stage: a.stages[s.Stage], manner: manners[s.Manner], grant: grants[s.Grant], task: s.Task, failure: s.Failure,
			scheduled: s.Scheduled, admitted: s.Admitted, started: s.Started, ended: s.Ended,
			wall: s.Wall, fetch: s.Fetch, publish: s.Publish, settle: s.Settle, cpu: s.CPU,
			peak: s.Peak, gpuPeak: s.GPUPeak, predictedMemory: s.PredictedMemory, predictedWall: s.PredictedWall,
			wallBand: band{s.WallBand[0], s.WallBand[1]}, memoryBand: band{s.MemoryBand[0], s.MemoryBand[1]},
			values: s.Values, cost: s.Cost, number: s.Number, recorded: s.Recorded,
		}
		if d.places == nil {
			d.places = make(map[uint64]int32, len(saved.Attempts))
		}
		d.places[attemptKey(s.Task, int(s.Number))] = int32(i)
	}
	for _, s := range saved.Looks {
		if uint(s.Grant) >= uint(len(grants)) || uint(s.Attempt) >= uint(d.attempts.count) {
			return errCheckpoint
		}
		d.looks = append(d.looks, look{
			at: s.At, memory: s.Memory, grant: grants[s.Grant], cpu: s.CPU, attempt: s.Attempt,
			gpu: gpuLook{s.GPUMemory, s.GPUBusy - 1},
		})
	}
	for _, c := range saved.Curves {
		d.curves = append(d.curves, &curve{stage: c.Stage, task: c.Task, metric: c.Metric, points: c.Points})
		d.points += len(c.Points)
	}
	for i := range saved.Trainings {
		d.trainings = append(d.trainings, &saved.Trainings[i])
	}
	return nil
}
