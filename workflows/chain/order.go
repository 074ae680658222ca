package chain

import (
	"slices"
	"strings"
)

// Step is a stage of a chain among the others.
type Step struct {
	// Stage is its name.
	Stage string
	// After are the stages that it waits for, in the order in which they run.
	After []string
	// Over are the variables for whose values it has a task each; nil when it has one task.
	Over []string
	// Last says that no other stage waits for it.
	Last bool
}

// String writes the stage with what it waits for: "train for each lr and seed, after prepare".
func (s Step) String() string {
	text := s.Stage
	if len(s.Over) > 0 {
		text += " for each " + strings.Join(s.Over, " and ")
	}
	if len(s.After) > 0 {
		text += ", after " + strings.Join(s.After, ", ")
	}
	return text
}

// Steps returns the stages in an order in which they can run: that of the file where nothing else decides.
func (c Chain) Steps() []Step {
	waiting := make([]*stage, len(c.d.Stages))
	for i := range c.d.Stages {
		waiting[i] = &c.d.Stages[i]
	}
	var done []Step
	for len(waiting) > 0 {
		ran := func(name string) bool { return slices.ContainsFunc(done, func(s Step) bool { return s.Stage == name }) }
		next := max(slices.IndexFunc(waiting, func(s *stage) bool { // Parse has refused circles
			return !slices.ContainsFunc(s.needs(), func(name string) bool { return !ran(name) })
		}), 0)
		s := waiting[next]
		waiting = slices.Delete(waiting, next, next+1)
		step := Step{Stage: s.Name, Last: true}
		for _, v := range s.ForEach {
			step.Over = append(step.Over, v.Name)
		}
		for i, earlier := range done {
			if slices.Contains(s.needs(), earlier.Stage) {
				step.After = append(step.After, earlier.Stage)
				done[i].Last = false
			}
		}
		done = append(done, step)
	}
	return done
}
