package memory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// saved is the JSON form of a State: sorted, so that equal states are equal bytes.
type saved struct {
	Version  int                     `json:"v"`
	Term     uint64                  `json:"term"`
	Tick     uint64                  `json:"tick"`
	Now      fact.Instant            `json:"now"`
	Clock    fact.Instant            `json:"clock,omitempty"`
	Stages   []*Stage                `json:"stages,omitempty"`
	Models   []*Model                `json:"models,omitempty"`
	Runs     []*Run                  `json:"runs,omitempty"`
	Pasts    []*Past                 `json:"pasts,omitempty"`
	Attempts []Attempt               `json:"attempts,omitempty"`
	Grants   map[uint64]Holding      `json:"grants,omitempty"`
	Given    map[uint64]Given        `json:"given,omitempty"`
	Steps    map[uint64]Progress     `json:"steps,omitempty"`
	Leased   map[string]fact.Instant `json:"leased,omitempty"`
	Losses   map[string]losses       `json:"losses,omitempty"`
	Cores    usage.Series            `json:"cores,omitzero"`
	RunWidth float64                 `json:"run_width,omitempty"`
	// CostWidth came with version 9.
	CostWidth float64 `json:"cost_width,omitempty"`
	Full      Full    `json:"full,omitzero"`
	Recent    []byte  `json:"recent,omitempty"`
	// Arrivals came with version 10.
	Arrivals *savedArrivals `json:"arrivals,omitempty"`
	// Trails are how tasks that run train.
	Trails []*Trail `json:"trails,omitempty"`
	// Begins says that runs tell whether they have begun, which those of earlier builds do not.
	Begins bool `json:"begins,omitempty"`
	// Spent is what teams have spent of late, by team.
	Spent map[string]Days `json:"spent,omitempty"`
}

// SavedVersion is the version that MarshalJSON writes, and oldestVersion the oldest that UnmarshalJSON reads: what was
// learned is in no stream any more, so no upgrade may forget it. Version 2 has other names for what a size waits for
// before it shrinks, which begins anew; version 3 does not know how often attempts are lost; up to version 4
// attempts that ran out of memory were counted twice; version 5 knows run times without what was known of their
// attempts; version 6 does not know the inputs of tasks that wait, version 7 the sizes that attempts had, nor of
// earlier runs more than how long they and their stages took, and of how many tasks, version 8 the inputs of tasks
// that are done, nor whether forecasts of costs held, and version 9 what arrives when.
const (
	SavedVersion  = 10
	oldestVersion = 2
	// countedOnce is the version from which an attempt that ran out of memory is counted once.
	countedOnce = 5
	// triedSizes is the version from which it is remembered what attempts took at the sizes that they had.
	triedSizes = 8
	// loaded is the version from which it is remembered how many attempts of a run and stage run.
	loaded = 8
)

// MarshalJSON encodes what is remembered for a checkpoint; equal memories are equal bytes.
func (m *State) MarshalJSON() ([]byte, error) {
	return json.Marshal(saved{
		Version: SavedVersion, Begins: true, Spent: m.spent,
		Term: m.Term, Tick: m.Tick, Now: m.now, Clock: m.Clock, Grants: m.Grants, Leased: m.leased,
		Losses: m.losses, Cores: m.Cores, RunWidth: m.RunWidth, CostWidth: m.CostWidth, Given: m.Given,
		Full: m.Full, Steps: m.steps, Arrivals: m.arrivals.save(),
		Stages: slices.SortedFunc(maps.Values(m.Stages), func(a, b *Stage) int { return fact.CompareStages(a.ID, b.ID) }),
		Models: slices.SortedFunc(maps.Values(m.models), func(a, b *Model) int { return strings.Compare(a.Name, b.Name) }),
		Runs:   slices.SortedFunc(maps.Values(m.Runs), func(a, b *Run) int { return strings.Compare(a.ID, b.ID) }),
		Pasts: slices.SortedFunc(maps.Values(m.Pasts), func(a, b *Past) int {
			return strings.Compare(a.Pipeline, b.Pipeline)
		}),
		Attempts: slices.SortedFunc(maps.Values(m.Attempts), func(a, b Attempt) int {
			return cmp.Compare(a.Key, b.Key)
		}),
		Trails: slices.SortedFunc(maps.Values(m.trails), func(a, b *Trail) int {
			return cmp.Or(strings.Compare(a.Run, b.Run), strings.Compare(a.Task, b.Task))
		}),
		Recent: m.recent.encode(),
	})
}

