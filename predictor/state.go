package predictor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// State is everything that Fold remembers of the past. The zero value remembers nothing and is ready to use.
//
// A State is a handle: Fold and Decide take it over, as append takes over a slice, and only the State they return may
// be used afterwards. It must not be used concurrently. To keep two, encode one as JSON and decode it again.
type State struct{ memory *memory }

// memory is what a State holds. Maps are looked up by event; every walk over one that can be seen outside is sorted.
type memory struct {
	term, tick uint64
	now        instant // of the last tick
	clock      instant // what passed from tick to tick, by their own times but for jumps
	stages     map[StageID]*stage
	models     map[string]*model
	runs       map[string]*run
	pasts      map[string]*past // by app/pipeline
	attempts   map[uint64]attempt
	grants     map[uint64]quantity.Size // by attempt: what it held when it began, or at its last sample
	leased     map[string]instant       // by host: the clock when it last had a lease
	losses     map[string]losses        // by device class
	recent     recent
	followed   int // stages that have a live
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
)

// stage is what is known of one stage of one build.
type stage struct {
	ID       StageID           `json:"id"`
	Declared quantity.Size     `json:"declared"`
	Input    quantity.Bytes    `json:"input,omitempty"` // the largest that a hint named
	Queues   [2]backlog        `json:"queues"`          // ordinary, pool-only
	Shares   map[string]*share `json:"shares,omitempty"`
	Active   instant           `json:"active"`            // last time anything happened
	Backlog  instant           `json:"backlog,omitempty"` // last tick with an ordinary task waiting

	// Live follows attempts that run; nil while none needs it.
	Live *live `json:"live,omitempty"`

	// What the last plan said.
	Sizing    Sizing         `json:"sizing"`
	Slot      quantity.Size  `json:"slot"`
	Slots     int            `json:"slots,omitempty"`
	Placed    map[string]int `json:"placed,omitempty"`
	Functions int            `json:"functions,omitempty"`
	// Eased is the clock since when fewer slots than Slots were needed, and Most how many at most meanwhile; both are 0
	// while that is not so. Settling tells the same of the size.
	Eased    instant  `json:"eased,omitempty"`
	Most     int      `json:"most,omitempty"`
	Settling settling `json:"settling,omitzero"`
	// Withheld says that pool slots are kept back because functions end a task before the pool has room for it; Released
	// is the clock when that ended last.
	Withheld bool           `json:"withheld,omitempty"`
	Released instant        `json:"released,omitempty"`
	Class    quantity.Bytes `json:"class,omitempty"`

	model *model
}

// backlog is the estimate of one queue: hints minus starts, corrected by what the queue itself said.
type backlog struct {
	Tasks  int      `json:"tasks,omitempty"`
	Hints  recently `json:"hints"`
	Starts recently `json:"starts"`
}

// share is the part of a stage's work that belongs to one run.
type share struct {
	Queued    [2]int         `json:"queued"`
	Further   int            `json:"further,omitempty"` // tasks that the run is known to schedule later
	Scheduled int            `json:"scheduled,omitempty"`
	Done      int            `json:"done,omitempty"`   // of those, as their Records say
	Reused    int            `json:"reused,omitempty"` // results of earlier runs that were taken instead
	Cost      quantity.Money `json:"cost,omitempty"`
	First     instant        `json:"first"`
	Last      instant        `json:"last"`
	Window    int            `json:"window,omitempty"`
	Priority  int            `json:"priority,omitempty"`
	Steered   bool           `json:"steered,omitempty"`  // the run was told a window that is not the default
	Declined  bool           `json:"declined,omitempty"` // that nothing spills was already told

	run *run
}

// run is what is known of one run that goes on.
type run struct {
	ID       string         `json:"id"`
	App      string         `json:"app,omitempty"`
	Pipeline string         `json:"pipeline,omitempty"`
	Goal     Goal           `json:"goal"`
	Started  instant        `json:"started,omitempty"`
	Begun    bool           `json:"begun,omitempty"`  // its first attempt has
	Waited   instant        `json:"waited,omitempty"` // for how long that had waited in the queue
	Known    bool           `json:"known,omitempty"`  // its start was seen
	Spent    quantity.Money `json:"spent,omitempty"`
	Active   instant        `json:"active"`
	Stages   []StageID      `json:"stages,omitempty"` // in order of first scheduling
}

// pipeline is the key under which finished runs are kept.
func (r *run) pipeline() string { return r.App + "/" + r.Pipeline }

// instant is a time in nanoseconds since 1970; 0 is unknown. It survives JSON unchanged, whatever clock and zone it
// came from.
type instant int64

// at returns the instant of t; 0 for times that no clock of ours shows (before 1970, after 2200).
func at(t time.Time) instant {
	if year := t.UTC().Year(); year < 1970 || year > 2200 {
		return 0
	}
	return instant(t.UnixNano())
}

