package search

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Algorithm is how a search decides.
type Algorithm string

// The algorithms.
const (
	// ASHA promotes a trial as soon as it is among the best part of those that have come as far, and begins another
	// where none is: no worker ever waits (Li et al., A system for massively parallel hyperparameter tuning, 2020,
	// https://arxiv.org/abs/1810.05934). The zero value means it.
	ASHA Algorithm = "asha"
	// Random gives every trial all there is.
	Random Algorithm = "random"
	// Halving begins all trials, and lets the best part of them go on when all have come as far (Jamieson and
	// Talwalkar, Non-stochastic best arm identification, 2016).
	Halving Algorithm = "halving"
	// Hyperband is Halving again and again, from many trials that get little to few that get much (Li et al., 2018,
	// https://jmlr.org/papers/v18/16-558.html).
	Hyperband Algorithm = "hyperband"
	// BOHB is Hyperband whose configurations are drawn by what was good so far (Falkner, Klein and Hutter, 2018,
	// https://arxiv.org/abs/1807.01774).
	BOHB Algorithm = "bohb"
)

// Options say how a space is searched.
type Options struct {
	// Algorithm is ASHA where it is empty.
	Algorithm Algorithm `json:"algorithm,omitempty"`
	// Trials is how many trials are begun at most, at least 1.
	Trials int `json:"trials"`
	// Least and Most are how much a trial gets in the first rung and in all, in steps, epochs or whatever it counts in;
	// above 0. Least is Most over Eta three times where it is 0.
	Least float64 `json:"least,omitempty"`
	Most  float64 `json:"most"`
	// Whole says that rungs end at whole numbers, rounded up, as steps and epochs do. Least and Most are at least 1 then.
	Whole bool `json:"whole,omitempty"`
	// Eta is the factor between rungs, and one over the part of the trials that goes on; 3 where it is 0, else at least 2.
	Eta int `json:"eta,omitempty"`
	// Maximise says that a larger objective is better.
	Maximise bool `json:"maximise,omitempty"`
	// GoOn says that ASHA, where it would be done, goes on with the next best trial, as long as it is asked and until all
	// have had all: for who has time or money left.
	GoOn bool `json:"go_on,omitempty"`
	// Seed is that from which configurations are drawn.
	Seed uint64 `json:"seed,omitempty"`
	// Rules says which rules decide where those of before were others: 0, those of searches that began before they were
	// counted, to Newest. A search that is restored decides by those that it began with.
	Rules int `json:"rules,omitempty"`
}

// Newest are the newest Rules. From 1 on GoOn takes the best of the highest rung in which a trial waits, as ASHA looks
// for what it promotes; with 0 it takes the trial at the best place of its rung.
const Newest = 1

// ErrOptions says that a search cannot be done so.
var ErrOptions = errors.New("the search cannot be done so")

// WithDefaults returns the options with what they mean in the place of zeros.
func (o Options) WithDefaults() Options {
	o.Algorithm = cmp.Or(o.Algorithm, ASHA)
	o.Eta = cmp.Or(o.Eta, 3)
	if o.Least == 0 {
		o.Least = o.Most / math.Pow(float64(o.Eta), 3)
		if o.Whole {
			o.Least = max(o.Least, min(1, o.Most))
		}
	}
	return o
}

// Check reports what is wrong with options; the error wraps ErrOptions.
func (o Options) Check() error { return o.WithDefaults().check() }

// Rungs is how many rungs a search with these options has, the defaults in the place of zeros; they are ones that
// Check passes.
func (o Options) Rungs() int { o = o.WithDefaults(); return o.rungs() }

func (o Options) rungs() int {
	if o.Algorithm == Random {
		return 1
	}
	// A part in a million of a rung is rounding.
	return 1 + int(math.Floor(math.Log(o.Most/o.Least)/math.Log(float64(o.Eta))+1e-6))
}

func (o Options) check() error {
	switch {
	case !slices.Contains([]Algorithm{ASHA, Random, Halving, Hyperband, BOHB}, o.Algorithm):
		return fmt.Errorf("%w: there is no algorithm %q: use asha, random, halving, hyperband or bohb", ErrOptions,
			o.Algorithm)
	case o.Trials < 1:
		return fmt.Errorf("%w: %d trials: ask for at least one", ErrOptions, o.Trials)
	case o.Eta < 2:
		return fmt.Errorf("%w: eta %d: a rung is at least twice as long as the one below", ErrOptions, o.Eta)
	case o.Rules < 0 || o.Rules > Newest:
		return fmt.Errorf("%w: rules %d: there are 0 to %d", ErrOptions, o.Rules, Newest)
	case o.GoOn && o.Algorithm != ASHA:
		return fmt.Errorf("%w: %s cannot go on: use asha", ErrOptions, o.Algorithm)
	case !(o.Least > 0 && o.Least <= o.Most) || math.IsInf(o.Most, 1):
		return fmt.Errorf("%w: from %g to %g: give each trial something, and the first rung no more than all", ErrOptions,
			o.Least, o.Most)
	case o.Whole && (o.Least < 1 || o.Most != math.Trunc(o.Most)):
		return fmt.Errorf("%w: from %g to %g: whole steps begin with 1 at least, and end with a whole number", ErrOptions,
			o.Least, o.Most)
	}
	return nil
}

