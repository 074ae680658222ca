// Package pipelines simulates pipelines whose runs share a pool, and scores what was expected of each run.
package pipelines

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// World says what is simulated. All is drawn from its seed: the same World gives the same outcomes.
type World struct {
	Seed uint64
	// Pipelines share pools, Together of them each; each has Runs one after another.
	Pipelines, Together, Runs int
	// Cores is how large a pool is.
	Cores int
	// Kinds is of how many models each pipeline's runs are, one drawn for each run and named by a text of its input: the
	// tasks of one take up to kindSpan times as long as those of another. 0 and 1 are no choice, and no text.
	Kinds int
}

// pipeline is what one pipeline does with an input.
type pipeline struct {
	name   string
	stages []stage
	// least is the smallest input of a run, in bytes; the largest is inputSpan times as large.
	least float64
	runs  []run
	kinds []float64 // by what factor the tasks of each model take longer
}

// run is one run of a pipeline as it will be, but for when its tasks get slots.
type run struct {
	id     string
	input  float64
	kind   int           // of the model
	idle   time.Duration // from the end of the run before
	stages [][]sim.Task
}

// stage is what a stage does with the input of a run.
type stage struct {
	name string
	fan  fanOut
	// tasks is how many there are of a constant fan-out, chunk how many bytes are one task of a fan-out by input, and
	// each how many come of every task of the stage before.
	tasks int
	chunk float64
	each  float64
	// A task takes base + scale (input / least)^power seconds, times a factor with a log-normal spread.
	base, scale, power, spread float64
}

type fanOut int

const (
	constant fanOut = iota
	byInput
	byBefore
	gathered // one task, of all
)

// inputSpan is by what factor inputs of a pipeline differ, and mostTasks bounds a stage.
const (
	inputSpan = 100
	kindSpan  = 10
	mostTasks = 128
)

// draw makes the pipelines of one pool.
func (w World) draw(pool int) []pipeline {
	random := rand.New(rand.NewPCG(w.Seed, uint64(pool)))
	logUniform := func(low, high float64) float64 {
		return low * math.Exp(random.Float64()*math.Log(high/low))
	}
	var all []pipeline
	for number := range w.Together {
		p := pipeline{name: fmt.Sprintf("pipeline-%d-%d", pool, number), least: logUniform(1e6, 1e9)}
		for i := range 1 + random.IntN(6) {
			s := stage{
				name: fmt.Sprintf("stage-%d", i+1), fan: fanOut(random.IntN(4)), tasks: 1 + random.IntN(12),
				chunk: p.least * inputSpan / logUniform(4, mostTasks), each: logUniform(0.25, 3),
				base: logUniform(1, 30), scale: logUniform(2, 30), power: 0.4 + 0.7*random.Float64(),
				spread: logUniform(0.05, 0.4),
			}
			p.stages = append(p.stages, s)
		}
		for range w.Kinds {
			p.kinds = append(p.kinds, logUniform(1, kindSpan))
		}
		for number := range w.Runs {
			r := run{
				id: fmt.Sprintf("%s-run-%d", p.name, number+1), input: p.least * logUniform(1, inputSpan),
				idle: time.Duration(random.ExpFloat64() * 120 * float64(time.Second)),
			}
			if w.Kinds > 1 {
				r.kind = random.IntN(w.Kinds)
			}
			r.stages = p.draw(r, random)
			p.runs = append(p.runs, r)
		}
		all = append(all, p)
	}
	return all
}

// draw makes the tasks of a run.
func (p pipeline) draw(r run, random *rand.Rand) [][]sim.Task {
	stages, before := make([][]sim.Task, len(p.stages)), 1
	for i, s := range p.stages {
		n := 1
		switch s.fan {
		case constant:
			n = s.tasks
		case byInput:
			n = int(math.Ceil(r.input / s.chunk))
		case byBefore:
			n = int(math.Round(float64(before) * s.each))
		case gathered:
		}
		n = min(max(n, 1), mostTasks)
		input := r.input / float64(n)
		for task := range n {
			seconds := (s.base + s.scale*math.Pow(input/p.least, s.power)) * math.Exp(s.spread*random.NormFloat64())
			if len(p.kinds) > 1 {
				seconds *= p.kinds[r.kind]
			}
			took := time.Duration(seconds * float64(time.Second))
			stages[i] = append(stages[i], sim.Task{
				Run: r.id, Pipeline: p.name, Stage: predictor.StageID{App: p.name, Build: "b", Name: s.name},
				Name: fmt.Sprintf("%s-%d", s.name, task), Declared: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB},
				Usage: quantity.Usage{
					CPU: took, Wall: took, PeakMemory: 512 * quantity.MiB, Input: quantity.Bytes(input),
				},
				Features: p.features(r), Cost: quantity.USD.Times(seconds * pricePerSecond),
			})
		}
		before = n
	}
	return stages
}

// features are what the input of a run says of its model, which its tasks are told, too; nil where there is no choice.
func (p pipeline) features(r run) map[string]float64 {
	if len(p.kinds) < 2 {
		return nil
	}
	return map[string]float64{usage.CategoryName("model"): usage.Category(fmt.Sprintf("model-%d", r.kind))}
}

// pricePerSecond is what a task costs, in US dollars.
const pricePerSecond = 1e-5
