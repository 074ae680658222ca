package engine

import (
	"context"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/predictor"
)

func TestFunctionsOfOldBuildsWhoseRunsGoOnAndOfTheRunnerAreUsed(t *testing.T) {
	t.Parallel()
	a := &apps{
		current: map[string]served{"app": {App: build.App{Digest: "new"}}},
		workers: &workflowWorkers{stop: map[buildID]context.CancelFunc{{"app", "new"}: nil, {"app", "old"}: nil}},
	}
	v := &venues{functions: predictor.FunctionVenue{Enabled: true}, runner: runner{digest: "runner"}}
	e := &Engine{front: &front{venues: v, apps: a}}
	if got := e.functionBuilds(); got != nil {
		t.Errorf("before it is known which runs go on: got %q, want nil", got)
	}
	a.tidied = true
	if got, want := e.functionBuilds(), []string{"new", "old", "runner"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	v.functions.Enabled = false
	if got := e.functionBuilds(); got != nil {
		t.Errorf("without functions: got %q, want nil", got)
	}
}