// Job is what a worker does: it brings a trial from where it is to a further point and tells the objective there.
type Job struct {
	// Trial counts from 0 in the order in which trials were begun.
	Trial         int           `json:"trial"`
	Configuration Configuration `json:"configuration"`
	// Rung counts from 0; From and To are what the trial has had before and will have had then.
	Rung int     `json:"rung"`
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// Search is a search under way: the same reports in the same order lead to the same jobs. It is not safe for concurrent
// use.
type Search struct {
	space   Space
	options Options
	random  *rand.Rand
	trials  []trial
	ended   [][]int // of each rung the trials that have come to its end, the best first
	bracket bracket
	beyond  int // brackets of Hyperband that are over
}

// trial is one that was begun.
type trial struct {
	configuration Configuration
	first         int // the rung that it began in
	rung          int // the one it is in or was in last
	running       bool
	objective     []float64 // of each rung from the first one on, smaller being better
	ahead         *Ahead    // smaller being better; nil where nothing is predicted of it where it is
}

// bracket is what Halving and Hyperband work on: trials that wait for each other.
type bracket struct {
	first, size int // the rung it begins in, how many trials it begins
	members     []int
	rung        int // the one that all are to come to
	waiting     []int
}

// New begins a search. Errors wrap ErrSpace or ErrOptions.
func New(space Space, options Options) (*Search, error) {
	options = options.WithDefaults()
	if err := errors.Join(space.Check(), options.check()); err != nil {
		return nil, err
	}
	s := &Search{space: space, options: options, random: rand.New(rand.NewPCG(options.Seed, uint64(options.Trials)))}
	s.ended = make([][]int, s.Rungs())
	return s, nil
}

// Rungs is how many rungs there are.
func (s *Search) Rungs() int { return s.options.rungs() }

// reach is what a trial has had at the end of a rung: the last one ends with all there is.
func (s *Search) reach(rung int) float64 {
	if rung < 0 {
		return 0
	}
	reach := s.options.Most / math.Pow(float64(s.options.Eta), float64(s.Rungs()-1-rung))
	if s.options.Whole { // a part in a million is rounding; from 1 on each rung ends beyond the one below
		reach = math.Ceil(reach * (1 - 1e-6))
	}
	return reach
}

// Next is what a worker that is free does; none where it has to wait for reports, or where the search is over.
func (s *Search) Next() (Job, bool) {
	switch s.options.Algorithm {
	case Halving, Hyperband, BOHB:
		return s.nextOfBracket()
	default:
		if i, found := s.promotable(); found {
			s.trials[i].rung++
			return s.start(i), true
		}
		if len(s.trials) < s.options.Trials {
			return s.start(s.begin(0)), true
		}
		return Job{}, false
	}
}

// begin begins a trial in a rung.
func (s *Search) begin(rung int) int {
	configuration := s.space.draw
	if s.options.Algorithm == BOHB {
		configuration = func(r *rand.Rand) Configuration { return s.space.propose(r, s.measured()) }
	}
	s.trials = append(s.trials, trial{configuration: configuration(s.random), first: rung, rung: rung})
	return len(s.trials) - 1
}

func (s *Search) start(i int) Job {
	t := &s.trials[i]
	t.running = true
	job := Job{Trial: i, Configuration: t.configuration, Rung: t.rung, To: s.reach(t.rung)}
	if t.rung > t.first {
		job.From = s.reach(t.rung - 1)
	}
	return job
}

// promotable is a trial that is among the best part of those that ended a rung, and not in the next one yet, nor out by
// its curve; of the highest rung that has one, the best. Where all trials have begun and none is under way, the best of
// the highest rung goes on alone, so that one gets all there is.
func (s *Search) promotable() (trial int, found bool) {
	last := s.Rungs() - 1
	for rung := last - 1; rung >= 0; rung-- {
		for _, i := range s.ended[rung][:len(s.ended[rung])/s.options.Eta] {
			if s.mayGoOn(i, rung) && !s.out(i) {
				return i, true
			}
		}
	}
	if len(s.trials) < s.options.Trials {
		return 0, false
	}
	if s.options.GoOn {
		if i, found := s.nextBest(func(i int) bool { return !s.out(i) }); found {
			return i, true
		}
		return s.nextBest(func(int) bool { return true })
	}
	if s.running() {
		return 0, false
	}
	for rung := last; rung >= 0; rung-- {
		if len(s.ended[rung]) > 0 {
			i := s.ended[rung][0]
			return i, rung < last && !math.IsInf(s.at(i, rung), 1)
		}
	}
	return 0, false
}

// mayGoOn reports whether a trial waits at the end of a rung, and has not diverged.
func (s *Search) mayGoOn(i, rung int) bool {
	t := s.trials[i]
	return !t.running && t.rung == rung && !math.IsInf(s.at(i, rung), 1)
}

// nextBest is the best trial that waits and is wanted of the highest rung that has one; by the rules of before, the one
// that waits at the best place of its rung, as a part of those that came as far, and of equal places that of the higher
// rung.
func (s *Search) nextBest(wanted func(trial int) bool) (trial int, found bool) {
	best := math.Inf(1)
	for rung := s.Rungs() - 2; rung >= 0; rung-- {
		for place, i := range s.ended[rung] {
			if !s.mayGoOn(i, rung) || !wanted(i) {
				continue
			}
			if s.options.Rules >= 1 {
				return i, true
			}
			if part := float64(place) / float64(len(s.ended[rung])); part < best {
				trial, best, found = i, part, true
			}
			break
		}
	}
	return trial, found
}

// running reports whether a job is under way.
func (s *Search) running() bool {
	return slices.ContainsFunc(s.trials, func(t trial) bool { return t.running })
}

// at is the objective of a trial at the end of a rung, smaller being better.
func (s *Search) at(i, rung int) float64 { return s.trials[i].objective[rung-s.trials[i].first] }

// measured are the trials of each rung with their objectives.
func (s *Search) measured() [][]measured {
	rungs := make([][]measured, s.Rungs())
	for rung := range rungs {
		for _, i := range s.ended[rung] {
			rungs[rung] = append(rungs[rung], measured{s.trials[i].configuration, s.at(i, rung)})
		}
	}
	return rungs
}

// Report tells the objective of a trial at the end of its job. What is not a number, or infinite in the wrong
// direction, is a trial that diverged: a result, and the worst. A report of what was not asked for is refused.
func (s *Search) Report(trial int, objective float64) error {
	if trial < 0 || trial >= len(s.trials) || !s.trials[trial].running {
		return fmt.Errorf("report trial %d: it has no job", trial)
	}
	if s.options.Maximise {
		objective = -objective
	}
	if math.IsNaN(objective) {
		objective = math.Inf(1)
	}
	t := &s.trials[trial]
	t.running, t.ahead = false, nil
	t.objective = append(t.objective, objective)
	ended := s.ended[t.rung]
	// Behind all that are as good: who came first stays first.
	at, _ := slices.BinarySearchFunc(ended, objective, func(i int, objective float64) int {
		if s.at(i, t.rung) <= objective {
			return -1
		}
		return 1
	})
	s.ended[t.rung] = slices.Insert(ended, at, trial)
	return nil
}

// Done reports whether no job is under way and none will come.
func (s *Search) Done() bool {
	if s.running() {
		return false
	}
	switch s.options.Algorithm {
	case Halving, Hyperband, BOHB:
		return s.bracketsDone()
	default:
		_, promotable := s.promotable()
		return !promotable && len(s.trials) >= s.options.Trials
	}
}

// Best is the trial whose last objective is the best, of those that came the furthest; not found where none has told a
// number.
func (s *Search) Best() (trial int, objective float64, found bool) {
	best, furthest := math.Inf(1), -1
	for i, t := range s.trials {
		if len(t.objective) == 0 {
			continue
		}
		last := t.objective[len(t.objective)-1]
		rung := t.first + len(t.objective) - 1
		if !math.IsInf(last, 1) && (rung > furthest || rung == furthest && last < best) {
			trial, best, furthest, found = i, last, rung, true
		}
	}
	if s.options.Maximise {
		best = -best
	}
	return trial, best, found
}

// Configuration is that of a trial that was begun.
func (s *Search) Configuration(trial int) Configuration { return s.trials[trial].configuration }

// Begun is how many trials were begun.
func (s *Search) Begun() int { return len(s.trials) }
