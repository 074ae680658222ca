package training

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/partition"
)

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
	if c.best.hosts > 1 {
		names := make([]string, min(c.best.hosts, len(job.Hosts)))
		for i := range names {
			names[i] = job.Hosts[i].Name
		}
		fmt.Fprintf(&b, "; the ranks are on %s", strings.Join(names, ", "))
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
	if c.best.hosts > 1 {
		b.WriteString(" as measured between hosts")
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
