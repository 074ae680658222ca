package wire

import (
	"encoding/json"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// App is what a user's binary says of itself with `describe --json`.
type App struct {
	Version   int        `json:"v"`
	Name      string     `json:"name"`
	Pipelines []Pipeline `json:"pipelines"`
	Stages    []Stage    `json:"stages"`
	// SIMD is whether the binary was built with GOEXPERIMENT=simd.
	SIMD bool `json:"simd"`
	// WorkflowVersion is the newest version of steps that the app's workflow code takes; 0 when it was built before there
	// were versions.
	WorkflowVersion int `json:"workflow_version,omitempty"`
}

// Pipeline describes one pipeline of an app.
type Pipeline struct {
	Name string `json:"name"`
	// Input is the JSON Schema of the input.
	Input json.RawMessage `json:"input_schema"`
	// Validates says that the pipeline's own code checks inputs, which its workflow worker answers for (see CheckInput).
	Validates bool `json:"validates,omitempty"`
	// Goal is the goal of runs that bring none.
	Goal predictor.Goal `json:"goal"`
	// Bindings are those declared beside the pipeline.
	Bindings []Binding `json:"bindings,omitempty"`
}

// Stage describes one stage of an app.
type Stage struct {
	Name        string        `json:"name"`
	Declared    quantity.Size `json:"declared"`
	MaxAttempts int           `json:"max_attempts"`
	Timeout     time.Duration `json:"timeout_ns,omitempty"`
	PoolOnly    bool          `json:"pool_only,omitempty"`
	// Command says that the stage runs a program instead of a function of the app.
	Command bool `json:"command,omitempty"`
	// Recommends says that the stage decides the sizes of its attempts.
	Recommends bool `json:"recommends,omitempty"`
	// Cache says that a run takes what other runs have made of the same input with the same code.
	Cache bool `json:"cache,omitempty"`
	// CacheVersion is a part of what results are made of: those of another version are not taken. CacheFor is how old one
	// of another run may be; 0 means as old as there are.
	CacheVersion string        `json:"cache_version,omitempty"`
	CacheFor     time.Duration `json:"cache_for_ns,omitempty"`
	// NoCache says that no run takes what other runs have made, also where it asks for it. Runs of version 0 take it
	// unless this is set.
	NoCache bool `json:"no_cache,omitempty"`
	// Secrets are the names of what the server's operator has for the stage, and what its attempts alone are given.
	Secrets []string `json:"secrets,omitempty"`
}

// Binding says which events start a pipeline.
type Binding struct {
	Pipeline string `json:"pipeline"`
	// Subject is a NATS subject, wildcards allowed. Empty with a Schedule: only the schedule starts runs.
	Subject string `json:"subject,omitempty"`
	// Filter keeps only events whose body has, at each JSON path ("kind", "meta.size"), the given value. Empty keeps all.
	Filter map[string]any `json:"filter,omitempty"`
	// MaxRuns caps the runs of this binding that go on at a time; 0 means no cap. Events over the cap wait in the stream.
	MaxRuns int `json:"max_runs,omitempty"`
	// Schedule is a cron expression in UTC; each firing publishes an event with Input as its body.
	Schedule string          `json:"schedule,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
	// Goal is the goal of runs that this binding starts; the zero Goal leaves the pipeline's own.
	Goal predictor.Goal `json:"goal"`
}

// Done is the completion event of a run.
type Done struct {
	Version  int                `json:"v"`
	Run      string             `json:"run"`
	Pipeline string             `json:"pipeline"`
	Event    string             `json:"event,omitempty"`
	State    predictor.RunState `json:"state"`
	Error    string             `json:"error,omitempty"`
	Result   json.RawMessage    `json:"result,omitempty"` // left out when over 64 KiB
	Started  time.Time          `json:"started_at"`
	Ended    time.Time          `json:"ended_at"`
}
