package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/nearest"
	"github.com/spillway-ml/spillway/workflows/runs"
)

const usualRuns, usualDecisions = 100, 1000

// The parameters of lists.
var (
	runsParameter      = whole("limit", "the most runs to answer", 1, 1000, usualRuns)
	decisionsParameter = whole("limit", "the most decisions to answer: the newest of them", 1, 5000, usualDecisions)
	deadParameter      = whole("limit", "the most dead letters to answer", 1, 1000, 100)
	stateParameter     = choice("state", "keeps only runs in this state", predictor.RunRunning, predictor.RunSucceeded,
		predictor.RunFailed, predictor.RunCancelled)
	runsSinceParameter = moment("since", "keeps only runs that started then or later")
	cursorParameter    = words("cursor", "goes on behind the page whose next this is")
	totalsParameter    = flag("totals", "adds up all runs that match, those of other pages too")
	pipelineParameter  = words("pipeline", "keeps only what is of this pipeline")
	runParameter       = words("run", "keeps only what is of this run")
	keyParameter       = words("key", "the key of the binding; GET /api/v1/bindings lists them").must()
)

// healthAnswer is what GET /healthz answers.
type healthAnswer struct {
	// Status is "ok", "starting" while the engine catches up with what happened before it began, or "failing".
	Status string `json:"status"`
	// Error says what does not work, or how far the engine has come. Only who shows a credential is told.
	Error string `json:"error,omitempty"`
}

// health answers GET /healthz: 200 "ok", or 503 with what does not work, or not yet.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	err := s.engine.Check(r.Context())
	if err == nil {
		s.write(w, r, http.StatusOK, healthAnswer{Status: "ok"})
		return
	}
	answer := healthAnswer{Status: "failing"}
	if yet, ok := errors.AsType[*Error](err); ok && yet.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(yet.RetryAfter.Seconds())))
		answer.Status = "starting"
	}
	if access.CallerOf(r.Context()) != access.Anyone {
		answer.Error = err.Error()
	}
	s.write(w, r, http.StatusServiceUnavailable, answer)
}

func (s *Server) stack(r *http.Request) (Stack, error) { return s.engine.Stack(r.Context()) }

func (s *Server) plan(r *http.Request) (predictor.Plan, error) { return s.engine.Plan(r.Context()) }

// runsAnswer is what GET /api/v1/runs answers.
type runsAnswer struct {
	Runs []ledger.RunView `json:"runs"`
	// Next is the cursor of the page behind this one; empty when there is none.
	Next string `json:"next,omitempty"`
	// Totals are those of all runs that match, whichever page they are on; missing where nobody has asked for them.
	Totals *ledger.RunTotals `json:"totals,omitempty"`
}

func (s *Server) runs(r *http.Request) (answer runsAnswer, err error) {
	limit, err := runsParameter.number(r)
	if err != nil {
		return answer, err
	}
	state, err := stateParameter.text(r)
	if err != nil {
		return answer, err
	}
	query := RunQuery{Limit: int(limit), State: predictor.RunState(state), Pipeline: r.FormValue("pipeline")}
	if query.Since, err = runsSinceParameter.moment(r, time.Now()); err != nil {
		return answer, err
	}
	if query.After, err = ledger.ParsePlace(r.FormValue("cursor")); err != nil {
		return answer, Invalid("give the next of the page before, or leave it out for the first page",
			"cursor %.80q is %v", r.FormValue("cursor"), err)
	}
	totals, err := totalsParameter.yes(r)
	if err != nil {
		return answer, err
	}
	page, err := s.engine.Runs(r.Context(), query)
	if err != nil {
		return answer, err
	}
	answer = runsAnswer{Runs: notNil(s.visible(r.Context(), page.Runs)), Next: page.Next.String()}
	if totals {
		all, err := s.engine.RunTotals(r.Context(), query)
		if err != nil {
			return answer, err
		}
		answer.Totals = &all
	}
	return answer, nil
}

func (s *Server) run(r *http.Request) (ledger.RunView, error) {
	return s.find(r.Context(), r.PathValue("run"))
}

func (s *Server) history(r *http.Request) (json.RawMessage, error) {
	return s.engine.History(r.Context(), r.PathValue("run"))
}

func (s *Server) result(r *http.Request) (json.RawMessage, error) {
	return s.engine.Result(r.Context(), r.PathValue("run"))
}

