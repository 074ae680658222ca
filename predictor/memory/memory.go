package memory

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// State is everything that is remembered of the past. Maps are looked up by event; every walk over one that can be seen
// outside is sorted.
type State struct {
	Term, Tick uint64       // of the last plan
	now        fact.Instant // of the last tick
	Clock      fact.Instant // what passed from tick to tick, by their own times but for jumps
	Stages     map[fact.StageID]*Stage
	models     map[string]*Model
	Runs       map[string]*Run
	Pasts      map[string]*Past // by app/pipeline
	Attempts   map[uint64]Attempt
	Grants     map[uint64]Holding      // by attempt
	Given      map[uint64]Given        // by attempt, of those whose start tells
	steps      map[uint64]Progress     // by attempt, of those that report steps
	trails     map[uint64]*Trail       // by task, of those that run and report a metric
	turns      uint64                  // of trails that have begun to wait for a fit
	curved     int                     // points of all curves of models, or more
	leased     map[string]fact.Instant // by host: the clock when it last had a lease
	losses     map[string]losses       // by device class
	spent      map[string]Days         // by team
	// Cores is how many cores stages had whose tasks waited, one value for each run and stage; RunWidth by what factor
	// forecasts of runs are wider than they come to (see usage.Widened), 0 before the first has been judged, and
	// CostWidth the same of what they cost.
	Cores               usage.Series
	RunWidth, CostWidth float64
	Full                Full         // what functions showed of their venue
	passed              fact.Instant // the time that Pass told last; 0 before it is told, also after a checkpoint
	recent              recent
	followed            int // stages that have a live
	arrivals            arrivals
}

// Bounds of what is remembered. Beyond them the least recently active entry is forgotten, so that no input makes a
// State grow for ever.
const (
	maxRuns     = 4096
	maxStages   = 8192
	maxModels   = 8192
	maxAttempts = 1 << 16
	maxPasts    = 1024
	maxTasks    = 10_000_000 // of one hint or observation
	maxProgram  = 128        // bytes of the name of one
	maxImports  = 32         // modules of one
	maxCalls    = 64         // stages of a run that are known beforehand
	// maxAlike is how many stages at most tell what others may take: with more, those that nobody has run for long would
	// count as much as those of today, and a tick would take longer.
	maxAlike = 256
)

// Stage is what is known of one stage of one build.
type Stage struct {
	ID       fact.StageID      `json:"id"`
	Declared quantity.Size     `json:"declared"`
	Input    quantity.Bytes    `json:"input,omitempty"` // the largest that a hint named
	Queues   [2]Backlog        `json:"queues"`          // ordinary, pool-only
	Shares   map[string]*Share `json:"shares,omitempty"`
	// Hosts is on how many hosts at once a task of it runs at most; 0 and 1 are one.
	Hosts   int          `json:"hosts,omitempty"`
	Active  fact.Instant `json:"active"`            // last time anything happened
	Backlog fact.Instant `json:"backlog,omitempty"` // last tick with an ordinary task waiting

	// Live follows attempts that run; nil while none needs it.
	Live *Live `json:"live,omitempty"`

	// What the last plan said.
	Sizing    size.Sizing    `json:"sizing"`
	Slot      quantity.Size  `json:"slot"`
	Slots     int            `json:"slots,omitempty"`     // at the pool
	Placed    map[string]int `json:"placed,omitempty"`    // slots by host
	Functions int            `json:"functions,omitempty"` // slots at functions
	// Eased is the clock since when fewer slots than Slots were needed, and Most how many at most meanwhile; both are 0
	// while that is not so. Settling tells the same of the size.
	Eased    fact.Instant `json:"eased,omitempty"`
	Most     int          `json:"most,omitempty"`
	Settling Settling     `json:"settling,omitzero"`
	// Spared is since when fewer function slots have been enough for deadlines.
	Spared calm.Eased `json:"spared,omitzero"`
	// CPUAt is the clock when the share of cores of a slot changed last; 0 before.
	CPUAt fact.Instant `json:"cpu_at,omitempty"`
	// Withheld says that pool slots are kept back because functions end a task before the pool has room for it; Released
	// is the clock when that ended last.
	Withheld bool           `json:"withheld,omitempty"`
	Released fact.Instant   `json:"released,omitempty"`
	Class    quantity.Bytes `json:"class,omitempty"` // memory class of its functions
	Batch    plan.Batch     `json:"batch,omitzero"`  // of their invokes
	// Batches says that the functions of the stage's build take several tasks with one invoke.
	Batches bool `json:"batches,omitempty"`
	// Unfit is why functions do not run its tasks.
	Unfit Unfit `json:"unfit,omitzero"`
	// Turn is the clock when it last began to hold a slot of a team that has fewer slots than stages, see share.Turn.
	Turn fact.Instant `json:"turn,omitempty"`
	// Looked is the clock when a slot last began to look for tasks that its queue counts and no run is known to have.
	Looked fact.Instant `json:"looked,omitempty"`

	Model *Model `json:"-"` // that of its name, under every build
}