// UnmarshalJSON decodes what MarshalJSON wrote. On an error m is left as it was: start from an empty one and fold the
// whole stream.
func (m *State) UnmarshalJSON(data []byte) error {
	var from saved
	if err := json.Unmarshal(data, &from); err != nil {
		return fmt.Errorf("decode state: %w", err)
	}
	if from.Version < oldestVersion || from.Version > SavedVersion {
		return fmt.Errorf("decode state: version %d, this build reads %d to %d; fold the events from the start instead",
			from.Version, oldestVersion, SavedVersion)
	}
	read := New()
	read.Term, read.Tick, read.now, read.Clock = from.Term, from.Tick, from.Now, from.Clock
	maps.Copy(read.Grants, from.Grants)
	maps.Copy(read.Given, from.Given)
	maps.Copy(read.steps, from.Steps)
	maps.Copy(read.leased, from.Leased)
	maps.Copy(read.losses, from.Losses)
	maps.Copy(read.spent, from.Spent)
	if err := read.recent.decode(from.Recent); err != nil {
		return fmt.Errorf("decode state: %w", err)
	}
	if from.Version < triedSizes {
		if err := trySizes(from.Models, data); err != nil {
			return fmt.Errorf("decode state: %w", err)
		}
	}
	for _, v := range from.Models {
		if v != nil {
			if from.Version < countedOnce {
				v.OutOfMemory /= 2
			}
			read.models[v.Name] = v
		}
	}
	for _, v := range from.Runs {
		if v != nil {
			read.Runs[v.ID] = v
		}
	}
	for _, v := range from.Pasts {
		if v != nil {
			read.Pasts[v.Pipeline] = v
		}
	}
	for _, v := range from.Attempts {
		v.Heard = min(v.Heard, read.Clock) // earlier builds wrote a time
		read.Attempts[v.Key] = v
	}
	for _, v := range from.Stages {
		if v != nil {
			read.adopt(v)
		}
	}
	if from.Version < loaded {
		read.load()
	}
	read.trailing(from.Trails)
	read.arrivals = from.Arrivals.read()
	read.Cores, read.RunWidth, read.CostWidth = from.Cores, from.RunWidth, from.CostWidth
	read.Full = from.Full.sane()
	if !from.Begins {
		read.begin()
	}
	*m = *read
	return nil
}

// trySizes teaches models what versions before triedSizes say of sizes.
func trySizes(models []*Model, data []byte) error {
	var earlier struct {
		Models []*struct {
			Starved   quantity.Milli `json:"starved"`    // largest limit of CPU that held attempts back
			StarvedAt int            `json:"starved_at"` // Successes then
		} `json:"models"`
	}
	if err := json.Unmarshal(data, &earlier); err != nil {
		return fmt.Errorf("read what held attempts back: %w", err)
	}
	for i, known := range models {
		if known != nil {
			known.tryRates(earlier.Models[i].Starved, earlier.Models[i].StarvedAt)
		}
	}
	return nil
}

// load counts the attempts that run of runs that earlier builds kept.
func (m *State) load() {
	for _, running := range m.Attempts {
		m.ran(running, 1)
	}
}

// begin notes of runs that earlier builds kept that they have begun: else the wait of the next attempt, whenever that
// is, would count as that of the first.
func (m *State) begin() {
	for _, running := range m.Attempts {
		if r := m.Runs[running.Run]; r != nil {
			r.Begun = true
		}
	}
	for _, st := range m.Stages {
		for _, part := range st.Shares {
			part.Run.Begun = part.Run.Begun || part.Done > 0
		}
	}
}

// adopt joins a decoded stage to its model and its runs.
func (m *State) adopt(st *Stage) {
	st.Model = m.model(st.ID.Model(), st.Active)
	if st.Shares == nil {
		st.Shares = map[string]*Share{}
	}
	if st.Placed == nil {
		st.Placed = map[string]int{}
	}
	for id, part := range st.Shares {
		if part == nil || m.Runs[id] == nil {
			delete(st.Shares, id)
			continue
		}
		part.Run = m.Runs[id]
	}
	if st.Live != nil {
		m.followed++
	}
	m.Stages[st.ID] = st
}
