package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/partition"
)

const (
	// mostMicroBatches bounds the numbers that are tried: powers of two up to it.
	mostMicroBatches = 64
	// everyPart is up to which number of parts each is tried; above it, every power of two is, and all devices: each
	// number of threads takes two probes.
	everyPart = 8
	// worthAPart is by how much faster a step must be for more parts to be chosen: within it, times are not told apart.
	worthAPart = 1.03
)

// Plan looks into the model and decides how it is split: it probes the model on each kind of device, trains it there
// unsplit for a few steps, on up to four devices of the host at once, prices the best split into every number of parts
// by a simulation of its schedule, and takes the fewest parts within 3 % of the shortest step. It does not try them, as
// [Run] does. What it loaded is closed when it returns. A model that cannot be trained unsplit, as it is larger than a
// GPU, is planned by its probes alone, and the log says so. CUDA devices that are not there, or that parts ask too much
// of, are refused first. A model that fits nowhere is an error that wraps [partition.ErrUnfit] and says by how much and
// what would help.
func Plan(ctx context.Context, job Job) (predictor.Training, exec.Layout, error) {
	job, devices, err := job.normalized()
	if err != nil {
		return predictor.Training{}, exec.Layout{}, fmt.Errorf("plan the training: %w", err)
	}
	if devices, err = surveyedFor(ctx, job, devices); err != nil {
		return predictor.Training{}, exec.Layout{}, fmt.Errorf("plan the training: %w", err)
	}
	made, err := plan(ctx, job, devices)
	if err != nil {
		return predictor.Training{}, exec.Layout{}, fmt.Errorf("plan the training: %w", err)
	}
	return made.training, made.layout, nil
}

// planned is a decided training.
type planned struct {
	training predictor.Training
	layout   exec.Layout
	dataset  int
	// checkpoint is how long one holds the training up.
	checkpoint time.Duration
	// wishes are what it was made for, and devices what was there.
	wishes  wishes
	devices deviceSet
	// reused says that it was kept by a checkpoint; setup and choice are what it was chosen by where it was not.
	reused bool
	setup  setup
	choice choice
	// spread makes of the plan of one replica that of all; nil where there is one.
	spread func(*planned)
}

// by returns the plan of a choice instead.
func (p planned) by(c choice, job Job) planned {
	p.choice, p.training, p.layout = c, c.training(p.setup, job), c.best.layout(p.setup, job)
	p.checkpoint = p.setup.checkpoint(c.best)
	if p.spread != nil {
		p.spread(&p)
	}
	return p
}

// surveyedFor looks at those of the devices that parts can have, where they are CUDA devices; it leaves out the others.
func surveyedFor(ctx context.Context, job Job, devices deviceSet) (deviceSet, error) {
	if devices.own {
		return devices, nil
	}
	numbers := partNumbers(job.Partitions, len(devices.all))
	most := numbers[len(numbers)-1] // no device is touched that no part can have
	var err error
	devices.all, devices.seen, err = surveyed(ctx, job.Executor, devices.all[:most], job.Precision)
	return devices, err
}

