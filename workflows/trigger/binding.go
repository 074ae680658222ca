package trigger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Origin says where a binding comes from.
type Origin string

// The origins of bindings.
const (
	// Declared is a binding that the app declares beside its pipeline.
	Declared Origin = "declared"
	// Implicit is the binding on wire.EventSubject(pipeline) of a pipeline that declares no subject.
	Implicit Origin = "implicit"
	// Command is a binding made with Bind.
	Command Origin = "command"
	// Removed is a binding that is gone and whose waiting events are becoming dead letters.
	Removed Origin = "removed"
)

// Bound is a binding in force.
type Bound struct {
	// Key names the binding in Unbind, in Stats and in the names of its consumer and its schedule.
	Key string
	// Binding is what was bound.
	Binding wire.Binding
	// Origin says who bound it.
	Origin Origin
}

// subjects are the subjects that the binding's consumer reads: its own and, with a schedule, the one that its schedule
// publishes to.
func (b Bound) subjects() []string {
	var subjects []string
	if b.Binding.Subject != "" {
		subjects = append(subjects, b.Binding.Subject)
	}
	if b.Binding.Schedule != "" {
		subjects = append(subjects, scheduledSubject(b.Key))
	}
	return subjects
}

// matches reports whether the binding reads events on subject.
func (b Bound) matches(subject string) bool {
	return slices.ContainsFunc(b.subjects(), func(pattern string) bool { return isCovered(subject, pattern) })
}

// scheduledSubject is private to one binding, so that a schedule starts runs of its own pipeline only.
func scheduledSubject(key string) string { return "spillway.scheduled." + key }

// scheduledSubjects is every scheduledSubject.
const scheduledSubjects = "spillway.scheduled.>"

// Key names a binding: its pipeline and a hash of its subject, filter, schedule and scheduled input. MaxRuns and Goal
// are not part of it: binding the same again with others changes them.
func Key(binding wire.Binding) string {
	identity, err := json.Marshal([]any{
		binding.Pipeline, binding.Subject, binding.Filter, binding.Schedule,
		compact(binding.Input),
	})
	if err != nil {
		identity = fmt.Appendf(nil, "%#v", binding) // a filter that is not JSON; such a binding is refused before it is used
	}
	sum := sha256.Sum256(identity)
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, binding.Pipeline)
	return name[:min(len(name), 40)] + "-" + hex.EncodeToString(sum[:5])
}

func compact(input json.RawMessage) json.RawMessage {
	var short bytes.Buffer
	if len(input) == 0 || json.Compact(&short, input) != nil {
		return nil
	}
	return short.Bytes()
}

// Check refuses a binding that could start no run: without a pipeline, a subject or a schedule, or with ones that NATS
// or Temporal would not take; and one whose filter holds what cannot be printed.
func Check(binding wire.Binding) error {
	_, err := asked(binding, Declared)
	return err
}

// asked is newBound for who asks for a binding now. What is kept, or comes with a build, may be older than the checks
// of its filter, of subjects with _ that are not those of answers, and of when its schedule fires, and stays in force.
func asked(binding wire.Binding, origin Origin) (Bound, error) {
	bound, err := newBound(binding, origin)
	if err != nil {
		return Bound{}, err
	}
	err = checkFilter(bound.Binding.Filter)
	if err == nil && strings.HasPrefix(binding.Subject, "_") {
		err = reserved(binding.Subject)
	}
	if err == nil && binding.Schedule != "" {
		err = checkFires(binding.Schedule, time.Now())
	}
	if err != nil {
		return Bound{}, fmt.Errorf("bind %q to pipeline %s: %w", binding.Subject, binding.Pipeline, err)
	}
	return bound, nil
}

