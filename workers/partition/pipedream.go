package partition

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/workers/graph"
)

// mostPipeDreamStates bounds the table of PipeDream, whose time grows with the square of the states.
const mostPipeDreamStates = 3000

// PipeDream plans for equal devices as PipeDream does (D. Narayanan et al., PipeDream: Generalized Pipeline Parallelism
// for DNN Training, SOSP 2019, https://doi.org/10.1145/3341301.3359646), by its own cost, which StepTime holds: the
// time between two batches of an asynchronous pipeline.
//
//	A(j, m) = min over k, r of max(A(k, m - r), (T + 4 (r-1) W / (B r)) / r)
//
// j and k are antichains of the layers (ideals, here), T and W the time and the parameters between them, B the
// bandwidth of Links.Between, m and r numbers of devices. With activations the transfers 2 out(k) / (B r) and 2 out(j)
// / (B r) count as well, as its option --activation_compression_ratio 1 does. Memory is not looked at. It is here to be
// compared with, and as a start for [Step].
func PipeDream(p Problem, activations bool) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	stages, cost := in.pipeDream(activations, math.Inf(1))
	if stages == nil {
		return Plan{}, fmt.Errorf("%w: PipeDream's plan needs devices of one kind", ErrProblem)
	}
	x := pipe{instance: in, micro: 1}
	plan, err := x.planOf(stages, "PipeDream")
	if err != nil && !errors.Is(err, ErrUnfit) {
		return plan, err
	}
	plan.StepTime = graph.Seconds(cost)
	return plan, nil
}

// dream is PipeDream's table.
type dream struct {
	*instance
	ideals      *graph.Ideals
	work, size  []float64 // of each ideal: seconds, bytes of parameters
	out         []float64 // bytes of activations that leave it
	best        []float64 // ideal*devices + devices in use - 1
	prior       []int32
	replicas    []int32
	devices     int
	every       int // of so many ideals, one is an end of stages; the last one is, too
	bytesSecond float64
	// Stages that take longer than one of all devices are no part of the best plan; so an ideal has at least so many
	// devices, and leaves at least as many as the others need.
	bound float64
	least []int
	most  []int
}

// pipeDream returns the stages of PipeDream's plan and its cost; none where devices are of several kinds. Where that
// takes more than so many steps, it is the plan of stages that end at some places of one order only.
func (in *instance) pipeDream(activations bool, allowed float64) (stages []stageOf, cost float64) {
	if len(in.kinds) != 1 {
		return nil, 0
	}
	ideals, err := graph.EnumerateIdeals(in.next, mostPipeDreamStates)
	if err != nil {
		order := in.orders()[0].blocks
		if len(order) > mostPipeDreamStates {
			return nil, 0
		}
		ideals = graph.Prefixes(order)
	}
	d := dream{instance: in, ideals: ideals, devices: len(in.p.Devices), every: 1}
	d.bytesSecond = in.p.Links.Between.BytesPerSecond
	d.measure()
	if !d.fill(activations, in.effort.left-allowed) {
		d.ideals, d.every = graph.Prefixes(in.orders()[0].blocks), 1
		d.every = 1 + (d.ideals.Count-1)/d.affordable(allowed*coarseShare)
		d.measure()
		d.fill(activations, math.Inf(-1))
	}
	last := d.ideals.Count - 1
	// Using fewer devices is never worse in a table where a stage may have any number of them; PipeDream uses all.
	left := d.devices
	for at := last; at > 0; {
		cell := at*d.devices + left - 1
		r := int(d.replicas[cell])
		stages = append(stages, stageOf{blocks: d.ideals.Difference(at, int(d.prior[cell])), replicas: r})
		at, left = int(d.prior[cell]), left-r
	}
	slices.Reverse(stages)
	return stages, d.best[last*d.devices+d.devices-1]
}

func (d *dream) measure() {
	n := d.ideals.Count
	d.work, d.size, d.out = make([]float64, n), make([]float64, n), make([]float64, n)
	all := d.sums
	for i := 1; i < n; i++ {
		step := d.ideals.Below[i][0]
		s := all[step.Vertex]
		d.work[i] = d.work[step.Ideal] + s.forward[0] + s.backward[0]
		d.size[i] = d.size[step.Ideal] + s.parameters
		for b := range d.blocks {
			if !d.ideals.Has(i, b) {
				continue
			}
			read := slices.ContainsFunc(d.next[b], func(c int) bool { return d.ideals.Has(i, c) })
			leaves := slices.ContainsFunc(d.next[b], func(c int) bool { return !d.ideals.Has(i, c) })
			if leaves || !read {
				d.out[i] += all[b].activation
			}
		}
	}
}