// since returns how many seconds passed from earlier to i, never below zero.
func (i instant) since(earlier instant) float64 {
	return max(0, time.Duration(i-earlier).Seconds())
}

// own returns the memory to be changed in place, made if there is none.
func (s State) own() *memory {
	if s.memory != nil {
		return s.memory
	}
	return &memory{
		stages: map[StageID]*stage{}, models: map[string]*model{}, runs: map[string]*run{}, pasts: map[string]*past{},
		attempts: map[uint64]attempt{}, grants: map[uint64]quantity.Size{}, leased: map[string]instant{},
		losses: map[string]losses{},
	}
}

// stage returns what is known of id, made if there is nothing; nil when id names nothing.
func (m *memory) stage(id StageID, now instant) *stage {
	if st := m.stages[id]; st != nil {
		return st
	}
	if id.App == "" || id.Name == "" {
		return nil
	}
	if len(m.stages) >= maxStages {
		m.forgetStage()
	}
	st := &stage{
		ID: id, Shares: map[string]*share{}, Placed: map[string]int{}, Active: now,
		model: m.model(id.Model(), now),
	}
	m.stages[id] = st
	return st
}

func (m *memory) model(name string, now instant) *model {
	if known := m.models[name]; known != nil {
		return known
	}
	if len(m.models) >= maxModels {
		oldest := leastRecent(m.models, func(v *model) instant { return v.Active })
		for _, st := range m.stages {
			if st.model == m.models[oldest] {
				m.unfollow(st)
				delete(m.stages, st.ID)
			}
		}
		delete(m.models, oldest)
	}
	fresh := &model{Name: name, Active: now}
	m.models[name] = fresh
	return fresh
}

// run returns what is known of a run that goes on, made if there is nothing; nil when id is empty or the run has ended.
func (m *memory) run(id string, now instant) *run {
	if known := m.runs[id]; known != nil {
		known.Active = max(known.Active, now)
		return known
	}
	if id == "" || m.recent.has(endKey(id)) {
		return nil
	}
	if len(m.runs) >= maxRuns {
		m.drop(m.runs[leastRecent(m.runs, func(v *run) instant { return v.Active })])
	}
	fresh := &run{ID: id, Active: now}
	m.runs[id] = fresh
	return fresh
}

// share returns the part of st that belongs to the run, made if there is none; nil for runs that are over or have no
// name.
func (m *memory) share(st *stage, id string, now instant) *share {
	if known := st.Shares[id]; known != nil {
		known.run.Active = max(known.run.Active, now)
		return known
	}
	owner := m.run(id, now)
	if owner == nil {
		return nil
	}
	fresh := &share{First: now, Last: now, run: owner}
	st.Shares[id] = fresh
	if !slices.Contains(owner.Stages, st.ID) {
		owner.Stages = append(owner.Stages, st.ID)
	}
	return fresh
}

// drop forgets a run, and what its stages still had queued for it.
func (m *memory) drop(r *run) {
	for _, id := range r.Stages {
		st := m.stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		for q, queued := range st.Shares[r.ID].Queued {
			st.Queues[q].Tasks = max(0, st.Queues[q].Tasks-queued)
		}
		delete(st.Shares, r.ID)
	}
	delete(m.runs, r.ID)
}

// forgetStage makes room by dropping the stage that has been silent the longest.
func (m *memory) forgetStage() {
	var oldest *stage
	for _, st := range m.stages {
		if oldest == nil || cmp.Or(cmp.Compare(st.Active, oldest.Active), compareStages(st.ID, oldest.ID)) < 0 {
			oldest = st
		}
	}
	m.unfollow(oldest)
	delete(m.stages, oldest.ID)
}

// leastRecent returns the key whose value was active the longest ago, the smaller key among equals.
func leastRecent[V any](entries map[string]V, active func(V) instant) string {
	return slices.MinFunc(slices.Collect(maps.Keys(entries)), func(a, b string) int {
		return cmp.Or(cmp.Compare(active(entries[a]), active(entries[b])), strings.Compare(a, b))
	})
}

func compareStages(a, b StageID) int {
	return cmp.Or(strings.Compare(a.App, b.App), strings.Compare(a.Name, b.Name), strings.Compare(a.Build, b.Build))
}

