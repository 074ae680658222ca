package web

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// knownRun returns a run; when there is none the error names those that are near.
func (s *Server) knownRun(ctx context.Context, run string) (ledger.RunView, error) {
	view, err := s.find(ctx, run)
	refused, isRefusal := errors.AsType[*Error](err)
	if !isRefusal || refused.Status != http.StatusNotFound || refused.OnItsWay() {
		return view, err
	}
	others, listed := s.engine.Runs(ctx, RunQuery{Limit: usualRuns})
	if listed != nil {
		return view, err
	}
	var names []string
	for _, other := range s.visible(ctx, others.Runs) {
		names = append(names, other.Run)
	}
	if near := nearest.Names(run, names); len(near) > 0 {
		return view, NotFound("did you mean "+strings.Join(near, ", ")+"?", "%s", refused.Message)
	}
	return view, err
}

// knownStage refuses a stage that neither the run has scheduled nor its build has.
func (s *Server) knownStage(ctx context.Context, view ledger.RunView, stage string) error {
	var names []string
	for _, known := range view.Stages {
		names = append(names, known.Name)
	}
	if slices.Contains(names, stage) {
		return nil
	}
	stack, err := s.engine.Stack(ctx)
	if err != nil {
		return err
	}
	for _, app := range stack.Apps {
		if app.Name == view.App && app.Build == view.Build {
			for _, known := range app.Stages {
				names = append(names, known.Name)
			}
		}
	}
	if slices.Contains(names, stage) {
		return nil
	}
	slices.Sort(names)
	names = slices.Compact(names)
	hint := "the run has scheduled no stage yet"
	if near := nearest.Names(stage, names); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	} else if len(names) > 0 {
		hint = "there are: " + strings.Join(names, ", ")
	}
	return NotFound(hint, "run %q has no stage %q", view.Run, stage)
}

// knownPipeline refuses a pipeline that is neither served nor was.
func (s *Server) knownPipeline(ctx context.Context, pipeline string) error {
	earlier, err := s.engine.Runs(ctx, RunQuery{Limit: 1, Pipeline: pipeline})
	if err != nil || len(earlier.Runs) > 0 {
		return err
	}
	stack, err := s.engine.Stack(ctx)
	if err != nil {
		return err
	}
	pipelines := stack.Pipelines()
	if slices.Contains(pipelines, pipeline) {
		return nil
	}
	unknown := UnknownPipeline(pipeline, pipelines)
	unknown.Status = http.StatusNotFound
	return unknown
}

// Unmeasured is the refusal of a stage that is not known by its name: names are those that were meant or that there
// are.
func Unmeasured(stage string, names []string) error {
	near := nearest.Names(stage, names)
	for _, name := range names {
		if _, own, _ := strings.Cut(name, "/"); own == stage {
			return NotFound("say which: "+strings.Join(names, ", "), "several apps have a stage %q", stage)
		}
	}
	if len(near) == 0 {
		own := make([]string, len(names))
		for i, name := range names {
			_, own[i], _ = strings.Cut(name, "/")
		}
		near = nearest.Names(stage, own)
	}
	switch {
	case len(near) > 0:
		return NotFound("did you mean "+strings.Join(near, ", ")+"?", "no stage %q", stage)
	case len(names) == 0:
		return NotFound("run a pipeline first: spillway run digits", "no stage %q: none has had a task yet", stage)
	}
	return NotFound("there are "+strings.Join(names[:min(len(names), 8)], ", "), "no stage %q", stage)
}
