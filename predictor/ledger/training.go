package ledger

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

const (
	// maxRunTrainings bounds the split trainings that are kept of a run; beyond it the latest attempts are not kept.
	maxRunTrainings = 64
	// maxTrainings bounds them over all runs: each takes some kilobytes.
	maxTrainings = 2048
)

// TrainingView is how a split training goes, or went, beside what its plan said.
type TrainingView struct {
	// Stage, Task and Attempt say which attempt trains; attempts of a task count from 1.
	Stage   string `json:"stage"`
	Task    string `json:"task"`
	Attempt int    `json:"attempt"`
	// Host is where it runs.
	Host string `json:"host,omitempty"`
	// Outcome is how the attempt ended; empty while it goes on.
	Outcome predictor.Outcome `json:"outcome,omitempty"`
	// At is when this was heard.
	At time.Time `json:"at"`
	// Training is what the attempt told last.
	Training predictor.Training `json:"training"`
}

// Trainings returns the split trainings of a run, in the order in which they were first heard of.
func (l *Ledger) Trainings(run string) (trainings []TrainingView, known bool) {
	a := l.runs[run]
	if a == nil || a.dropped {
		return nil, false
	}
	trainings = make([]TrainingView, len(a.detail.trainings))
	for i, kept := range a.detail.trainings {
		trainings[i] = *kept
		if kept.Outcome == "" && a.ended() { // nothing more was heard of it
			trainings[i].Outcome = predictor.Lost
			if a.state == predictor.RunCancelled {
				trainings[i].Outcome = predictor.Cancelled
			}
		}
	}
	return trainings, true
}

// train keeps what an attempt tells of its training. A sample that comes after the Record tells nothing, and a worker
// who has found the work of all done has nothing to tell.
func (l *Ledger) train(a *account, told TrainingView) {
	if told.Training.Workers > 1 && told.Training.StepSeconds <= 0 {
		return
	}
	for _, kept := range a.detail.trainings {
		if kept.Stage != told.Stage || kept.Task != told.Task || kept.Outcome != "" && kept.Attempt != told.Attempt {
			continue
		}
		switch {
		case kept.Attempt == told.Attempt && kept.Outcome == "":
			if told.Training.Reason == "" && len(told.Training.Alternatives) == 0 { // those of an earlier sample
				told.Training.Reason, told.Training.Alternatives = kept.Training.Reason, kept.Training.Alternatives
			}
			*kept = told
			return
		case kept.Attempt == told.Attempt:
			return
		case kept.Attempt < told.Attempt: // its host died without a Record
			kept.Outcome = predictor.Lost
		}
	}
	if len(a.detail.trainings) >= maxRunTrainings || l.kept.trainings >= l.bounds.trainings && !l.dropTrainings() {
		return
	}
	a.detail.trainings = append(a.detail.trainings, &told)
	l.kept.trainings++
}

// dropTrainings drops the trainings of the oldest ended run that has some.
func (l *Ledger) dropTrainings() bool {
	for _, a := range l.order {
		if count := len(a.detail.trainings); a.ended() && count > 0 {
			l.kept.trainings -= count
			a.detail.trainings = nil
			return true
		}
	}
	return false
}
