package clitest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Said is a line of attempt 1 of a command.
func Said(run, stage string, origin wire.LogOrigin, text string) logs.Line {
	return logs.Line{
		LogSource: wire.LogSource{Run: run, Stage: stage, Task: stage + "-0", Attempt: 1},
		LogLine:   wire.LogLine{At: Begin, Origin: origin, Text: text},
	}
}

// Program is a command as the stack in memory plays it.
type Program struct {
	// Changes are the files that it makes or changes, outputs those that it was asked for.
	Changes, Outputs map[string]string
	// While is called while it runs.
	While func()
	// Failure is why its run fails; empty for a success.
	Failure string

	Input chain.SingleInput // what it was started with
	Code  map[string]string // the files that it found
}

// Play makes the stack run the program for every event.
func (p *Program) Play(t *testing.T, stack *Stack) {
	t.Helper()
	stack.OnPublish = func(event web.Event, run string) {
		if err := json.Unmarshal(event.Input, &p.Input); err != nil {
			t.Error(err)
			return
		}
		if code := p.Input.Command.Code; code.Digest != "" {
			dir := t.TempDir()
			if err := tree.Unpack(t.Context(), stack.Store, code, dir); err != nil {
				t.Error(err)
			}
			p.Code = Content(t, dir)
		}
		name := event.Pipeline
		stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: name, App: name, At: Begin})
		stack.Print(Said(run, name, wire.LogOut, "epoch 1"), Said(run, name, wire.LogErr, "a warning"),
			Said(run, name, wire.LogOut, "epoch 2"))
		if p.While != nil {
			p.While()
		}
		state := predictor.RunSucceeded
		if p.Failure != "" {
			state = predictor.RunFailed
		} else {
			stack.Results = map[string]json.RawMessage{run: p.result(t, stack, name)}
		}
		stack.Apply(run, predictor.RunEnded{Run: run, State: state, Error: p.Failure, At: Begin.Add(4 * time.Second)})
	}
}

func (p *Program) result(t *testing.T, stack *Stack, name string) json.RawMessage {
	t.Helper()
	left := chain.StageResult{Tasks: 1, Values: []map[string]any{{"accuracy": 0.98}}}
	if len(p.Changes) > 0 {
		ref, err := tree.Pack(t.Context(), stack.Store, Directory(t, p.Changes), tree.Options{})
		if err != nil {
			t.Error(err)
		}
		left.Changed = &ref
	}
	for path, text := range p.Outputs {
		ref, err := stack.Store.Put(t.Context(), strings.NewReader(text))
		if err != nil {
			t.Error(err)
		}
		left.Outputs = map[string][]wire.CommandFile{"out": {{Path: path, Artifact: ref}}}
	}
	encoded, err := json.Marshal(chain.Result{Stages: map[string]chain.StageResult{name: left}})
	if err != nil {
		t.Error(err)
	}
	return encoded
}