type decisionsAnswer struct {
	Decisions []predictor.Decision `json:"decisions"`
}

func (s *Server) decisions(r *http.Request) (answer decisionsAnswer, err error) {
	limit, err := decisionsParameter.number(r)
	if err != nil {
		return answer, err
	}
	query := DecisionQuery{Run: r.PathValue("run"), Limit: int(limit)}
	if query.Run != "" { // an unknown run is refused, not answered with an empty list
		if _, err := s.engine.Run(r.Context(), query.Run); err != nil {
			return answer, err
		}
	}
	ctx := r.Context()
	found, err := s.engine.Decisions(ctx, query)
	if query.Run == "" { // those of a run are for who sees the run
		found = slices.DeleteFunc(slices.Clone(found), func(one predictor.Decision) bool {
			return !s.sees(ctx, one.Stage.Team)
		})
	}
	return decisionsAnswer{notNil(found)}, err
}

// nothing is the answer to a request that only does something: {}.
type nothing struct{}

func (s *Server) cancel(r *http.Request) (nothing, error) {
	if err := decodeBody(r, &nothing{}); err != nil {
		return nothing{}, err
	}
	return nothing{}, s.engine.Cancel(r.Context(), r.PathValue("run"))
}

func (s *Server) publish(r *http.Request) (Published, error) {
	var event Event
	if err := decodeBody(r, &event); err != nil {
		return Published{}, err
	}
	stack, err := s.engine.Stack(r.Context())
	if err != nil {
		return Published{}, err
	}
	if err := CheckEvent(event, stack.Pipelines()); err != nil {
		return Published{}, err
	}
	if event.Pipeline != "" { // which pipelines a subject starts the engine knows, and asks the same
		if err := s.ownPipeline(r, event.Pipeline); err != nil {
			return Published{}, err
		}
	}
	published, err := s.engine.Publish(r.Context(), event)
	if err == nil {
		s.accepted.add(published.Run, time.Now())
	}
	return published, err
}

// CheckEvent returns an [Error] with status 400 when the event can start nothing, given the names of the pipelines that
// are served. It does not look into the input.
func CheckEvent(event Event, pipelines []string) error {
	switch {
	case (event.Pipeline == "") == (event.Subject == ""):
		return Invalid("name a pipeline, or the subject that a pipeline is bound to",
			"an event needs either a pipeline or a subject")
	case event.Pipeline != "" && !slices.Contains(pipelines, event.Pipeline):
		return UnknownPipeline(event.Pipeline, pipelines)
	case strings.ContainsAny(event.Subject, "*> \t\r\n"):
		return Invalid("publish to one subject; only bindings have wildcards", "subject %q has a wildcard or a space",
			event.Subject)
	case len(event.Input) > 0 && !json.Valid(event.Input):
		return Invalid("", "the input is not JSON")
	case event.Goal != nil:
		return checkGoal(*event.Goal)
	}
	return nil
}

func checkGoal(goal predictor.Goal) error {
	if err := runs.CheckGoal(goal); err != nil {
		return Invalid("", "%v", err)
	}
	return nil
}

// UnknownPipeline returns the Error that says that no app serves the pipeline, and which names are near.
func UnknownPipeline(name string, pipelines []string) *Error {
	var hint string
	switch near := nearest.Names(name, pipelines); {
	case len(near) > 0:
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	case len(pipelines) > 0:
		hint = "there are: " + strings.Join(pipelines, ", ")
	default:
		hint = "no app is served: give one with --app DIR"
	}
	return Invalid(hint, "there is no pipeline %q", name)
}