// newBound checks a binding as far as that goes without its pipeline.
func newBound(binding wire.Binding, origin Origin) (Bound, error) {
	refuse := func(err error) (Bound, error) {
		return Bound{}, fmt.Errorf("bind %q to pipeline %s: %w", binding.Subject, binding.Pipeline, err)
	}
	if binding.Subject == "" && binding.Schedule == "" {
		return refuse(errors.New("give a subject or a schedule"))
	}
	if binding.Subject != "" {
		if err := checkSubject(binding.Subject); err != nil {
			return refuse(err)
		}
	}
	if binding.Schedule != "" {
		if err := checkCron(binding.Schedule); err != nil {
			return refuse(err)
		}
	} else if len(binding.Input) > 0 {
		return refuse(errors.New("input is for scheduled runs: give a schedule as well, or leave the input out"))
	}
	if binding.MaxRuns < 0 {
		return refuse(fmt.Errorf("max_runs is %d: give 0 for no cap, or how many runs may go on at a time", binding.MaxRuns))
	}
	if err := runs.CheckGoal(binding.Goal); err != nil {
		return refuse(err)
	}
	filter, err := normalize(binding.Filter)
	if err != nil {
		return refuse(err)
	}
	binding.Filter = filter
	return Bound{Key: Key(binding), Binding: binding, Origin: origin}, nil
}

// table is what is bound at a time. It is never changed after it is made.
type table struct {
	pipelines map[string]*pipeline
	bounds    map[string]Bound
	// since is, by key, the first sequence of the event stream that a binding reads.
	since map[string]uint64
	// until is, by key, the last sequence that a removed binding reads; without one it reads on.
	until map[string]uint64
}

// newTable resolves targets and the bindings made by command; the latter win over a declared one with the same key.
func newTable(targets []Target, commands []Bound) (*table, error) {
	t := &table{
		pipelines: map[string]*pipeline{}, bounds: map[string]Bound{}, since: map[string]uint64{},
		until: map[string]uint64{},
	}
	var problems []error
	for _, target := range targets {
		p, err := newPipeline(target)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if other, taken := t.pipelines[target.Pipeline.Name]; taken {
			problems = append(problems, fmt.Errorf("pipeline %s is in app %s and in app %s: rename one of them",
				target.Pipeline.Name, other.App, target.App))
			continue
		}
		t.pipelines[target.Pipeline.Name] = p
		problems = append(problems, t.declare(p))
	}
	for _, bound := range commands {
		t.bounds[bound.Key] = bound
	}
	return t, errors.Join(problems...)
}

// declare adds the bindings that come with a pipeline.
func (t *table) declare(p *pipeline) error {
	name := p.Pipeline.Name
	hasSubject := false
	for _, binding := range p.Pipeline.Bindings {
		binding.Pipeline = name
		bound, err := newBound(binding, Declared)
		if err == nil {
			err = t.checkScheduled(bound)
		}
		if err != nil {
			return err
		}
		hasSubject = hasSubject || binding.Subject != ""
		t.bounds[bound.Key] = bound
	}
	if !hasSubject {
		bound := Bound{Binding: wire.Binding{Pipeline: name, Subject: wire.EventSubject(name)}, Origin: Implicit}
		bound.Key = Key(bound.Binding)
		t.bounds[bound.Key] = bound
	}
	return nil
}

// checkScheduled refuses a schedule whose events could start no run, as far as the pipeline's code need not be asked.
func (t *table) checkScheduled(bound Bound) error {
	if bound.Binding.Schedule == "" {
		return nil
	}
	if decision := t.decideScheduled(bound); decision.disposition != startRun {
		return startsNothing(bound, decision.reason)
	}
	return nil
}

// decideScheduled says what becomes of the events of a schedule.
func (t *table) decideScheduled(bound Bound) decision {
	return t.decide(bound, event{id: "scheduled", subject: scheduledSubject(bound.Key), body: bound.Binding.Input})
}

// startsNothing refuses a schedule because of the input of its events.
func startsNothing(bound Bound, reason string) error {
	return fmt.Errorf("schedule %q of pipeline %s: its input would start no run: %s", bound.Binding.Schedule,
		bound.Binding.Pipeline, reason)
}

