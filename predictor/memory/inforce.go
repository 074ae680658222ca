package memory

import (
	"maps"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
)

// Obey makes a memory know what plan is in force, as if it had been decided on it; an older plan than the last is
// ignored. Stages that the plan names and that it has not heard of yet are remembered.
func (m *State) Obey(inForce plan.Plan) {
	if inForce.Term < m.Term || inForce.Term == m.Term && inForce.Tick < m.Tick {
		return
	}
	m.Term, m.Tick, m.now = inForce.Term, inForce.Tick, fact.At(inForce.At)
	m.Resume(inForce)
}

// Resume makes a memory know what the plan in force gives to stages and runs. Windows of runs and stages that it does
// not know, and rows that make no sense, are ignored.
func (m *State) Resume(inForce plan.Plan) {
	now := fact.At(inForce.At)
	for _, st := range m.Stages {
		st.Slots, st.Functions, st.Batch = 0, 0, plan.Batch{}
		if st.Queues[0].Tasks > 0 {
			st.Backlog = max(st.Backlog, now)
		}
		clear(st.Placed)
	}
	for _, sizing := range inForce.Sizings {
		if st := m.stage(sizing.Stage, now); st != nil {
			st.Sizing = sizing
		}
	}
	for _, grant := range inForce.Grants {
		st := m.stage(grant.Stage, now)
		switch {
		case st == nil:
		case grant.Venue == fact.Pool:
			st.Slots, st.Slot = min(max(0, grant.Slots), plan.MaxSlots), fact.SaneSize(grant.Size)
		case grant.Venue == fact.Function:
			st.Functions, st.Class = min(max(0, grant.Slots), plan.MaxSlots), min(max(0, grant.Size.Memory), fact.MaxPeakMemory)
			st.Batch = plan.SaneBatch(grant.Batch)
		}
	}
	for _, placement := range inForce.Placements {
		if st := m.Stages[placement.Stage]; st != nil {
			st.Placed[placement.Host] = placement.Slots
		}
	}
	for _, row := range inForce.Windows {
		st := m.Stages[row.Stage]
		sane := row.Tasks >= 1 && row.Priority >= plan.PriorityFirst && row.Priority <= plan.PriorityLast
		if st == nil || st.Shares[row.Run] == nil || !sane {
			continue
		}
		part := st.Shares[row.Run]
		part.Window, part.Priority, part.Steered = row.Tasks, row.Priority, true
	}
}

// Copied returns a memory on which decisions leave no trace in m: what Decide changes is its own, what only Fold
// changes is shared. For what arrives, time stands still in it: a forecast that it went on to make would be m's.
func (m *State) Copied() *State {
	twin := *m
	twin.models = make(map[string]*Model, len(m.models))
	for name, known := range m.models {
		own := *known
		twin.models[name] = &own
	}
	twin.Runs = make(map[string]*Run, len(m.Runs))
	for id, r := range m.Runs {
		own := *r
		twin.Runs[id] = &own
	}
	twin.Stages = make(map[fact.StageID]*Stage, len(m.Stages))
	for id, st := range m.Stages {
		twin.Stages[id] = st.copied(&twin)
	}
	twin.Attempts, twin.Grants, twin.leased = maps.Clone(m.Attempts), maps.Clone(m.Grants), maps.Clone(m.leased)
	twin.Given, twin.steps, twin.trails = maps.Clone(m.Given), maps.Clone(m.steps), maps.Clone(m.trails)
	twin.arrivals.still = true
	return &twin
}

// copied returns a copy of st that belongs to m.
func (st *Stage) copied(m *State) *Stage {
	twin := *st
	twin.Model = m.models[st.Model.Name]
	twin.Placed = maps.Clone(st.Placed)
	twin.Shares = make(map[string]*Share, len(st.Shares))
	for id, part := range st.Shares {
		own := *part
		own.Run = m.Runs[part.Run.ID]
		twin.Shares[id] = &own
	}
	if st.Live != nil {
		own := *st.Live
		twin.Live = &own
	}
	return &twin
}
