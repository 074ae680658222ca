// Package tuning lets plans of tuning and training jobs be compared: the exact frontier, what is planned from profiles
// that are off, and simple policies.
package tuning

import (
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// model is a training in the form of LambdaML (SIGMOD'21): each epoch is rounds of computing, which the workers divide,
// and of exchanging the model through a store.
type model struct {
	name      string
	bytes     float64 // what is exchanged
	epoch     float64 // seconds of an epoch on one core
	exchanges int     // in an epoch
	mostCores float64 // of one worker
}

// models are parameter sets of this evaluator's own: from one that hardly communicates to one that does little else.
var models = []model{
	{"regression", 1e5, 300, 1, 2},
	{"svm", 1e6, 600, 10, 2},
	{"trees", 5e6, 1200, 4, 6},
	{"convolutions", 12e6, 3000, 20, 6},
	{"residual", 90e6, 9000, 10, 6},
}

// account and startSeconds are those of the paper's setting: how many functions may run at once, and how long they take
// to start.
const (
	account      = 3000
	startSeconds = 3.0
)

// allocation is what each trial of a stage is given.
type allocation struct {
	workers int
	memory  float64 // MB
	store   store
}

type store struct {
	name      string
	kind      int
	bandwidth float64 // bytes a second
	latency   float64 // seconds
	hour      float64 // USD for a worker's share of it
}

var stores = []store{{"s3", 0, 65e6, 0.08, 0}, {"cache", 1, 630e6, 0.01, 0.02}}

var (
	workerCounts = []int{1, 2, 4, 7, 10, 15, 20, 35, 50, 75, 100, 200}
	memories     = []float64{1769, 3008, 5308, 7076, 10240} // MB
)

// allocations are those that can be chosen.
func allocations() (all []allocation) {
	for _, workers := range workerCounts {
		for _, memory := range memories {
			for _, store := range stores {
				all = append(all, allocation{workers, memory, store})
			}
		}
	}
	return all
}

// allocationShape is how many workers, memories and stores there are, in the order of allocations.
func allocationShape() []int { return []int{len(workerCounts), len(memories), len(stores)} }

// usual is what LambdaML is run with where nobody chooses: 10 workers of 3,008 MB and S3.
const usualWorkers, usualMemory = 10, 3008

// epochSeconds is how long an epoch takes with an allocation, in seconds.
func (m model) epochSeconds(a allocation) float64 {
	n := float64(a.workers)
	cores := min(a.memory/1769, m.mostCores)
	exchange := float64(3*a.workers-2) * (m.bytes/n/a.store.bandwidth + a.store.latency)
	if a.workers == 1 {
		exchange = 0
	}
	return m.epoch/(n*cores) + float64(m.exchanges)*exchange
}

// price is that of one worker for a second: a function's memory, and its share of the store.
func (a allocation) price() quantity.Money {
	usd := a.memory/1024*0.0000166667 + a.store.hour/3600
	return quantity.Money(math.Round(usd * float64(quantity.USD)))
}

// stage is so many trials of so many epochs each.
type stage struct {
	trials int
	epochs float64
}

// halving is successive halving of so many trials: half of them go on, twice as long, in at most twelve rungs.
func halving(trials int) (stages []stage) {
	for epochs := 1.0; trials >= 1 && len(stages) < 12; trials, epochs = trials/2, 2*epochs {
		stages = append(stages, stage{trials, epochs})
	}
	return stages
}

// training is one training of 60 epochs that may change its allocation after every six.
func training() (stages []stage) {
	for range 10 {
		stages = append(stages, stage{1, 6})
	}
	return stages
}

// epochs are what an epoch takes with each allocation.
func (m model) epochs(all []allocation) (exact []frontier.Estimate) {
	for _, a := range all {
		exact = append(exact, frontier.Estimate{Seconds: m.epochSeconds(a)})
	}
	return exact
}

// choice is what one trial is given, with the Seconds of one epoch.
func (a allocation) choice(epoch frontier.Estimate) frontier.Choice {
	return frontier.Choice{
		Seconds: epoch.Seconds, Doubt: epoch.Spread, Start: startSeconds, Workers: a.workers, AtOnce: account / a.workers,
		Price: a.price(),
	}
}

// option is what a stage takes and costs with an allocation of which this is known.
func (s stage) option(a allocation, epoch frontier.Estimate) frontier.Option {
	choice := a.choice(epoch)
	choice.Seconds *= s.epochs
	option, possible := choice.Option(s.trials)
	if !possible {
		panic(fmt.Sprintf("%d workers of an account of %d", a.workers, account))
	}
	return option
}

// job is what the frontier is of, for what is known of each allocation.
func job(stages []stage, all []allocation, epochs []frontier.Estimate) (job frontier.Job) {
	for _, s := range stages {
		var options []frontier.Option
		for i, a := range all {
			options = append(options, s.option(a, epochs[i]))
		}
		job.Stages = append(job.Stages, options)
	}
	return job
}

// sum is what a plan comes to: the index of an option for each stage.
func sum(stages [][]frontier.Option, plan []int) (seconds float64, cost quantity.Money) {
	for stage, i := range plan {
		seconds += stages[stage][i].Seconds
		cost = cost.Plus(stages[stage][i].Cost)
	}
	return seconds, cost
}
