package web

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// mostStages bounds the stages of a chain, as its reader does.
const mostStages = 200

// chainShape is the part of an encoded chain that the engine relies on before a run checks the rest.
type chainShape struct {
	Name   string       `json:"name"`
	Stages []stageShape `json:"stages"`
}

type stageShape struct {
	Name        string         `json:"name"`
	CPU         quantity.Milli `json:"cpu_milli,omitempty"`
	Memory      quantity.Bytes `json:"memory_bytes,omitempty"`
	Timeout     time.Duration  `json:"timeout_ns,omitempty"`
	MaxAttempts int            `json:"max_attempts,omitempty"`
}

// registerChain serves a chain whose files are packed. The client has read it from a file and checked it; what the engine would fail on is
// checked again, because anybody on this machine may send anything.
func (s *Server) registerChain(r *http.Request) (App, error) {
	const hint = "send what `spillway run FILE.yaml` sends"
	body, err := io.ReadAll(r.Body)
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return App{}, tooLarge
	}
	if err != nil {
		return App{}, Invalid(hint, "the body breaks off: %v", err)
	}
	var shape chainShape
	if err := json.Unmarshal(body, &shape); err != nil {
		return App{}, Invalid(hint, "the body is no chain: %v", err)
	}
	if err := checkShape(shape); err != nil {
		return App{}, err
	}
	var c chain.Chain
	if err := json.Unmarshal(body, &c); err != nil {
		return App{}, Invalid(hint, "the body is no chain: %v", err)
	}
	if err := checkGoal(c.App().Pipelines[0].Goal); err != nil {
		return App{}, err
	}
	return s.engine.RegisterChain(r.Context(), c)
}

func checkShape(shape chainShape) error {
	if err := workflows.CheckName(shape.Name); err != nil {
		return Invalid("", "chain: %v", err)
	}
	if len(shape.Stages) == 0 || len(shape.Stages) > mostStages {
		return Invalid("", "chain %s has %d stages: give 1 to %d", shape.Name, len(shape.Stages), mostStages)
	}
	seen := map[string]bool{}
	for _, stage := range shape.Stages {
		if err := workflows.CheckName(stage.Name); err != nil {
			return Invalid("", "chain %s: stage: %v", shape.Name, err)
		}
		if seen[stage.Name] {
			return Invalid("rename one of them", "chain %s has two stages %s", shape.Name, stage.Name)
		}
		if stage.CPU < 0 || stage.Memory < 0 || stage.Timeout < 0 || stage.MaxAttempts < 0 {
			return Invalid("leave it out to let Spillway choose", "chain %s: stage %s: a size, timeout or number of attempts is negative", shape.Name, stage.Name)
		}
		seen[stage.Name] = true
	}
	return nil
}
