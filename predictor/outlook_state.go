package predictor

import "maps"

// Obey makes a state that only folds know what plan is in force, as if it had decided it: whoever answers questions
// besides the leader calls it with every plan. It takes s over, as Fold does. An older plan than the last is ignored;
// stages that the plan names and s has not heard of yet are remembered.
func Obey(s State, plan Plan) State {
	m := s.own()
	if plan.Term < m.term || plan.Term == m.term && plan.Tick < m.tick {
		return State{m}
	}
	m.term, m.tick, m.now = plan.Term, plan.Tick, at(plan.At)
	return Resume(State{m}, plan)
}

// Resume makes a state know what the plan in force gives to stages and runs, as if it had decided it. A leader calls it
// when its term begins: its state may be from before what the last leader decided, or may have been folded from events
// alone; what it does not know it would tell as new, or take back for want of the reason to keep it. Windows of runs
// and stages that the state does not know, and rows that make no sense, are ignored. It takes s over, as Fold does.
func Resume(s State, plan Plan) State {
	m := s.own()
	now := at(plan.At)
	for _, st := range m.stages {
		st.Slots, st.Functions = 0, 0
		if st.Queues[0].Tasks > 0 {
			st.Backlog = max(st.Backlog, now)
		}
		clear(st.Placed)
	}
	for _, sizing := range plan.Sizings {
		if st := m.stage(sizing.Stage, now); st != nil {
			st.Sizing = sizing
		}
	}
	for _, grant := range plan.Grants {
		st := m.stage(grant.Stage, now)
		switch {
		case st == nil:
		case grant.Venue == Pool:
			st.Slots, st.Slot = min(max(0, grant.Slots), maxSlots), saneSize(grant.Size)
		case grant.Venue == Function:
			st.Functions, st.Class = min(max(0, grant.Slots), maxSlots), min(max(0, grant.Size.Memory), maxPeakMemory)
		}
	}
	for _, placement := range plan.Placements {
		if st := m.stages[placement.Stage]; st != nil {
			st.Placed[placement.Host] = placement.Slots
		}
	}
	for _, row := range plan.Windows {
		st := m.stages[row.Stage]
		sane := row.Tasks >= 1 && row.Priority >= priorityFirst && row.Priority <= priorityLast
		if st == nil || st.Shares[row.Run] == nil || !sane {
			continue
		}
		part := st.Shares[row.Run]
		part.Window, part.Priority, part.Steered = row.Tasks, row.Priority, true
	}
	return State{m}
}

// copied returns a memory on which decisions leave no trace in m: what Decide changes is its own, what only Fold
// changes is shared.
func (m *memory) copied() *memory {
	twin := *m
	twin.models = make(map[string]*model, len(m.models))
	for name, known := range m.models {
		own := *known
		twin.models[name] = &own
	}
	twin.runs = make(map[string]*run, len(m.runs))
	for id, r := range m.runs {
		own := *r
		twin.runs[id] = &own
	}
	twin.stages = make(map[StageID]*stage, len(m.stages))
	for id, st := range m.stages {
		twin.stages[id] = st.copied(&twin)
	}
	twin.attempts, twin.grants, twin.leased = maps.Clone(m.attempts), maps.Clone(m.grants), maps.Clone(m.leased)
	return &twin
}

// copied returns a copy of st that belongs to m.
func (st *stage) copied(m *memory) *stage {
	twin := *st
	twin.model = m.models[st.model.Name]
	twin.Placed = maps.Clone(st.Placed)
	twin.Shares = make(map[string]*share, len(st.Shares))
	for id, part := range st.Shares {
		own := *part
		own.run = m.runs[part.run.ID]
		twin.Shares[id] = &own
	}
	if st.Live != nil {
		own := *st.Live
		twin.Live = &own
	}
	return &twin
}
