package display

import (
	"encoding/json"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Report is the JSON object that `run --json` and `show --json` write. Times are in seconds, memory in bytes, money in
// US dollars; what is not known is null.
type Report struct {
	Run         string                          `json:"run"`
	Pipeline    string                          `json:"pipeline"`
	App         string                          `json:"app"`
	Build       string                          `json:"build"`
	State       predictor.RunState              `json:"state"`
	Error       string                          `json:"error,omitempty"`
	RetryOf     string                          `json:"retry_of,omitempty"`
	Goal        predictor.Goal                  `json:"goal"`
	StartedAt   time.Time                       `json:"started_at"`
	EndedAt     *time.Time                      `json:"ended_at"`
	WallSeconds Compared                        `json:"wall_seconds"`
	CostUSD     Compared                        `json:"cost_usd"`
	Accuracy    Compared                        `json:"accuracy"`
	Static      *ReportStatic                   `json:"static"`
	Reused      ReportReuse                     `json:"reused"`
	Breakdown   *timeline.Breakdown             `json:"breakdown,omitempty"`
	Alerts      []alerting.Alert                `json:"alerts,omitempty"`
	WhatIf      []string                        `json:"what_if,omitempty"` // sentences; none where nothing is known
	Venues      map[predictor.Venue]ReportVenue `json:"venues"`
	Stages      []ReportStage                   `json:"stages"`
	Totals      ReportTotals                    `json:"totals"`
	Decisions   []predictor.Decision            `json:"decisions"`
	Result      json.RawMessage                 `json:"result"`
	Tunings     []runs.Tuning                   `json:"tunings,omitempty"`
}

// Compared is a quantity as predicted and as it came. EarlierRuns is on how many earlier runs the prediction of a run
// rests: of one, the interval is wide. Basis says in words on what, and MissProbability how probable it was then that
// the run misses the limit that its goal has for this quantity. What is not told is left out.
type Compared struct {
	Predicted       *predictor.Interval `json:"predicted"`
	EarlierRuns     int                 `json:"earlier_runs,omitempty"`
	Basis           string              `json:"basis,omitempty"`
	MissProbability float64             `json:"miss_probability,omitempty"`
	Actual          *float64            `json:"actual"`
}

// ReportVenue says what a venue may use on this host.
type ReportVenue struct {
	CPUs []int `json:"cpus"`
}

// ReportStatic is what the run would have cost and how long it would have taken with one fixed size for each stage
// and no functions, and how many of its attempts would have run out of memory at that; the time is null where it is
// not known.
type ReportStatic struct {
	CostUSD       float64  `json:"cost_usd"`
	WallSeconds   *float64 `json:"wall_seconds"`
	ShortAttempts int      `json:"short_attempts"`
}

// ReportReuse is what was taken from earlier runs: how many results, and what they took and cost when they were made.
type ReportReuse struct {
	Tasks        int     `json:"tasks"`
	SavedSeconds float64 `json:"saved_seconds"`
	SavedUSD     float64 `json:"saved_usd"`
}

// ReportStage is what one stage queued, ran, used and cost. Progress is how far its running attempts are by their own
// word, and Learning how their trainings go; none where they say nothing.
type ReportStage struct {
	Name             string                            `json:"name"`
	QueueSeconds     float64                           `json:"queue_seconds"`
	Wait             ledger.Wait                       `json:"wait"`
	StartSeconds     float64                           `json:"start_seconds"`
	RunSeconds       float64                           `json:"run_seconds"`
	CPUSeconds       float64                           `json:"cpu_seconds"`
	PeakMemoryBytes  quantity.Bytes                    `json:"peak_memory_bytes"`
	GrantMemoryBytes quantity.Bytes                    `json:"grant_memory_bytes"`
	Memory           map[predictor.Venue]ledger.Memory `json:"memory,omitempty"`
	Tasks            map[predictor.Venue]int           `json:"tasks"`
	FailedAttempts   int                               `json:"failed_attempts"`
	ReusedTasks      int                               `json:"reused_tasks"`
	Predicted        StagePrediction                   `json:"predicted"`
	Actual           StageActual                       `json:"actual"`
	CostUSD          float64                           `json:"cost_usd"`
	Progress         []predictor.Progress              `json:"progress,omitempty"`
	Learning         []predictor.Learning              `json:"learning,omitempty"`
}

// StagePrediction is what was expected of one attempt of a stage.
type StagePrediction struct {
	WallSeconds *predictor.Interval `json:"wall_seconds"`
	MemoryBytes *predictor.Interval `json:"memory_bytes"`
}

// StageActual is what attempts of a stage took: the mean time and the highest memory.
type StageActual struct {
	WallSeconds *float64 `json:"wall_seconds"`
	MemoryBytes *float64 `json:"memory_bytes"`
}

// ReportTotals are sums over all stages.
type ReportTotals struct {
	QueueSeconds   float64                 `json:"queue_seconds"`
	StartSeconds   float64                 `json:"start_seconds"`
	RunSeconds     float64                 `json:"run_seconds"`
	CPUSeconds     float64                 `json:"cpu_seconds"`
	Tasks          map[predictor.Venue]int `json:"tasks"`
	Attempts       int                     `json:"attempts"`
	FailedAttempts int                     `json:"failed_attempts"`
	OutOfMemory    int                     `json:"out_of_memory"`
	CostUSD        float64                 `json:"cost_usd"`
}

// NewReport returns the report of a run on a host whose venues may use these CPUs.
func NewReport(m Model, poolCPUs, functionCPUs []int) Report {
	run := m.Run
	report := Report{
		Run: run.Run, Pipeline: run.Pipeline, App: run.App, Build: run.Build, State: run.State, Error: run.Error,
		RetryOf: run.RetryOf, Goal: run.Goal, StartedAt: run.StartedAt,
		WallSeconds: Compared{
			Predicted: orNil(run.Predicted.FinishSeconds), EarlierRuns: run.Predicted.Runs, Basis: run.Predicted.Basis,
			MissProbability: run.Predicted.Late,
		},
		CostUSD: Compared{
			Predicted: orNil(run.Predicted.Cost), EarlierRuns: run.Predicted.Runs, Basis: run.Predicted.Basis,
			MissProbability: run.Predicted.Dear, Actual: new(run.Totals.Cost.USD()),
		},
		Venues: map[predictor.Venue]ReportVenue{
			predictor.Pool:     {CPUs: append([]int{}, poolCPUs...)},
			predictor.Function: {CPUs: append([]int{}, functionCPUs...)},
		},
		Reused:    ReportReuse{Tasks: run.Reused.Tasks, SavedSeconds: run.Reused.Seconds, SavedUSD: run.Reused.Saved.USD()},
		Breakdown: m.Breakdown, Alerts: m.Alerts,
		Stages: make([]ReportStage, 0, len(run.Stages)), Decisions: append([]predictor.Decision{}, m.Decisions...),
		Result: json.RawMessage("null"),
	}
	if m.WhatIf != nil && m.WhatIf.Known {
		report.WhatIf = m.WhatIf.Sentences
	}
	if Ended(run) {
		report.EndedAt = new(run.EndedAt)
		report.WallSeconds.Actual = new(m.Wall().Seconds())
	}
	if run.Static.Known {
		report.Static = &ReportStatic{CostUSD: run.Static.Cost.USD(), ShortAttempts: run.Static.Short}
		if run.Static.Seconds > 0 {
			report.Static.WallSeconds = new(run.Static.Seconds)
		}
	}
	if len(run.Result) > 0 && json.Valid(run.Result) {
		report.Result = run.Result
		if accuracy, found := Accuracy(run.Result); found {
			report.Accuracy.Actual = new(accuracy)
		}
	}
	for _, stage := range run.Stages {
		reported := reportStage(stage)
		reported.Progress, reported.Learning = stageProgress(run, stage.Name), stageLearning(run, stage.Name)
		report.Stages = append(report.Stages, reported)
	}
	totals := run.Totals
	report.Totals = ReportTotals{
		QueueSeconds: totals.QueueSeconds, StartSeconds: totals.StartSeconds, RunSeconds: totals.RunSeconds,
		CPUSeconds: totals.CPUSeconds,
		Tasks:      bothVenues(totals.Tasks), Attempts: totals.Attempts, FailedAttempts: totals.Failures,
		OutOfMemory: totals.OutOfMemory, CostUSD: totals.Cost.USD(),
	}
	return report
}

func reportStage(stage ledger.StageView) ReportStage {
	reported := ReportStage{
		Name: stage.Name, QueueSeconds: stage.QueueSeconds, StartSeconds: stage.StartSeconds, RunSeconds: stage.RunSeconds,
		CPUSeconds: stage.CPUSeconds,
		Wait:       stage.Wait, Memory: stage.Memory,
		PeakMemoryBytes: stage.PeakMemory, GrantMemoryBytes: stage.Grant.Memory, Tasks: bothVenues(stage.Tasks),
		FailedAttempts: stage.Failed, ReusedTasks: stage.Reused.Tasks,
		Predicted: StagePrediction{WallSeconds: orNil(stage.PredictedWall), MemoryBytes: orNil(stage.PredictedMemory)},
		CostUSD:   stage.Cost.USD(),
	}
	if stage.Done > 0 {
		reported.Actual.WallSeconds = new(stage.ActualWall)
	}
	if stage.PeakMemory > 0 {
		reported.Actual.MemoryBytes = new(float64(stage.PeakMemory))
	}
	return reported
}

// bothVenues makes both keys present.
func bothVenues(tasks map[predictor.Venue]int) map[predictor.Venue]int {
	return map[predictor.Venue]int{predictor.Pool: tasks[predictor.Pool], predictor.Function: tasks[predictor.Function]}
}

func orNil(interval predictor.Interval) *predictor.Interval {
	if !known(interval) {
		return nil
	}
	return &interval
}