// plan decides for devices that were looked at.
func plan(ctx context.Context, job Job, devices deviceSet) (planned, error) {
	s := setup{batch: job.Batch, schedule: job.Schedule, recompute: job.Recompute, state: stateBytes(job.Optimizer)}
	s.copies = copiesBeside
	if job.CheckpointEvery < 0 {
		s.copies = copiesLast
	}
	p := prober{
		executor: job.Executor, batch: job.Batch, optimizer: job.Optimizer, precision: job.Precision, clip: job.ClipNorm > 0,
		recompute: job.Recompute == RecomputeAlways, microBatches: job.MicroBatches, logger: job.Logger,
		steps: job.Steps, epochs: job.Epochs,
	}
	if left, bounded := limitedMemory(os.DirFS("/")); bounded {
		p.limit = max(left, 1)
	}
	numbers := partNumbers(job.Partitions, len(devices.all))
	for _, k := range numbers {
		on := devices.of(k)
		for _, d := range on {
			beside := slices.DeleteFunc(slices.Clone(on), func(other exec.Device) bool { return classOf(other) != classOf(d) })
			if err := p.class(ctx, d, beside, s.state); err != nil {
				return planned{}, err
			}
		}
	}
	s.model, s.least = p.model, p.least
	if err := job.checkValidation(p.model.validates, p.model.metrics); err != nil {
		return planned{}, err
	}
	var err error
	if s.loading, err = s.model.loading.within(job); err != nil {
		return planned{}, err
	}
	if err := s.checkParts(job.Partitions); err != nil {
		return planned{}, err
	}
	s.learn()
	s.machine = measureMachine(p.model.base > 0)
	s.machine.seen = devices.seen
	c, err := s.choose(ctx, job, devices, numbers)
	if err != nil {
		return planned{}, err
	}
	if needs := s.onHost(c.best); p.limit > 0 && needs > p.limit && job.Logger != nil {
		job.Logger.WarnContext(ctx, "the limits of this attempt leave less memory than parts on GPUs take of the host "+
			"while a checkpoint is copied; give the stage more memory", "needed", needs, "left", p.limit)
	}
	made := planned{setup: s, dataset: s.model.dataset}
	return made.by(c, job), nil
}

// stateBytes is what an optimizer keeps for each parameter; that of the model, which nobody named, is taken for Adam.
func stateBytes(o exec.Optimizer) float64 {
	switch o.Kind {
	case exec.SGD:
		return 0
	case exec.Momentum:
		return parameterBytes
	default:
		return 2 * parameterBytes
	}
}

// partNumbers are those that are tried.
func partNumbers(wanted, devices int) []int {
	if wanted > 0 {
		return []int{wanted}
	}
	var numbers []int
	for k := 1; k <= devices; k++ {
		if k <= everyPart || k&(k-1) == 0 || k == devices {
			numbers = append(numbers, k)
		}
	}
	return numbers
}

// microBatchNumbers are those that are tried, of so many samples at least.
func microBatchNumbers(wanted, batch, least int) []int {
	if wanted > 0 {
		return []int{wanted}
	}
	var numbers []int
	for m := 1; m <= min(batch/max(least, 1), mostMicroBatches); m *= 2 {
		numbers = append(numbers, m)
	}
	return numbers
}

// checkParts refuses more parts than the model can be cut into.
func (s setup) checkParts(wanted int) error {
	if most := s.model.pieces(); wanted > most {
		return refused("%d parts of a model of %d operations that can be apart; choose at most as many", wanted, most)
	}
	return nil
}

// pieces counts the operations, those that must be together once.
func (m model) pieces() int {
	colours, pieces := map[string]bool{}, 0
	for _, op := range m.shape.Ops {
		if op.Colour == "" {
			pieces++
		} else if !colours[op.Colour] {
			colours[op.Colour] = true
			pieces++
		}
	}
	return pieces
}

// choice is the plan that is taken, and those that are not.
type choice struct {
	best    candidate
	used    int                             // past trainings that corrected it
	by      correction                      // and how
	others  []candidate                     // the best of every other number of parts
	unfit   []predictor.TrainingAlternative // those numbers of parts that do not fit
	fastest float64                         // the shortest step of all, in seconds
	fitting []candidate                     // all that fit, one for each number of parts and of micro-batches
	trials  int                             // layouts that were tried, see trial.go; 0 where all is as it was priced
	priced  float64                         // what the step of the best was priced at before its trial, in seconds
}

// tried is the best split into one number of parts.
type tried struct {
	fits    candidate // without parts where none does
	closest candidate // of those that do not fit; without parts where there are none
	by      correction
	used    int         // past trainings that corrected it
	err     error       // why the last one that is none is none
	fitting []candidate // all that fit, one for each number of micro-batches
}