// Settling says since when less than what a stage holds has been enough. The zero value says that it is not.
type Settling struct {
	// Since is by the clock.
	Since fact.Instant `json:"since,omitempty"`
	// Enough are limits that would have been enough since, Slot the largest slot that they would have come to.
	Enough size.Limits   `json:"enough"`
	Slot   quantity.Size `json:"slot"`
}

// probeFor is how long after the last word of a run's tasks its stage is polled although its queue is said to be empty.
const probeFor = fact.Instant(10 * time.Minute)

// Unfinished reports whether a run has scheduled tasks that are not done. A server that was killed may count a queue as
// empty until somebody polls it: nobody would poll it then, and the count would stay right for ever.
func (st *Stage) Unfinished(now fact.Instant) bool {
	for _, part := range st.Shares {
		if part.Owed() > 0 && now-part.Last <= probeFor {
			return true
		}
	}
	return false
}

// Owes reports whether a run has scheduled tasks that are not done, however long ago.
func (st *Stage) Owes() bool {
	for _, part := range st.Shares {
		if part.Owed() > 0 {
			return true
		}
	}
	return false
}

// Backlog is the estimate of one queue: hints minus starts, corrected by what the queue itself said.
type Backlog struct {
	Tasks int `json:"tasks,omitempty"`
	// Input is the mean of what hints named as the input of its tasks, in bytes; 0 while none is known.
	Input  float64  `json:"input,omitempty"`
	Hints  recently `json:"hints"`
	Starts recently `json:"starts"`
}

// Share is the part of a stage's work that belongs to one run.
type Share struct {
	Queued    [2]int         `json:"queued"`            // tasks, as [Stage.Queues] has them
	Further   int            `json:"further,omitempty"` // tasks that the run is known to schedule later
	Scheduled int            `json:"scheduled,omitempty"`
	Done      int            `json:"done,omitempty"`   // of those, as their Records say
	Ceased    int            `json:"ceased,omitempty"` // of those, that failed or were cancelled for good
	Reused    int            `json:"reused,omitempty"` // results of earlier runs that were taken instead
	Cost      quantity.Money `json:"cost,omitempty"`   // of the attempts that have ended
	First     fact.Instant   `json:"first"`            // when the run called the stage
	Last      fact.Instant   `json:"last"`             // when its last attempt ended
	Load      Load           `json:"load,omitzero"`
	Running   int            `json:"running,omitempty"` // attempts
	Window    int            `json:"window,omitempty"`  // what the run was told last, as is Priority; 0 for the default
	Priority  int            `json:"priority,omitempty"`
	Steered   bool           `json:"steered,omitempty"`  // the run was told a window that is not the default
	Tuning    bool           `json:"tuning,omitempty"`   // what the run told of last are tasks of a tuning
	Declined  bool           `json:"declined,omitempty"` // that nothing spills was already told

	Run *Run `json:"-"`
}

// Works reports whether the run has or will have tasks at the stage that are not done: one that is past it wants
// nothing of it any more.
func (s *Share) Works() bool {
	return s.Running > 0 || s.Queued != [2]int{} || s.Further > 0 || s.Owed() > 0
}

// Owed is how many tasks were scheduled of which more is to come: those that are done and those that failed for good
// are over.
func (s *Share) Owed() int { return max(0, s.Scheduled-s.Done-s.Ceased) }