// saved is the JSON form of a State: sorted, so that equal states are equal bytes.
type saved struct {
	Version  int                      `json:"v"`
	Term     uint64                   `json:"term"`
	Tick     uint64                   `json:"tick"`
	Now      instant                  `json:"now"`
	Clock    instant                  `json:"clock,omitempty"`
	Stages   []*stage                 `json:"stages,omitempty"`
	Models   []*model                 `json:"models,omitempty"`
	Runs     []*run                   `json:"runs,omitempty"`
	Pasts    []*past                  `json:"pasts,omitempty"`
	Attempts []attempt                `json:"attempts,omitempty"`
	Grants   map[uint64]quantity.Size `json:"grants,omitempty"`
	Leased   map[string]instant       `json:"leased,omitempty"`
	Losses   map[string]losses        `json:"losses,omitempty"`
	Recent   []byte                   `json:"recent,omitempty"`
	// Begins says that runs tell whether they have begun, which those of earlier builds do not.
	Begins bool `json:"begins,omitempty"`
}

// savedVersion is the version that MarshalJSON writes, and oldestVersion the oldest that UnmarshalJSON reads: what was
// learned is in no stream any more, so no upgrade may forget it. Version 2 has other names for what a size waits for
// before it shrinks, which begins anew; version 3 does not know how often attempts are lost.
const (
	savedVersion  = 4
	oldestVersion = 2
)

// MarshalJSON encodes the state for a checkpoint; equal states are equal bytes.
func (s State) MarshalJSON() ([]byte, error) {
	m := s.own()
	return json.Marshal(saved{
		Version: savedVersion, Begins: true,
		Term: m.term, Tick: m.tick, Now: m.now, Clock: m.clock, Grants: m.grants, Leased: m.leased,
		Losses: m.losses,
		Stages: slices.SortedFunc(maps.Values(m.stages), func(a, b *stage) int { return compareStages(a.ID, b.ID) }),
		Models: slices.SortedFunc(maps.Values(m.models), func(a, b *model) int { return strings.Compare(a.Name, b.Name) }),
		Runs:   slices.SortedFunc(maps.Values(m.runs), func(a, b *run) int { return strings.Compare(a.ID, b.ID) }),
		Pasts: slices.SortedFunc(maps.Values(m.pasts), func(a, b *past) int {
			return strings.Compare(a.Pipeline, b.Pipeline)
		}),
		Attempts: slices.SortedFunc(maps.Values(m.attempts), func(a, b attempt) int {
			return cmp.Compare(a.Key, b.Key)
		}),
		Recent: m.recent.encode(),
	})
}

// UnmarshalJSON decodes what MarshalJSON wrote. On an error s is left as it was: start from the zero State and fold the
// whole stream.
func (s *State) UnmarshalJSON(data []byte) error {
	var from saved
	if err := json.Unmarshal(data, &from); err != nil {
		return fmt.Errorf("decode state: %w", err)
	}
	if from.Version < oldestVersion || from.Version > savedVersion {
		return fmt.Errorf("decode state: version %d, this build reads %d to %d; fold the events from the start instead",
			from.Version, oldestVersion, savedVersion)
	}
	m := State{}.own()
	m.term, m.tick, m.now, m.clock = from.Term, from.Tick, from.Now, from.Clock
	maps.Copy(m.grants, from.Grants)
	maps.Copy(m.leased, from.Leased)
	maps.Copy(m.losses, from.Losses)
	if err := m.recent.decode(from.Recent); err != nil {
		return fmt.Errorf("decode state: %w", err)
	}
	for _, v := range from.Models {
		if v != nil {
			m.models[v.Name] = v
		}
	}
	for _, v := range from.Runs {
		if v != nil {
			m.runs[v.ID] = v
		}
	}
	for _, v := range from.Pasts {
		if v != nil {
			m.pasts[v.Pipeline] = v
		}
	}
	for _, v := range from.Attempts {
		v.Heard = min(v.Heard, m.clock) // earlier builds wrote a time
		m.attempts[v.Key] = v
	}
	for _, v := range from.Stages {
		if v != nil {
			m.adopt(v)
		}
	}
	if !from.Begins {
		m.resume()
	}
	s.memory = m
	return nil
}

// resume notes of runs that earlier builds kept that they have begun: else the wait of the next attempt, whenever that
// is, would count as that of the first.
func (m *memory) resume() {
	for _, running := range m.attempts {
		if r := m.runs[running.Run]; r != nil {
			r.Begun = true
		}
	}
	for _, st := range m.stages {
		for _, part := range st.Shares {
			part.run.Begun = part.run.Begun || part.Done > 0
		}
	}
}

// adopt joins a decoded stage to its model and its runs.
func (m *memory) adopt(st *stage) {
	st.model = m.model(st.ID.Model(), st.Active)
	if st.Shares == nil {
		st.Shares = map[string]*share{}
	}
	if st.Placed == nil {
		st.Placed = map[string]int{}
	}
	for id, part := range st.Shares {
		if part == nil || m.runs[id] == nil {
			delete(st.Shares, id)
			continue
		}
		part.run = m.runs[id]
	}
	if st.Live != nil {
		m.followed++
	}
	m.stages[st.ID] = st
}