// try prices the splits into one number of parts.
func (s setup) try(ctx context.Context, job Job, devices []exec.Device) (tried, error) {
	var t tried
	t.by, t.used = corrected(job.Past, func(p predictor.Training) (candidate, bool) {
		return s.today(p, job.Executor.Name(), devices)
	})
	for _, m := range microBatchNumbers(job.MicroBatches, job.Batch, s.least) {
		if ctx.Err() != nil {
			return t, context.Cause(ctx)
		}
		made, err := s.split(devices, m, t.by)
		switch {
		case err != nil:
			t.err = err
			if made.parts != nil && (t.closest.parts == nil || made.better(t.closest)) {
				t.closest = made
			}
		default:
			t.fitting = append(t.fitting, made)
			if t.fits.parts == nil || made.seconds < t.fits.seconds {
				t.fits = made
			}
		}
	}
	return t, nil
}

// choose prices all numbers of parts and takes one.
func (s setup) choose(ctx context.Context, job Job, devices deviceSet, numbers []int) (choice, error) {
	var c choice
	var all []tried
	var fitting []candidate
	var closest candidate
	lastly := errors.New("divide the model: it has no operations")
	for _, k := range numbers {
		if k > s.model.pieces() {
			break
		}
		one, err := s.try(ctx, job, devices.of(k))
		if err != nil {
			return c, err
		}
		switch {
		case one.fits.parts != nil:
			all, fitting = append(all, one), append(fitting, one.fits)
			c.fitting = append(c.fitting, one.fitting...)
		case one.closest.parts != nil:
			excess, device := one.closest.over()
			c.unfit = append(c.unfit, one.closest.alternative(
				fmt.Sprintf("%s is short of %v", device, quantity.Bytes(math.Ceil(excess)))))
			if closest.parts == nil || one.closest.better(closest) {
				closest = one.closest
			}
		default:
			lastly = one.err
		}
	}
	if len(fitting) == 0 {
		if closest.parts == nil {
			return c, lastly
		}
		return c, s.explain(devices, numbers[min(len(numbers), s.model.pieces())-1], job.MicroBatches, closest)
	}
	c.best = fewest(fitting)
	c.fastest = slices.MinFunc(fitting, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) }).seconds
	for _, one := range all {
		if len(one.fits.parts) == len(c.best.parts) {
			c.by, c.used = one.by, one.used
		} else {
			c.others = append(c.others, one.fits)
		}
	}
	return c, nil
}

// fewest takes the fewest parts within 3 % of the shortest step.
func fewest(candidates []candidate) candidate {
	least := slices.MinFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) }).seconds
	var best candidate
	for _, c := range candidates {
		if c.seconds <= least*worthAPart && (best.parts == nil || len(c.parts) < len(best.parts)) {
			best = c
		}
	}
	return best
}

// today prices a past training as this plan would, on these devices; false where it was another model, executor, number
// of parts or kind of device, or of replicas: their steps hold what they send each other, and a share of the batch.
func (s setup) today(t predictor.Training, executor string, devices []exec.Device) (candidate, bool) {
	if t.Model != s.model.digest || t.Executor != executor || len(t.Parts) != len(devices) || t.Batch < 1 ||
		t.MicroBatches < 1 || t.MicroBatches > t.Batch || t.Replicas > 1 {
		return candidate{}, false
	}
	if t.Schedule != OneForwardOneBackward && t.Schedule != GPipe {
		return candidate{}, false
	}
	var was, is []string
	for i, p := range t.Parts {
		was = append(was, classOf(exec.Device{Kind: p.Kind, Class: p.Class, Threads: p.Threads}))
		is = append(is, classOf(devices[i]))
	}
	slices.Sort(was)
	slices.Sort(is)
	if !slices.Equal(was, is) {
		return candidate{}, false
	}
	s.batch, s.schedule = t.Batch, t.Schedule
	made, _ := s.split(devices, t.MicroBatches, unchanged) // what does not fit is priced, too
	return made, made.parts != nil
}