// over is a time for bytes; none where bytes are free.
func (d *dream) over(bytes float64) float64 {
	if d.bytesSecond == 0 {
		return 0
	}
	return bytes / d.bytesSecond
}

func (d *dream) stageTime(below, above, replicas int) float64 {
	r := float64(replicas)
	return (d.work[above] - d.work[below] + d.over(4*(r-1)*(d.size[above]-d.size[below])/r)) / r
}

// fill fills the table, unless that leaves less than so much of the effort.
func (d *dream) fill(activations bool, least float64) (filled bool) {
	n := d.ideals.Count
	d.best, d.prior, d.replicas = make([]float64, n*d.devices), make([]int32, n*d.devices), make([]int32, n*d.devices)
	d.limit()
	for j := 1; j < n; j++ {
		if !d.ends(j) {
			continue
		}
		if d.effort.left < least {
			return false
		}
		row := j * d.devices
		for m := 1; m <= d.devices; m++ {
			d.best[row+m-1], d.replicas[row+m-1] = d.stageTime(0, j, m), int32(m) //nolint:gosec // at most mostDevices
		}
		for k := 1; k < j; k++ {
			if d.ends(k) && d.most[j] > d.least[k] && d.ideals.Contains(j, k) {
				d.follow(k, j, activations)
			}
		}
	}
	d.effort.spend(dreamSteps * float64(n) * float64(n) / 2)
	return true
}

// ends reports whether stages may end at an ideal.
func (d *dream) ends(ideal int) bool { return ideal%d.every == 0 || ideal == d.ideals.Count-1 }

// affordable is how many ideals may be ends of stages where the table may take so many steps, at least some: each pair
// of them is followed with as many numbers of replicas as there are devices, and each of those fills as many cells.
func (d *dream) affordable(steps float64) int {
	devices := float64(d.devices)
	pair := dreamSteps + devices*(replicaSteps+replicaCellSteps*devices/2)
	return max(fewestEnds, int(math.Sqrt(2*steps/pair)))
}

// coarseShare is the part of what was allowed for all ideals that may be spent on some, of which there are fewestEnds
// at least.
const coarseShare, fewestEnds = 0.3, 16

// What it takes to look at a pair of ideals, to follow it with a number of replicas, and to look at a cell then.
const dreamSteps, replicaSteps, replicaCellSteps = 5, 10, 3

// limit sets the bound, and how many devices the ideals may have.
func (d *dream) limit() {
	last := d.ideals.Count - 1
	d.bound = d.stageTime(0, last, d.devices) * (1 + sameTime)
	d.least, d.most = make([]int, last+1), make([]int, last+1)
	for i := range d.least {
		need := func(work float64) int {
			if d.bound <= 0 {
				return 0
			}
			return int(math.Ceil(work/d.bound - sameTime))
		}
		d.least[i], d.most[i] = need(d.work[i]), d.devices-need(d.work[last]-d.work[i])
	}
}

// follow tries the stage from ideal k to ideal j with every number of replicas.
func (d *dream) follow(k, j int, activations bool) {
	for r := 1; r <= d.most[j]-d.least[k]; r++ {
		time := d.stageTime(k, j, r)
		if activations {
			time = max(time, d.over(2*d.out[k]/float64(r)))
			if j < d.ideals.Count-1 {
				time = max(time, d.over(2*d.out[j]/float64(r)))
			}
		}
		d.effort.spend(replicaSteps)
		if time > d.bound {
			continue
		}
		d.effort.spend(replicaCellSteps * float64(max(0, d.most[j]-max(r, r+d.least[k]-1))))
		for m := max(r+1, r+d.least[k]); m <= d.most[j]; m++ {
			value := max(d.best[k*d.devices+m-r-1], time)
			if cell := j*d.devices + m - 1; value < d.best[cell] {
				d.best[cell], d.prior[cell], d.replicas[cell] = value, int32(k), int32(r) //nolint:gosec // bounded above
			}
		}
	}
}