// isBound reports whether a binding reads, or has read, the event.
func (t *table) isBound(e event) bool {
	for key, bound := range t.bounds {
		until, ends := t.until[key]
		if bound.matches(e.subject) && e.sequence >= t.since[key] && (!ends || e.sequence <= until) {
			return true
		}
	}
	return false
}

// implicit returns the binding of the pipeline that declares no subject and listens on this one.
func (t *table) implicit(subject string) (Bound, bool) {
	for _, bound := range t.bounds {
		if bound.Origin == Implicit && bound.Binding.Subject == subject {
			return bound, true
		}
	}
	return Bound{}, false
}

// pipelineNames are the names of all pipelines.
func (t *table) pipelineNames() []string { return slices.Sorted(maps.Keys(t.pipelines)) }

// patterns are the subjects that are bound now.
func (t *table) patterns() []string {
	var patterns []string
	for _, bound := range t.bounds {
		if bound.Origin != Removed && bound.Binding.Subject != "" {
			patterns = append(patterns, bound.Binding.Subject)
		}
	}
	slices.Sort(patterns)
	return slices.Compact(patterns)
}

// disposition is what becomes of an event at one binding.
type disposition int

const (
	startRun   disposition = iota
	skip                   // the filter does not want it
	deadLetter             // it becomes a dead letter
)

// decision is a disposition with what is needed to carry it out.
type decision struct {
	disposition disposition
	start       Start  // for startRun
	reason      string // for the others
}

// decide says what becomes of an event that bound has read.
func (t *table) decide(bound Bound, e event) decision {
	dead := func(reason string) decision { return decision{disposition: deadLetter, reason: reason} }
	binding := bound.Binding
	if until, ends := t.until[bound.Key]; ends && e.sequence > until {
		return decision{disposition: skip, reason: "the event came after the binding was removed"}
	}
	input, decoded, err := e.input()
	if err != nil {
		return dead(err.Error())
	}
	if path, found := mismatch(binding.Filter, decoded); found {
		return decision{disposition: skip, reason: fmt.Sprintf("the filter wants another value at %q", path)}
	}
	p, known := t.pipelines[binding.Pipeline]
	if !known {
		return dead(fmt.Sprintf("pipeline %q is in no app that is running; %s", binding.Pipeline,
			suggestion(binding.Pipeline, t.pipelineNames())))
	}
	if bound.Origin == Removed {
		return dead(fmt.Sprintf("the binding of %q to pipeline %s was removed while the event waited", binding.Subject,
			binding.Pipeline))
	}
	if err := checkID(e.id); err != nil {
		return dead(err.Error())
	}
	if err := p.check(decoded); err != nil {
		return dead(err.Error())
	}
	goal, err := goalOf(e, binding, p)
	if err != nil {
		return dead(err.Error())
	}
	options, err := e.options()
	if err != nil {
		return dead(err.Error())
	}
	return decision{disposition: startRun, start: Start{
		Run: RunID(binding.Pipeline, e.id), Pipeline: binding.Pipeline, App: p.App, Build: p.Build, TaskQueue: p.queue(),
		Version: p.Version, Input: input, Validates: p.Pipeline.Validates, Goal: goal, Options: options, Event: e.id,
		Binding: bound.Key,
	}}
}

// goalOf is the goal that the event brings, else the binding's, else the pipeline's.
func goalOf(e event, binding wire.Binding, p *pipeline) (predictor.Goal, error) {
	goal, found, err := e.goal()
	switch {
	case err != nil || found:
		return goal, err
	case binding.Goal != predictor.Goal{}:
		return binding.Goal, nil
	default:
		return p.Pipeline.Goal, nil
	}
}

// unbound is the reason of a dead letter that no binding reads.
func (t *table) unbound(subject string) string {
	patterns := t.patterns()
	return fmt.Sprintf("no pipeline is bound to subject %s; %s", subject, suggestion(subject, patterns))
}