// explain is the error of a model that fits nowhere; k is the largest number of parts.
func (s setup) explain(devices deviceSet, k, microBatches int, closest candidate) error {
	excess, device := closest.over()
	on := devices.of(k)
	p := s.problem(on, closest.microBatches)
	for i, d := range on {
		if room := s.capacity(d); !math.IsInf(room, 1) {
			p.Devices[i].Memory = quantity.Bytes(room)
		}
	}
	var helps []string
	if feasibility, err := partition.Explain(p); err == nil {
		for _, r := range feasibility.Remedies {
			changed := r.Problem
			if changed.Memory.ZeRO > 0 || changed.Memory.Offload || changed.MicroBatches > s.batch {
				continue // no executor does that
			}
			if changed.MicroBatches != p.MicroBatches && microBatches == 0 {
				continue // they were tried
			}
			helps = append(helps, r.Change)
		}
	}
	if s.recompute == RecomputeNever && !slices.ContainsFunc(helps, func(h string) bool {
		return strings.HasPrefix(h, "compute")
	}) {
		helps = append(helps, "recomputed activations may")
	}
	if len(helps) == 0 {
		helps = []string{"a smaller batch may", "an optimizer with less state may", "more memory does"}
	}
	return fmt.Errorf("the model %w: with %d parts and %d micro-batches, which comes closest, %s holds %v too much; "+
		"what helps: %s",
		partition.ErrUnfit, len(closest.parts), closest.microBatches, device, quantity.Bytes(math.Ceil(excess)),
		strings.Join(helps, ", or "))
}

// alternative describes a plan that is not taken.
func (c candidate) alternative(reason string) predictor.TrainingAlternative {
	return predictor.TrainingAlternative{
		Partitions: len(c.parts), MicroBatches: c.microBatches, StepSeconds: c.seconds,
		PeakBytes: quantity.Bytes(math.Ceil(c.peak())), Reason: reason,
	}
}

// training is the plan in the words of a report.
func (c choice) training(s setup, job Job) predictor.Training {
	t := predictor.Training{
		Model: s.model.digest, Executor: job.Executor.Name(), Schedule: s.schedule, Batch: s.batch,
		MicroBatches:         c.best.microBatches,
		PredictedStepSeconds: c.best.seconds, Alternatives: c.unfit, Reason: c.reason(job),
		FLOPs: bothPasses * s.model.flops * float64(s.batch),
	}
	t.Reason += s.loading.reason(s.dataWorkers(c.best.parts[0].device, len(c.best.parts)), s.batch)
	for _, p := range c.best.parts {
		t.ModelBytes += quantity.Bytes(math.Ceil(p.parameters))
		kind := cmp.Or(p.device.Kind, exec.CPU)
		first, last := s.model.shape.Ops[p.ops[0]], s.model.shape.Ops[p.ops[len(p.ops)-1]]
		one := predictor.TrainingPart{
			Device: p.device.ID, Kind: kind, Class: p.device.Class, Threads: p.device.Threads, Ops: len(p.ops),
			First: cmp.Or(first.Name, first.ID), Last: cmp.Or(last.Name, last.ID), Recompute: p.recompute,
			PredictedPeakBytes: quantity.Bytes(math.Ceil(p.peak)), PredictedBusySeconds: p.busy,
			PeakFLOPS: s.model.peaks[classOf(p.device)],
		}
		if !math.IsInf(p.capacity, 1) {
			one.CapacityBytes = quantity.Bytes(p.capacity)
		}
		t.Parts = append(t.Parts, one)
	}
	for _, o := range c.others {
		reason := fmt.Sprintf("a step takes %s more", percent(o.seconds/c.best.seconds-1))
		if o.seconds <= c.best.seconds {
			reason = fmt.Sprintf("a step takes %s less, which is not worth %d more parts", percent(1-o.seconds/c.best.seconds),
				len(o.parts)-len(c.best.parts))
		}
		t.Alternatives = append(t.Alternatives, o.alternative(reason))
	}
	slices.SortStableFunc(t.Alternatives, func(a, b predictor.TrainingAlternative) int {
		return cmp.Compare(a.Partitions, b.Partitions)
	})
	return t
}

