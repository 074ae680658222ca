package display

import (
	"encoding/json"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Report is the JSON object that `run --json` and `show --json` write. Times are in seconds, memory in bytes, money in US dollars;
// what is not known is null.
type Report struct {
	Run         string                          `json:"run"`
	Pipeline    string                          `json:"pipeline"`
	App         string                          `json:"app"`
	Build       string                          `json:"build"`
	State       predictor.RunState              `json:"state"`
	Error       string                          `json:"error,omitempty"`
	Goal        predictor.Goal                  `json:"goal"`
	StartedAt   time.Time                       `json:"started_at"`
	EndedAt     *time.Time                      `json:"ended_at"`
	WallSeconds Compared                        `json:"wall_seconds"`
	CostUSD     Compared                        `json:"cost_usd"`
	Accuracy    Compared                        `json:"accuracy"`
	Venues      map[predictor.Venue]ReportVenue `json:"venues"`
	Stages      []ReportStage                   `json:"stages"`
	Totals      ReportTotals                    `json:"totals"`
	Decisions   []predictor.Decision            `json:"decisions"`
	Result      json.RawMessage                 `json:"result"`
}

// Compared is a quantity as predicted and as it came.
type Compared struct {
	Predicted *predictor.Interval `json:"predicted"`
	Actual    *float64            `json:"actual"`
}

// ReportVenue says what a venue may use on this host.
type ReportVenue struct {
	CPUs []int `json:"cpus"`
}

// ReportStage is what one stage queued, ran, used and cost.
type ReportStage struct {
	Name             string                  `json:"name"`
	QueueSeconds     float64                 `json:"queue_seconds"`
	StartSeconds     float64                 `json:"start_seconds"`
	RunSeconds       float64                 `json:"run_seconds"`
	CPUSeconds       float64                 `json:"cpu_seconds"`
	PeakMemoryBytes  quantity.Bytes          `json:"peak_memory_bytes"`
	GrantMemoryBytes quantity.Bytes          `json:"grant_memory_bytes"`
	Tasks            map[predictor.Venue]int `json:"tasks"`
	FailedAttempts   int                     `json:"failed_attempts"`
	Predicted        StagePrediction         `json:"predicted"`
	Actual           StageActual             `json:"actual"`
	CostUSD          float64                 `json:"cost_usd"`
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
		Run: run.Run, Pipeline: run.Pipeline, App: run.App, Build: run.Build, State: run.State, Error: run.Error, Goal: run.Goal, StartedAt: run.StartedAt,
		WallSeconds: Compared{Predicted: orNil(run.Predicted.FinishSeconds)},
		CostUSD:     Compared{Predicted: orNil(run.Predicted.Cost), Actual: new(run.Totals.Cost.USD())},
		Venues: map[predictor.Venue]ReportVenue{
			predictor.Pool:     {CPUs: notNil(poolCPUs)},
			predictor.Function: {CPUs: notNil(functionCPUs)},
		},
		Stages: make([]ReportStage, 0, len(run.Stages)), Decisions: notNil(m.Decisions), Result: json.RawMessage("null"),
	}
	if Ended(run) {
		report.EndedAt = new(run.EndedAt)
		report.WallSeconds.Actual = new(m.Wall().Seconds())
	}
	if len(run.Result) > 0 && json.Valid(run.Result) {
		report.Result = run.Result
		if accuracy, found := Accuracy(run.Result); found {
			report.Accuracy.Actual = new(accuracy)
		}
	}
	for _, stage := range run.Stages {
		report.Stages = append(report.Stages, reportStage(stage))
	}
	totals := run.Totals
	report.Totals = ReportTotals{
		QueueSeconds: totals.QueueSeconds, StartSeconds: totals.StartSeconds, RunSeconds: totals.RunSeconds, CPUSeconds: totals.CPUSeconds,
		Tasks: bothVenues(totals.Tasks), Attempts: totals.Attempts, FailedAttempts: totals.Failures, OutOfMemory: totals.OutOfMemory, CostUSD: totals.Cost.USD(),
	}
	return report
}

func reportStage(stage ledger.StageView) ReportStage {
	reported := ReportStage{
		Name: stage.Name, QueueSeconds: stage.QueueSeconds, StartSeconds: stage.StartSeconds, RunSeconds: stage.RunSeconds, CPUSeconds: stage.CPUSeconds,
		PeakMemoryBytes: stage.PeakMemory, GrantMemoryBytes: stage.Grant.Memory, Tasks: bothVenues(stage.Tasks), FailedAttempts: stage.Failed,
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

// notNil makes an empty list encode as [] and not as null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
