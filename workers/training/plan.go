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
	"github.com/spillway-ml/spillway/predictor/words"
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
	ways   []way
}

// by returns the plan of a choice instead.
func (p planned) by(c choice, job Job) planned {
	s := p.setup
	if at := slices.IndexFunc(p.ways, func(w way) bool { return w.replicas() == c.best.count() }); at >= 0 {
		s = s.of(p.ways[at], len(c.best.parts), c.best.sharding)
	}
	p.choice, p.training, p.layout = c, c.training(s, job), c.best.layout(s, job)
	p.checkpoint = s.checkpoint(c.best)
	if c.best.count() > 1 {
		p.replicate(job)
	}
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
		ways, against = ways[:1], of+" computes statistics of the samples that pass together, which replicas would not have"
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

// explain is the error of a model that fits nowhere; devices are those of a replica of the candidate that comes
// closest.
func (s setup) explain(devices deviceSet, microBatches int, closest candidate) error {
	excess, device := closest.over()
	if device == theHost {
		return fmt.Errorf("the model %w: %d replicas take %v more than the %v that the host can give to processes; choose "+
			"fewer replicas, or a smaller batch", partition.ErrUnfit, closest.count(), quantity.Bytes(math.Ceil(excess)),
			quantity.Bytes(s.host))
	}
	on := devices.of(len(closest.parts))
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
	replicas := 0
	if c.count() > 1 {
		replicas = c.count()
	}
	return predictor.TrainingAlternative{
		Replicas: replicas, Partitions: len(c.parts), MicroBatches: c.microBatches, StepSeconds: c.seconds,
		PeakBytes: quantity.Bytes(math.Ceil(c.peak())), Reason: reason,
	}
}

// training is the plan in the words of a report.
func (c choice) training(s setup, job Job) predictor.Training {
	t := predictor.Training{
		Model: s.model.digest, Executor: job.Executor.Name(), Schedule: s.schedule, Batch: s.batch,
		MicroBatches:         c.best.microBatches,
		PredictedStepSeconds: c.best.seconds, Alternatives: c.unfit, Reason: c.reason(job),
		FLOPs: bothPasses * s.model.flops * float64(job.Batch),
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
		t.Alternatives = append(t.Alternatives, o.alternative(c.whyNot(o, job)))
	}
	if len(t.Alternatives) > mostAlternatives {
		slices.SortStableFunc(t.Alternatives, func(a, b predictor.TrainingAlternative) int {
			return cmp.Compare(a.StepSeconds, b.StepSeconds)
		})
		t.Alternatives = t.Alternatives[:mostAlternatives]
	}
	slices.SortStableFunc(t.Alternatives, func(a, b predictor.TrainingAlternative) int {
		return cmp.Or(cmp.Compare(a.Replicas, b.Replicas), cmp.Compare(a.Partitions, b.Partitions))
	})
	return t
}

// whyNot says why another candidate is not taken.
func (c choice) whyNot(o candidate, job Job) string {
	less := percent(1 - o.seconds/c.best.seconds)
	switch more := fmt.Sprintf("a step takes %s more", percent(o.seconds/c.best.seconds-1)); {
	case o.seconds <= c.best.seconds && job.replicas() > 1 && o.count() != c.best.count():
		return fmt.Sprintf("a step takes %s less, and %d replicas were asked for", less, c.best.count())
	case o.seconds <= c.best.seconds:
		return fmt.Sprintf("a step takes %s less, which is not worth %s", less, moreOf(o, c.best))
	case o.count() > 1 && c.best.count() == 1 && o.exchanges() == 0:
		return more + ", and what replicas exchange"
	default:
		return more
	}
}

// mostAlternatives bounds those that a report tells: the fastest.
const mostAlternatives = 32

// moreOf says what one candidate has more of than another.
func moreOf(one, than candidate) string {
	if one.count() == than.count() {
		return fmt.Sprintf("%d more parts", len(one.parts)-len(than.parts))
	}
	return fmt.Sprintf("%d more processes", one.ranks()-than.ranks())
}

// exchanges is how long of a step the replicas of a candidate exchange at most, beyond what is hidden.
func (c candidate) exchanges() float64 {
	most := 0.0
	for _, p := range c.parts {
		most = max(most, p.exchange)
	}
	return most
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
	case c.best.count() > 1:
		c.reasonOfReplicas(&b, job)
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
	if job.Replicas == AutoReplicas && c.best.count() == 1 {
		c.reasonAgainstReplicas(&b)
	}
	if c.trials > 0 {
		fmt.Fprintf(&b, "; tried%s: a step took %s where %s was priced", amongLayouts(c.trials), brief(c.best.seconds),
			brief(c.priced))
	}
	if c.used > 0 {
		fmt.Fprintf(&b, "; corrected by %s: time times %.2f, memory times %.2f", words.Count(c.used, "past training"),
			c.by.time, c.by.peak)
	}
	return b.String()
}

// reasonOfReplicas says why there are several.
func (c choice) reasonOfReplicas(b *strings.Builder, job Job) {
	n := c.best.count()
	switch {
	case job.resumed:
		fmt.Fprintf(b, "%d replicas of %s, as the checkpoint was made by", n, parts(len(c.best.parts)))
	case job.Replicas == AutoReplicas:
		fmt.Fprintf(b, "%d replicas of %s have the shortest step", n, parts(len(c.best.parts)))
	default:
		fmt.Fprintf(b, "%d replicas were asked for, of %s each", n, parts(len(c.best.parts)))
	}
	if c.trials == 0 || c.best.exchanges() > 0 {
		fmt.Fprintf(b, "; what they exchange is priced at %s of it", brief(c.best.exchanges()))
	}
	if c.best.sharding != "" && c.best.sharding != exec.ShardNone && job.Sharding == "" {
		fmt.Fprintf(b, "; they divide the %s, as their memory would not do otherwise", c.best.sharding)
	}
}

// reasonAgainstReplicas says why the plan has chosen none.
func (c choice) reasonAgainstReplicas(b *strings.Builder) {
	if c.against != "" {
		fmt.Fprintf(b, "; no replicas: %s", c.against)
		return
	}
	var best candidate
	for _, o := range c.others {
		if o.count() > 1 && (best.parts == nil || o.seconds < best.seconds) {
			best = o
		}
	}
	if best.parts != nil {
		fmt.Fprintf(b, "; %d replicas of %s would take %s", best.count(), parts(len(best.parts)), brief(best.seconds))
		if best.exchanges() == 0 {
			b.WriteString(" and what they exchange")
		}
	}
}

// parts is a number of them.
func parts(n int) string {
	if n == 1 {
		return "one part"
	}
	return fmt.Sprintf("%d parts", n)
}

// amongLayouts says how many layouts were tried.
func amongLayouts(trials int) string {
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