// Run is what is known of one run that goes on.
type Run struct {
	ID       string         `json:"id"`
	App      string         `json:"app,omitempty"`
	Pipeline string         `json:"pipeline,omitempty"`
	Goal     fact.Goal      `json:"goal"`
	Started  fact.Instant   `json:"started,omitempty"`
	Begun    bool           `json:"begun,omitempty"`  // its first attempt has
	Waited   fact.Instant   `json:"waited,omitempty"` // for how long that had waited in the queue
	Known    bool           `json:"known,omitempty"`  // its start was seen
	Spent    quantity.Money `json:"spent,omitempty"`
	Input    quantity.Bytes `json:"input,omitempty"` // with the artifacts that it names; 0 when it is not known
	// Features are those of the input, see [fact.RunStarted]; few of them.
	Features map[string]float64 `json:"features,omitempty"`
	Told     Told               `json:"told,omitzero"`
	Active   fact.Instant       `json:"active"`           // last time anything happened
	Stages   []fact.StageID     `json:"stages,omitempty"` // in order of first scheduling
	// Calls are the stages that it calls and no others, by name; nil where that is not known.
	Calls []string `json:"calls,omitempty"`
	// Division is how its goal is divided over its stages.
	Division Division `json:"division,omitzero"`
}

// Whole reports whether it is known to have called all stages that it calls.
func (r *Run) Whole() bool {
	for _, name := range r.Calls {
		if !slices.ContainsFunc(r.Stages, func(id fact.StageID) bool { return id.Name == name }) {
			return false
		}
	}
	return len(r.Calls) > 0
}

// LastStage is the name of the stage that it called last; empty before the first.
func (r *Run) LastStage() string {
	if len(r.Stages) == 0 {
		return ""
	}
	return r.Stages[len(r.Stages)-1].Name
}

// Told is what was once expected of a run, by which forecasts are judged at its end.
type Told struct {
	At     fact.Instant  `json:"at"`
	Finish fact.Interval `json:"finish_seconds"` // from At
	Cost   fact.Interval `json:"cost_usd,omitzero"`
}

// Key is the key under which finished runs are kept.
func (r *Run) Key() string { return r.App + "/" + r.Pipeline }

// New remembers nothing.
func New() *State {
	return &State{
		Stages: map[fact.StageID]*Stage{}, models: map[string]*Model{}, Runs: map[string]*Run{}, Pasts: map[string]*Past{},
		Attempts: map[uint64]Attempt{}, Grants: map[uint64]Holding{}, Given: map[uint64]Given{},
		steps: map[uint64]Progress{}, trails: map[uint64]*Trail{}, leased: map[string]fact.Instant{},
		losses: map[string]losses{}, spent: map[string]Days{},
	}
}

// stage returns what is known of id, made if there is nothing; nil when id names nothing.
func (m *State) stage(id fact.StageID, now fact.Instant) *Stage {
	if st := m.Stages[id]; st != nil {
		return st
	}
	if id.App == "" || id.Name == "" {
		return nil
	}
	if len(m.Stages) >= maxStages {
		m.forgetStage()
	}
	st := &Stage{
		ID: id, Shares: map[string]*Share{}, Placed: map[string]int{}, Active: now,
		Model: m.model(id.Model(), now),
	}
	m.Stages[id] = st
	return st
}

func (m *State) model(name string, now fact.Instant) *Model {
	if known := m.models[name]; known != nil {
		return known
	}
	if len(m.models) >= maxModels {
		oldest := leastRecent(m.models, func(v *Model) fact.Instant { return v.Active })
		for _, st := range m.Stages {
			if st.Model == m.models[oldest] {
				m.unfollow(st)
				delete(m.Stages, st.ID)
			}
		}
		delete(m.models, oldest)
	}
	fresh := &Model{Name: name, Active: now}
	m.models[name] = fresh
	return fresh
}

