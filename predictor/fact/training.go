package fact

import (
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// PastTrainings is how many trainings of a stage are kept, and at most told to its next attempts: enough for a median
// that one odd attempt does not move.
const PastTrainings = 8

// maxTrainingParts and maxTrainingAlternatives bound a Training, maxTrainingText each of its texts in bytes: it travels
// in samples, Records and plans.
const (
	maxTrainingParts        = 64
	maxTrainingWorkers      = 1000
	maxTrainingAlternatives = 64
	maxTrainingText         = 1 << 10
)

// Training is what the plan of a split training said beside what came. What is not measured yet is 0.
type Training struct {
	// Model is a digest of the names, shapes and types of its parameters; Executor is what ran it: "torch", "gomlx".
	Model string `json:"model"`
	// ModelBytes is what its parameters take, which workers exchange that each have the whole model; 0 where nobody told.
	ModelBytes quantity.Bytes `json:"model_bytes,omitempty"`
	Executor   string         `json:"executor"`
	// Schedule is "gpipe" or "1f1b".
	Schedule string `json:"schedule"`
	// Batch is the number of samples of a step, MicroBatches into how many parts it is cut.
	Batch        int `json:"batch"`
	MicroBatches int `json:"micro_batches"`
	// Replicas is how many copies of the parts train together in one attempt, each on its share of the batch, which is cut
	// into MicroBatches; 0 and 1 are one. Sharding is what they divide among themselves; empty is nothing.
	Replicas int    `json:"replicas,omitempty"`
	Sharding string `json:"sharding,omitempty"`
	// Steps counts those that are done, TotalSteps those that are wanted.
	Steps      int64 `json:"steps"`
	TotalSteps int64 `json:"total_steps"`
	// PredictedStepSeconds and StepSeconds are the time of a step; the second is a median.
	PredictedStepSeconds float64 `json:"predicted_step_seconds"`
	StepSeconds          float64 `json:"step_seconds,omitempty"`
	// FLOPs is how many floating-point operations a step takes for its products, both passes, without what is computed
	// again; 0 where that is not known.
	FLOPs float64 `json:"flops,omitempty"`
	// Bubble is the measured part of the parts' time in which they wait, from 0 to 1.
	Bubble float64 `json:"bubble,omitempty"`
	// Workers is how many tasks train the model together, each of which has all of it and computes a part of each step; 0
	// and 1 are one. ExchangeSeconds is how long of a step they exchange it, a mean.
	Workers         int     `json:"workers,omitempty"`
	ExchangeSeconds float64 `json:"exchange_seconds,omitempty"`
	// Computed is how much of all parts of the steps since its task began the attempt has computed, from 0 to 1: one over
	// Workers where each does its own, and all where one does the work of the others. With a step's time known and at 0
	// nobody told.
	Computed float64 `json:"computed,omitempty"`
	// Hosts are those on which its ranks run, in the order of the gang; empty where they all run on the attempt's.
	Hosts []TrainingHost `json:"hosts,omitempty"`
	// Parts are in the order in which a sample passes them.
	Parts []TrainingPart `json:"parts"`
	// Alternatives are the plans that were not chosen.
	Alternatives []TrainingAlternative `json:"alternatives,omitempty"`
	// Reason says why this plan.
	Reason string `json:"reason,omitempty"`
}

// TrainingHost is a host on which ranks of a training run.
type TrainingHost struct {
	Name string `json:"name"`
	// Ranks is how many: one for each part of each replica.
	Ranks int `json:"ranks"`
}

// TrainingPart is one part of a split.
type TrainingPart struct {
	// Device is its ID, Kind "cpu" or "cuda".
	Device string `json:"device"`
	Kind   string `json:"kind"`
	// Class is the name of a GPU's model.
	Class string `json:"class,omitempty"`
	// Threads is how many CPU threads it uses.
	Threads int `json:"threads,omitempty"`
	// Ops counts its operations; First and Last name them.
	Ops   int    `json:"ops"`
	First string `json:"first,omitempty"`
	Last  string `json:"last,omitempty"`
	// PeakFLOPS is how many floating-point operations its device does in a second when it does nothing but products of
	// matrices; 0 where nobody measured it.
	PeakFLOPS float64 `json:"peak_flops,omitempty"`
	// Recompute says that activations are computed again before the backward pass.
	Recompute bool `json:"recompute,omitempty"`
	// PredictedPeakBytes and PeakBytes are the most that it holds; CapacityBytes is what it may hold, 0 where nothing
	// bounds it.
	PredictedPeakBytes quantity.Bytes `json:"predicted_peak_bytes"`
	PeakBytes          quantity.Bytes `json:"peak_bytes,omitempty"`
	CapacityBytes      quantity.Bytes `json:"capacity_bytes,omitempty"`
	// PredictedBusySeconds and BusySeconds are how long it works in a step.
	PredictedBusySeconds float64 `json:"predicted_busy_seconds"`
	BusySeconds          float64 `json:"busy_seconds,omitempty"`
}

// TrainingAlternative is a plan that was considered.
type TrainingAlternative struct {
	// Replicas is how many copies of the parts it has; 0 and 1 are one.
	Replicas     int     `json:"replicas,omitempty"`
	Partitions   int     `json:"partitions"`
	MicroBatches int     `json:"micro_batches"`
	StepSeconds  float64 `json:"step_seconds"`
	// PeakBytes is the most that its fullest part holds.
	PeakBytes quantity.Bytes `json:"peak_bytes"`
	// Reason says why it was not chosen.
	Reason string `json:"reason,omitempty"`
}

// leastOwn is how much of its own part of a training an attempt has to have computed for its run time to tell how long
// the part takes: below, most of that time was its start.
const leastOwn = 0.1

// OwnPart is how long a worker's own part takes of the steps that its task does, by an attempt that ran for so long,
// and of how many workers it has computed the part: others may not have been there. It is none where others have
// computed nearly all of its own, which says nothing of how long it takes.
func (t *Training) OwnPart(ran time.Duration) (own time.Duration, workers int) {
	switch {
	case t == nil || t.Workers <= 1:
		return ran, 1
	case t.StepSeconds <= 0: // it has done no step
		return 0, 0
	case !(t.Computed > 0): // an earlier build told
		return ran, 1
	}
	parts := t.Computed * float64(t.Workers)
	if parts < leastOwn {
		return 0, 0
	}
	return time.Duration(float64(ran) / parts), max(1, int(math.Round(parts)))
}

// Validate says what is wrong with a Training that somebody outside has told: a number that is negative or not finite,
// or more than anybody reads.
func (t Training) Validate() error {
	switch {
	case t.ModelBytes < 0:
		return fmt.Errorf("a model of %d bytes: it cannot be negative", t.ModelBytes)
	case t.Batch < 0 || t.MicroBatches < 0:
		return fmt.Errorf("a step of %d samples in %d micro-batches: neither can be negative", t.Batch, t.MicroBatches)
	case t.Steps < 0 || t.TotalSteps < 0:
		return fmt.Errorf("%d steps of %d are done: neither can be negative", t.Steps, t.TotalSteps)
	case !duration(t.PredictedStepSeconds) || !duration(t.StepSeconds):
		return fmt.Errorf("a step of %g s, predicted %g s: both must be between 0 and %g", t.StepSeconds,
			t.PredictedStepSeconds, maxStepSeconds)
	case !(t.FLOPs >= 0) || math.IsInf(t.FLOPs, 0):
		return fmt.Errorf("a step of %g operations: give a number from 0", t.FLOPs)
	case t.Replicas < 0 || t.Replicas > maxTrainingWorkers:
		return fmt.Errorf("%d replicas: give 0 to %d", t.Replicas, maxTrainingWorkers)
	case t.Workers < 0 || t.Workers > maxTrainingWorkers:
		return fmt.Errorf("%d workers: give 0 to %d", t.Workers, maxTrainingWorkers)
	case !duration(t.ExchangeSeconds):
		return fmt.Errorf("an exchange of %g s: it must be between 0 and %g", t.ExchangeSeconds, maxStepSeconds)
	case !(t.Computed >= 0 && t.Computed <= 1):
		return fmt.Errorf("%g of a training is computed: it is a part of it, from 0 to 1", t.Computed)
	case !(t.Bubble >= 0 && t.Bubble <= 1):
		return fmt.Errorf("a bubble of %g: it is a part of time, from 0 to 1", t.Bubble)
	case len(t.Parts) > maxTrainingParts:
		return fmt.Errorf("%d parts: at most %d are understood", len(t.Parts), maxTrainingParts)
	case len(t.Hosts) > maxTrainingParts:
		return fmt.Errorf("%d hosts: at most %d are understood", len(t.Hosts), maxTrainingParts)
	case len(t.Alternatives) > maxTrainingAlternatives:
		return fmt.Errorf("%d alternatives: at most %d are understood; tell the best of them", len(t.Alternatives),
			maxTrainingAlternatives)
	}
	for _, text := range []string{t.Model, t.Executor, t.Schedule, t.Sharding, t.Reason} {
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
	for i, host := range t.Hosts {
		if host.Ranks < 0 || host.Ranks > maxTrainingWorkers || len(host.Name) > maxTrainingText {
			return fmt.Errorf("host %d has %d ranks, or a name longer than %s: give 0 to %d", i, host.Ranks,
				quantity.Bytes(maxTrainingText), maxTrainingWorkers)
		}
	}
	for i, other := range t.Alternatives {
		if other.Replicas < 0 || other.Partitions < 0 || other.MicroBatches < 0 || other.PeakBytes < 0 ||
			!duration(other.StepSeconds) || len(other.Reason) > maxTrainingText {
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
	case !(p.PeakFLOPS >= 0) || math.IsInf(p.PeakFLOPS, 0):
		return fmt.Errorf("%g operations a second at most: give a number from 0", p.PeakFLOPS)
	case !duration(p.PredictedBusySeconds) || !duration(p.BusySeconds):
		return fmt.Errorf("busy for %g s, predicted %g s: both must be between 0 and %g", p.BusySeconds,
			p.PredictedBusySeconds, maxStepSeconds)
	}
	for _, text := range []string{p.Device, p.Kind, p.Class, p.First, p.Last} {
		if len(text) > maxTrainingText {
			return fmt.Errorf("a text of %s: at most %s are understood", quantity.Bytes(len(text)),
				quantity.Bytes(maxTrainingText))
		}
	}
	return nil
}

// maxStepSeconds is longer than any step takes.
const maxStepSeconds = float64(MaxWall / time.Second)

// duration reports whether a number of seconds can be one.
func duration(seconds float64) bool {
	return seconds >= 0 && seconds <= maxStepSeconds && !math.IsNaN(seconds)
}
