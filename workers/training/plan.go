package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
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
	ways   []way
}

// by returns the plan of a choice instead.
func (p planned) by(c choice, job Job) planned {
	s := p.setup
	if at := wayOf(p.ways, c.best.count(), c.best.hosts); at >= 0 {
		s = s.of(p.ways[at], len(c.best.parts), c.best.sharding)
	}
	p.choice, p.training, p.layout = c, c.training(s, job), c.best.layout(s, job)
	p.checkpoint = s.checkpoint(c.best)
	if c.best.count() > 1 {
		p.replicate(job)
	}
	p.training.Hosts = job.ranksOn(p.layout)
	return p
}

// surveyedFor looks at those of the devices that parts can have, where they are CUDA devices; it leaves out the others.
func surveyedFor(ctx context.Context, job Job, devices deviceSet) (deviceSet, error) {
	if devices.own {
		return devices, nil
	}
	most := len(devices.all)
	if numbers := partNumbers(job.Partitions, most); job.Replicas != AutoReplicas && job.replicas() == 1 {
		most = numbers[len(numbers)-1] // no device is touched that no part can have
	}
	var err error
	devices.all, devices.seen, err = surveyed(ctx, job.Executor, devices.all[:most], job.Precision)
	return devices, err
}

// plan decides for devices that were looked at.
func plan(ctx context.Context, job Job, devices deviceSet) (planned, error) {
	ways, err := job.ways(devices)
	if err != nil {
		return planned{}, err
	}
	ways, against, err := distributed(ctx, job, ways)
	if err != nil {
		return planned{}, err
	}
	s, p, err := measured(ctx, job, ways)
	if err != nil {
		return planned{}, err
	}
	s.machine.seen = devices.seen
	if of := s.model.statistics; of != "" && job.Replicas == AutoReplicas && len(ways) > 1 {
		against = of + " computes statistics of the samples that pass together, which replicas would not have"
		if ways, err = onThisHost(ways, against); err != nil {
			return planned{}, err
		}
	}
	if s.model.validates { // the first replica looks at the validation data, by messages of one host
		left := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.groups[0].spans != nil })
		if len(left) == 0 {
			return planned{}, refused("parts on several hosts are not evaluated with validation data; train " +
				"replicas, or leave the validation data out")
		}
		ways = left
	}
	if err := job.checkValidation(p.model.validates, p.model.metrics); err != nil {
		return planned{}, err
	}
	if s.loading, err = s.model.loading.within(job); err != nil {
		return planned{}, err
	}
	if err := s.checkParts(job.Partitions); err != nil {
		return planned{}, err
	}
	c, err := s.chooseAmong(ctx, job, ways)
	if err != nil {
		return planned{}, err
	}
	c.against = against
	if ways[0].shared {
		if err := s.besideFewer(ctx, job, devices, &c); err != nil {
			return planned{}, err
		}
	}
	if needs := s.onHost(c.best); p.limit > 0 && needs > p.limit && job.Logger != nil {
		job.Logger.WarnContext(ctx, "the limits of this attempt leave less memory than parts on GPUs take of the host "+
			"while a checkpoint is copied; give the stage more memory", "needed", needs, "left", p.limit)
	}
	made := planned{setup: s, dataset: s.model.dataset, devices: devices, ways: ways}
	return made.by(c, job), nil
}

