package predictor

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// PastTrainings is how many trainings of a stage are kept, and at most told to its next attempts: enough for a median
	// that one odd attempt does not move.
	PastTrainings = 8
	// maxTrainingParts and maxTrainingAlternatives bound a Training, maxTrainingText each of its texts in bytes: it
	// travels in samples, Records and plans.
	maxTrainingParts        = 64
	maxTrainingAlternatives = 64
	maxTrainingText         = 1 << 10
	// maxPlannedParts bounds the parts of all trainings of a plan, each about 300 bytes of JSON: a plan must fit into one
	// message of a mebibyte.
	maxPlannedParts = 1024
)

// PastTraining is how earlier split trainings of a stage went: what came of their plans corrects the next one.
type PastTraining struct {
	Stage StageID `json:"stage"`
	// Newest are up to PastTrainings of them, the newest first, each with a measured time of a step and without its
	// alternatives and reason.
	Newest []Training `json:"newest"`
}

// Validate says what is wrong with a Training that somebody outside has told: a number that is negative or not finite,
// or more than anybody reads.
func (t Training) Validate() error {
	switch {
	case t.Batch < 0 || t.MicroBatches < 0:
		return fmt.Errorf("a step of %d samples in %d micro-batches: neither can be negative", t.Batch, t.MicroBatches)
	case t.Steps < 0 || t.TotalSteps < 0:
		return fmt.Errorf("%d steps of %d are done: neither can be negative", t.Steps, t.TotalSteps)
	case !duration(t.PredictedStepSeconds) || !duration(t.StepSeconds):
		return fmt.Errorf("a step of %g s, predicted %g s: both must be between 0 and %g", t.StepSeconds,
			t.PredictedStepSeconds, maxStepSeconds)
	case !(t.Bubble >= 0 && t.Bubble <= 1):
		return fmt.Errorf("a bubble of %g: it is a part of time, from 0 to 1", t.Bubble)
	case len(t.Parts) > maxTrainingParts:
		return fmt.Errorf("%d parts: at most %d are understood", len(t.Parts), maxTrainingParts)
	case len(t.Alternatives) > maxTrainingAlternatives:
		return fmt.Errorf("%d alternatives: at most %d are understood; tell the best of them", len(t.Alternatives),
			maxTrainingAlternatives)
	}
	for _, text := range []string{t.Model, t.Executor, t.Schedule, t.Reason} {
		if len(text) > maxTrainingText {
			return fmt.Errorf("a text of %s: at most %s are understood", quantity.Bytes(len(text)),
				quantity.Bytes(maxTrainingText))
		}
	}
	for i, part := range t.Parts {
		if err := part.validate(); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	for i, other := range t.Alternatives {
		if other.Partitions < 0 || other.MicroBatches < 0 || other.PeakBytes < 0 || !duration(other.StepSeconds) ||
			len(other.Reason) > maxTrainingText {
			return fmt.Errorf("alternative %d: a number is negative or not finite, or its reason longer than %s", i,
				quantity.Bytes(maxTrainingText))
		}
	}
	return nil
}

func (p TrainingPart) validate() error {
	switch {
	case p.Threads < 0 || p.Ops < 0:
		return fmt.Errorf("%d operations on %d threads: neither can be negative", p.Ops, p.Threads)
	case p.PredictedPeakBytes < 0 || p.PeakBytes < 0 || p.CapacityBytes < 0:
		return fmt.Errorf("a peak of %d bytes, predicted %d, of %d: none can be negative", p.PeakBytes, p.PredictedPeakBytes,
			p.CapacityBytes)
	case !duration(p.PredictedBusySeconds) || !duration(p.BusySeconds):
		return fmt.Errorf("busy for %g s, predicted %g s: both must be between 0 and %g", p.BusySeconds,
			p.PredictedBusySeconds, maxStepSeconds)
	}
	for _, text := range []string{p.Device, p.Kind, p.First, p.Last} {
		if len(text) > maxTrainingText {
			return fmt.Errorf("a text of %s: at most %s are understood", quantity.Bytes(len(text)),
				quantity.Bytes(maxTrainingText))
		}
	}
	return nil
}

// maxStepSeconds is longer than any step takes.
const maxStepSeconds = float64(maxWall / time.Second)

// duration reports whether a number of seconds can be one.
func duration(seconds float64) bool {
	return seconds >= 0 && seconds <= maxStepSeconds && !math.IsNaN(seconds)
}

// trained keeps what a finished attempt measured of its plan, whatever its outcome: its steps were as long as they
// were. The newest comes first. What says nothing of the plan, and what nobody corrects by, is left out.
func (m *model) trained(told *Training) {
	if told == nil || told.StepSeconds <= 0 || len(told.Parts) == 0 || told.Validate() != nil {
		return
	}
	kept := *told
	kept.Alternatives, kept.Reason = nil, ""
	kept.Parts = slices.Clone(kept.Parts)
	m.Trainings = slices.Insert(m.Trainings, 0, kept)
	m.Trainings = m.Trainings[:min(len(m.Trainings), PastTrainings)]
}

// past adds the trainings of the stages that the plan sizes, by stage, as many as there is room for.
func (d *decider) past() {
	room := maxPlannedParts
	for _, sizing := range d.plan.Sizings {
		st := d.memory.stages[sizing.Stage]
		if st == nil {
			continue
		}
		var newest []Training
		for _, training := range st.model.Trainings {
			if room -= len(training.Parts); room < 0 {
				break
			}
			newest = append(newest, training)
		}
		if len(newest) > 0 {
			d.plan.Trainings = append(d.plan.Trainings, PastTraining{Stage: sizing.Stage, Newest: newest})
		}
	}
}