// Pipelines returns the names of the pipelines that new runs can start, sorted.
func (s Stack) Pipelines() []string {
	var names []string
	for _, app := range s.Apps {
		if app.Current {
			for _, pipeline := range app.Pipelines {
				names = append(names, pipeline.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

type bindingsAnswer struct {
	Bindings []Binding `json:"bindings"`
}

func (s *Server) bindings(r *http.Request) (bindingsAnswer, error) {
	found, err := s.engine.Bindings(r.Context())
	return bindingsAnswer{notNil(found)}, err
}

func (s *Server) bind(r *http.Request) (Binding, error) {
	var binding wire.Binding
	if err := decodeBody(r, &binding); err != nil {
		return Binding{}, err
	}
	if binding.Subject == "" && binding.Schedule == "" {
		return Binding{}, Invalid("", "a binding needs a subject or a schedule")
	}
	if binding.MaxRuns < 0 {
		return Binding{}, Invalid("leave it out for no cap", "max_runs %d is negative", binding.MaxRuns)
	}
	if err := checkGoal(binding.Goal); err != nil {
		return Binding{}, err
	}
	stack, err := s.engine.Stack(r.Context())
	if err != nil {
		return Binding{}, err
	}
	if pipelines := stack.Pipelines(); !slices.Contains(pipelines, binding.Pipeline) {
		return Binding{}, UnknownPipeline(binding.Pipeline, pipelines)
	}
	if err := s.ownPipeline(r, binding.Pipeline); err != nil {
		return Binding{}, err
	}
	return s.engine.Bind(r.Context(), binding)
}

func (s *Server) unbind(r *http.Request) (nothing, error) {
	key := r.FormValue("key")
	bound, err := s.engine.Bindings(r.Context())
	if err != nil {
		return nothing{}, err
	}
	for _, one := range bound {
		if one.Key == key {
			if err := s.ownPipeline(r, one.Pipeline); err != nil {
				return nothing{}, err
			}
		}
	}
	return nothing{}, s.engine.Unbind(r.Context(), key)
}

type deadAnswer struct {
	Dead []DeadLetter `json:"dead"`
}

func (s *Server) dead(r *http.Request) (answer deadAnswer, err error) {
	limit, err := deadParameter.number(r)
	if err != nil {
		return answer, err
	}
	found, err := s.engine.Dead(r.Context(), int(limit))
	return deadAnswer{notNil(found)}, err
}

// replayBody is the body of POST /api/v1/dead/replay: exactly one field is set.
type replayBody struct {
	Sequence uint64 `json:"sequence,omitempty"`
	All      bool   `json:"all,omitempty"`
}

func (s *Server) replay(r *http.Request) (answer Replayed, err error) {
	var body replayBody
	if err := decodeBody(r, &body); err != nil {
		return answer, err
	}
	if (body.Sequence != 0) == body.All {
		return answer, Invalid("GET /api/v1/dead lists the sequences",
			"a replay needs either the sequence of a dead letter or all")
	}
	if !everybody(r.Context()) {
		if err := s.ownLetters(r, body); err != nil {
			return answer, err
		}
	}
	answer, err = s.engine.Replay(r.Context(), body.Sequence)
	answer.Outcomes = notNil(answer.Outcomes)
	return answer, err
}

type registerBody struct {
	Path string `json:"path"`
}

// register serves a build. Only files of the state directory's own builds are accepted: whoever can write there could
// start a program as this user anyway, and whoever can merely connect to the port cannot name any other program.
func (s *Server) register(r *http.Request) (App, error) {
	var body registerBody
	if err := decodeBody(r, &body); err != nil {
		return App{}, err
	}
	stack, err := s.engine.Stack(r.Context())
	if err != nil {
		return App{}, err
	}
	path, err := storedBuild(stack.StateDir, body.Path)
	if err != nil {
		return App{}, err
	}
	return s.engine.Register(r.Context(), path)
}

// storedBuild returns path when it is, links followed, a file among the builds of stateDir.
func storedBuild(stateDir, path string) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return "", NotFound("build it first: `spillway run --app DIR` does", "there is no build at %q", path)
	}
	if err != nil {
		return "", Invalid("give the path that `spillway run --app DIR` has stored the build at", "find the build: %v", err)
	}
	builds, err := filepath.EvalSymlinks(filepath.Join(stateDir, "builds"))
	if errors.Is(err, fs.ErrNotExist) { // nothing was built yet
		builds, err = filepath.Join(stateDir, "builds"), nil
	}
	if err != nil {
		return "", fmt.Errorf("find the builds of the state directory: %w", err)
	}
	relative, err := filepath.Rel(builds, resolved)
	if err != nil || !filepath.IsLocal(relative) || relative == "." {
		return "", Invalid("build it with `spillway run --app DIR`, which stores it there",
			"%s is not among the builds of the state directory %s", path, stateDir)
	}
	return resolved, nil
}

// notNil makes an empty list encode as [] and not as null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