// bothPasses is by how much the products of both passes are more than those of the forward pass: the backward pass has
// two for each of it, one for the gradient of each factor. What is computed again is no use of the device.
// (Chowdhery et al., "PaLM", appendix B, https://arxiv.org/abs/2204.02311.)
const bothPasses = 3

// percent writes a share for people.
func percent(share float64) string {
	switch {
	case share >= 0.095:
		return fmt.Sprintf("%.0f %%", 100*share)
	case share < 0.0005:
		return "0 %"
	default:
		return fmt.Sprintf("%.1f %%", 100*share)
	}
}

// reason says why this plan.
func (c choice) reason(job Job) string {
	var b strings.Builder
	k := len(c.best.parts)
	switch {
	case job.Partitions > 0:
		fmt.Fprintf(&b, "%d parts were asked for", k)
		if k == 1 {
			b.Reset()
			b.WriteString("one part was asked for")
		}
	case len(c.others) == 0 && len(c.unfit) > 0:
		fmt.Fprintf(&b, "%d parts are the only number that fits", k)
	case len(c.others) == 0:
		b.WriteString("there is one device, or one operation")
	case c.best.seconds > c.fastest:
		fmt.Fprintf(&b, "%d parts are the fewest within 3 %% of the shortest step", k)
	case k == 1:
		b.WriteString("the unsplit model has the shortest step")
	default:
		fmt.Fprintf(&b, "%d parts have the shortest step", k)
	}
	if job.MicroBatches == 0 && c.best.microBatches > 1 {
		fmt.Fprintf(&b, "; %d micro-batches balance the wait for the first against the cost of small ones",
			c.best.microBatches)
	}
	if k > 1 {
		fmt.Fprintf(&b, "; parts wait for %.0f %% of it", 100*c.best.bubble)
	}
	if n := recomputing(c.best); n > 0 {
		why := "as their memory would not do otherwise"
		if job.Recompute == RecomputeAlways {
			why = "as was asked for"
		}
		fmt.Fprintf(&b, "; %d of them compute activations again, %s", n, why)
	}
	if c.trials > 0 {
		fmt.Fprintf(&b, "; tried%s: a step took %s where %s was priced", among(c.trials), brief(c.best.seconds),
			brief(c.priced))
	}
	if c.used > 0 {
		fmt.Fprintf(&b, "; corrected by %d past trainings: time times %.2f, memory times %.2f", c.used, c.by.time, c.by.peak)
	}
	return b.String()
}

// among says how many layouts were tried.
func among(trials int) string {
	if trials == 1 {
		return ""
	}
	return fmt.Sprintf(" as one of %d layouts", trials)
}

// seconds is a time of so many.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func recomputing(c candidate) int {
	n := 0
	for _, p := range c.parts {
		if p.recompute {
			n++
		}
	}
	return n
}

// layout is what the executor loads, without its parts, in so many micro-batches and with so many processes that fetch
// data.
func (j Job) layout(microBatches, dataWorkers int) exec.Layout {
	return exec.Layout{
		Batch: j.Batch, MicroBatches: microBatches, Seed: j.Seed, Precision: j.Precision, Compile: j.Compile,
		Optimizer: j.Optimizer, DataTimeout: j.DataTimeout, DataWorkers: dataWorkers,
		Steps: j.Steps, Epochs: j.Epochs,
	}
}

// layout is what the executor loads.
func (c candidate) layout(s setup, job Job) exec.Layout {
	l := job.layout(c.microBatches, s.dataWorkers(c.parts[0].device, len(c.parts)))
	for _, p := range c.parts {
		one := exec.Part{Device: p.device, InFlight: p.flight, Recompute: p.recompute}
		if len(c.parts) > 1 {
			for _, op := range p.ops {
				one.Ops = append(one.Ops, s.model.shape.Ops[op].ID)
			}
		}
		l.Parts = append(l.Parts, one)
	}
	return l
}