// measured probes and rehearses the model on all classes of devices that ways have, and looks at the host.
func measured(ctx context.Context, job Job, ways []way) (setup, prober, error) {
	s := setup{
		batch: job.Batch, schedule: job.Schedule, recompute: job.Recompute, state: stateBytes(job.Optimizer),
		copies: copiesBeside,
	}
	if job.CheckpointEvery < 0 {
		s.copies = copiesLast
	}
	p := prober{
		executor: job.Executor, batch: job.Batch / ways[0].replicas(), optimizer: job.Optimizer, precision: job.Precision,
		clip: job.ClipNorm > 0, recompute: job.Recompute == RecomputeAlways, microBatches: job.MicroBatches,
		of: job.Batch, logger: job.Logger, steps: job.Steps, epochs: job.Epochs,
	}
	if left, bounded := limitedMemory(os.DirFS("/")); bounded {
		p.limit = max(left, 1)
	}
	for _, w := range ways {
		for _, k := range w.parts(job) {
			on := w.ranks(k)
			for _, d := range on[:k] {
				beside := slices.DeleteFunc(slices.Clone(on), func(other exec.Device) bool { return classOf(other) != classOf(d) })
				if err := p.class(ctx, d, beside, s.state); err != nil {
					return s, p, err
				}
			}
		}
	}
	s.model, s.least = p.model, p.least
	s.learn()
	s.machine = measureMachine(p.model.base > 0)
	s.machine.written = writeRate(job.Directory)
	if room, known := availableMemory(os.DirFS("/")); known {
		s.host = float64(max(room, 1))
	}
	return s, p, nil
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
	others  []candidate                     // the best of every other number of replicas and parts
	unfit   []predictor.TrainingAlternative // those numbers of parts that do not fit
	fastest float64                         // the shortest step of all, in seconds
	fitting []candidate                     // all that fit, one for each number of replicas, parts and micro-batches
	against string                          // what speaks against replicas that the plan might have chosen
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
	numbers, err := s.microBatchNumbers(job, len(devices))
	t.err = err
	for _, m := range numbers {
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

// tryLevels prices the splits into one number of parts, where replicas divide no more than memory wants.
func (s setup) tryLevels(ctx context.Context, job Job, w way, parts int) (tried, error) {
	var first tried
	for i, level := range w.levels(job, s.model.validates) {
		one, err := s.of(w, parts, level).try(ctx, job, w.groups[0].of(parts))
		if err != nil || one.fits.parts != nil {
			return one, err
		}
		if i == 0 || one.closest.parts != nil && (first.closest.parts == nil || one.closest.better(first.closest)) {
			first = one
		}
	}
	return first, nil
}

// choose prices all numbers of replicas and parts, and takes one.
func (s setup) choose(ctx context.Context, job Job, ways []way) (choice, error) {
	var c choice
	var all []tried
	var fitting []candidate
	var closest candidate
	var nearest deviceSet
	lastly := errors.New("divide the model: it has no operations")
	for _, w := range ways {
		for _, k := range w.parts(job) {
			if k > s.model.pieces() {
				break
			}
			one, err := s.tryLevels(ctx, job, w, k)
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
					closest, nearest = one.closest, w.groups[0]
				}
			default:
				lastly = one.err
			}
		}
	}
	if len(fitting) == 0 {
		if closest.parts == nil {
			return c, lastly
		}
		return c, s.explain(nearest, job.MicroBatches, closest)
	}
	c.best = fewest(fitting)
	c.fastest = slices.MinFunc(fitting, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) }).seconds
	for _, one := range all {
		if one.fits.shape() == c.best.shape() {
			c.by, c.used = one.by, one.used
		} else {
			c.others = append(c.others, one.fits)
		}
	}
	return c, nil
}

// fewest takes the fewest ranks within 3 % of the shortest step, and of as many the faster ones.
func fewest(candidates []candidate) candidate {
	least := slices.MinFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) }).seconds
	var best candidate
	for _, c := range candidates {
		if c.seconds <= least*worthAPart && (best.parts == nil || c.ranks() < best.ranks() ||
			c.ranks() == best.ranks() && c.seconds < best.seconds) {
			best = c
		}
	}
	return best
}

// today prices a past training as this plan would, on these devices; false where it was another model, executor, number
// of replicas, parts or kind of device, or something else was divided among replicas.
func (s setup) today(t predictor.Training, executor string, devices []exec.Device) (candidate, bool) {
	if t.Model != s.model.digest || t.Executor != executor || len(t.Parts) != len(devices) || t.Batch < 1 ||
		t.MicroBatches < 1 || t.MicroBatches > t.Batch || max(t.Replicas, 1) != s.count() ||
		s.count() > 1 && exec.Sharding(t.Sharding) != s.sharding {
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
	s.batch, s.schedule = (t.Batch+s.count()-1)/s.count(), t.Schedule
	made, _ := s.split(devices, t.MicroBatches, unchanged) // what does not fit is priced, too
	return made, made.parts != nil
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
