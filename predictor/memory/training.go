package memory

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/size"
)

// maxPlannedParts bounds the parts of all trainings of a plan, each about 300 bytes of JSON: a plan must fit into one
// message of a mebibyte.
const maxPlannedParts = 1024

// PastTrainings are those of the stages that a plan sizes, by stage, as many as a plan has room for.
func (m *State) PastTrainings(sized []size.Sizing) (rows []plan.PastTraining) {
	room := maxPlannedParts
	for _, sizing := range sized {
		st := m.Stages[sizing.Stage]
		if st == nil {
			continue
		}
		var newest []fact.Training
		for _, training := range st.Model.Trainings {
			if room -= len(training.Parts); room < 0 {
				break
			}
			newest = append(newest, training)
		}
		if len(newest) > 0 {
			rows = append(rows, plan.PastTraining{Stage: sizing.Stage, Newest: newest})
		}
	}
	return rows
}

// enoughUntrained is how many attempts at the pool in a row succeed without a training until the stage is taken to
// train no more: one may have found that its training was finished before. Functions tell of none, whatever they did.
const enoughUntrained = 3

// trained keeps what a finished attempt measured of its plan, whatever its outcome: its steps were as long as they
// were. The newest comes first. What says nothing of the plan, and what nobody corrects by, is left out.
func (m *Model) trained(e fact.Record) {
	told := e.Training
	switch {
	case told != nil:
		m.Untrained = 0
	case e.Venue == fact.Pool && e.Outcome == fact.Succeeded && (len(m.Trainings) > 0 || m.Planned != nil):
		m.Untrained = min(m.Untrained+1, enoughUntrained)
	}
	if told == nil || told.StepSeconds <= 0 || len(told.Parts) == 0 || told.Validate() != nil {
		return
	}
	m.Planned = nil
	m.Trainings = slices.Insert(m.Trainings, 0, shortened(*told))
	m.Trainings = m.Trainings[:min(len(m.Trainings), fact.PastTrainings)]
}

// plans keeps what a running attempt tells of its training as long as none of the stage has been measured.
func (m *Model) plans(told *fact.Training) {
	if told != nil {
		m.Untrained = 0
	}
	if told == nil || len(m.Trainings) > 0 || len(told.Parts) == 0 || told.Validate() != nil {
		return
	}
	kept := shortened(*told)
	m.Planned = &kept
}

// shortened is a copy without what nobody reads again.
func shortened(told fact.Training) fact.Training {
	told.Alternatives, told.Reason = nil, ""
	told.Parts = slices.Clone(told.Parts)
	return told
}

// Training is the newest training that the stage has told of: measured, or else planned; false where it trains nothing,
// or has not for a few attempts, as in a new build.
func (m *Model) Training() (training fact.Training, trains bool) {
	switch {
	case m.Untrained >= enoughUntrained:
	case len(m.Trainings) > 0:
		return m.Trainings[0], true
	case m.Planned != nil:
		return *m.Planned, true
	}
	return fact.Training{}, false
}