// Lighten forgets how tasks train, which only pages show; where nothing of that is left a quarter of the forecasts of
// arrivals, and then a quarter of the models, those that were active longest ago, with their stages, and returns how
// many: none that a run works on. It is for a checkpoint that would be too large.
func (m *State) Lighten() (forgotten int) {
	if forgotten := m.lightenTrainings(); forgotten > 0 {
		return forgotten
	}
	if forgotten := m.arrivals.lighten(); forgotten > 0 {
		return forgotten
	}
	busy := make(map[*Model]bool)
	stages := make(map[*Model][]*Stage)
	for _, st := range m.Stages {
		stages[st.Model] = append(stages[st.Model], st)
		for _, part := range st.Shares {
			busy[st.Model] = busy[st.Model] || part.Works()
		}
	}
	idle := slices.SortedFunc(maps.Values(m.models), func(a, b *Model) int {
		return cmp.Or(cmp.Compare(a.Active, b.Active), strings.Compare(a.Name, b.Name))
	})
	idle = slices.DeleteFunc(idle, func(known *Model) bool { return busy[known] })
	idle = idle[:min(len(idle), (len(m.models)+3)/4)]
	for _, known := range idle {
		for _, st := range stages[known] {
			m.unfollow(st)
			delete(m.Stages, st.ID)
		}
		delete(m.models, known.Name)
	}
	return len(idle)
}

// run returns what is known of a run that goes on, made if there is nothing; nil when id is empty or the run has ended.
func (m *State) run(id string, now fact.Instant) *Run {
	if known := m.Runs[id]; known != nil {
		known.Active = max(known.Active, now)
		return known
	}
	if id == "" || m.recent.has(endKey(id)) {
		return nil
	}
	if len(m.Runs) >= maxRuns {
		m.drop(m.Runs[leastRecent(m.Runs, func(v *Run) fact.Instant { return v.Active })])
	}
	fresh := &Run{ID: id, Active: now}
	m.Runs[id] = fresh
	return fresh
}

// share returns the part of st that belongs to the run, made if there is none; nil for runs that are over or have no
// name.
func (m *State) share(st *Stage, id string, now fact.Instant) *Share {
	if known := st.Shares[id]; known != nil {
		known.Run.Active = max(known.Run.Active, now)
		return known
	}
	owner := m.run(id, now)
	if owner == nil {
		return nil
	}
	fresh := &Share{First: now, Last: now, Run: owner}
	st.Shares[id] = fresh
	if !slices.Contains(owner.Stages, st.ID) {
		owner.Stages = append(owner.Stages, st.ID)
	}
	return fresh
}

// drop forgets a run, and what its stages still had queued for it.
func (m *State) drop(r *Run) {
	for _, id := range r.Stages {
		st := m.Stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		for q, queued := range st.Shares[r.ID].Queued {
			st.Queues[q].Tasks = max(0, st.Queues[q].Tasks-queued)
		}
		delete(st.Shares, r.ID)
	}
	maps.DeleteFunc(m.trails, func(_ uint64, t *Trail) bool { return t.Run == r.ID })
	delete(m.Runs, r.ID)
}

// forgetStage makes room by dropping the stage that has been silent the longest.
func (m *State) forgetStage() {
	var oldest *Stage
	for _, st := range m.Stages {
		if oldest == nil || cmp.Or(cmp.Compare(st.Active, oldest.Active), fact.CompareStages(st.ID, oldest.ID)) < 0 {
			oldest = st
		}
	}
	m.unfollow(oldest)
	delete(m.Stages, oldest.ID)
}

// leastRecent returns the key whose value was active the longest ago, the smaller key among equals.
func leastRecent[V any](entries map[string]V, active func(V) fact.Instant) string {
	return slices.MinFunc(slices.Collect(maps.Keys(entries)), func(a, b string) int {
		return cmp.Or(cmp.Compare(active(entries[a]), active(entries[b])), strings.Compare(a, b))
	})
}

// Models are what is known of stages under every build, by name.
func (m *State) Models() []*Model {
	return slices.SortedFunc(maps.Values(m.models), func(a, b *Model) int { return strings.Compare(a.Name, b.Name) })
}

// StageOf is the stage of a model under the build in which something happened last; nil where no build of it is known.
func (m *State) StageOf(model *Model) (latest *Stage) {
	for _, st := range m.Stages {
		if st.Model != model {
			continue
		}
		if latest == nil || cmp.Or(cmp.Compare(st.Active, latest.Active), fact.CompareStages(st.ID, latest.ID)) > 0 {
			latest = st
		}
	}
	return latest
}
