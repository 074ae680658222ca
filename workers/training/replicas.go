package training

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// Replicas of the parts train together, each on its share of every batch. One of them is planned as a training of its
// own, of its share of the batch on its share of the devices; the others are the same on theirs.

// CheckReplicas refuses numbers of replicas that cannot train together, as far as Batch, MicroBatches, Partitions,
// Replicas, Sharding and CollectiveTimeout tell. The error says what is wrong and, after a semicolon, what to do.
func (j Job) CheckReplicas() error {
	if err := oneOf("sharding", string(j.Sharding), []string{
		string(exec.ShardNone), string(exec.ShardOptimizer), string(exec.ShardGradients), string(exec.ShardParameters),
	}); err != nil {
		return err
	}
	replicas, batch := j.replicas(), cmp.Or(j.Batch, DefaultBatch)
	switch each := max(j.MicroBatches, 1); {
	case j.CollectiveTimeout < 0:
		return fmt.Errorf("the collective timeout is %v; want more than 0, or 0 for ten minutes", j.CollectiveTimeout)
	case replicas == 1 && j.sharded():
		return refused("sharding of %s divides what replicas have, and there is one; choose two replicas or more", j.Sharding)
	case replicas == 1:
		return nil
	case j.Compile:
		return refused("replicas are not compiled; leave the compiler out, or train one replica")
	case batch < replicas*each:
		return refused("%d samples are too few for %d replicas with %d micro-batches each, which take %d at least; choose a "+
			"larger batch, or fewer replicas", batch, replicas, each, replicas*each)
	case j.Partitions > 1 && batch%(replicas*each) != 0:
		return refused("a batch of %d samples does not divide by %d replicas with %d micro-batches each: parts of replicas "+
			"pass micro-batches of one size; choose a batch that does", batch, replicas, each)
	}
	return nil
}

// replicas is how many there are, from 1.
func (j Job) replicas() int { return max(j.Replicas, 1) }

// sharded reports whether replicas divide something.
func (j Job) sharded() bool { return j.Sharding != "" && j.Sharding != exec.ShardNone }

// planReplicas plans one of several replicas for all of them.
func planReplicas(ctx context.Context, job Job, devices deviceSet, from *exec.Checkpoint) (planned, error) {
	replicas := job.replicas()
	distributor, can := job.Executor.(exec.Distributor)
	if !can {
		return planned{}, refused("the executor %s has no replicas; train one", job.Executor.Name())
	}
	err := distributor.Distributes(ctx)
	if err == nil && !devices.own {
		devices.all, devices.seen, err = surveyed(ctx, job.Executor, devices.all, job.Precision)
	}
	if err != nil {
		return planned{}, err
	}
	groups, shared, err := devices.groups(replicas, job.Partitions)
	if err != nil {
		return planned{}, err
	}
	if shared {
		job.Logger.WarnContext(ctx, "there are more ranks than devices, so that ranks share CPU threads", "replicas",
			replicas, "devices", len(devices.all))
	}
	one := job
	one.Batch = job.Batch / replicas
	if from != nil && from.Meta.Batch == job.Batch && max(from.Meta.Replicas, 1) == replicas {
		same := *from
		same.Meta.Batch = one.Batch
		from = &same
	}
	made, err := planToResume(ctx, one, groups[0], from)
	if err != nil {
		return planned{}, err
	}
	if parts := len(made.layout.Parts); parts > 1 && job.Batch%(replicas*made.layout.MicroBatches) != 0 {
		if one.MicroBatches = evenly(job.Batch, replicas, made.layout.MicroBatches); one.MicroBatches == 0 {
			return planned{}, refused("a batch of %d samples does not divide by %d replicas, whose parts pass micro-batches of "+
				"one size; choose a batch that does, or one part", job.Batch, replicas)
		}
		one.Partitions = parts
		if made, err = planToResume(ctx, one, groups[0], nil); err != nil {
			return planned{}, err
		}
	}
	made.choice.fitting = slices.DeleteFunc(made.choice.fitting, func(c candidate) bool {
		return len(c.parts) > 1 && job.Batch%(replicas*c.microBatches) != 0
	})
	made.spread = func(p *planned) { p.replicate(job, groups) }
	made.spread(&made)
	return made, nil
}

// evenly is the largest number of micro-batches, up to most, in which all have as many samples; 0 without one.
func evenly(batch, replicas, most int) int {
	for m := most; m >= 1; m-- {
		if batch%(replicas*m) == 0 {
			return m
		}
	}
	return 0
}

// groups divides devices among replicas, which have as many each. Where there are fewer CPUs than ranks, shared, they
// run wherever there is room.
func (d deviceSet) groups(replicas, parts int) (groups []deviceSet, shared bool, err error) {
	each, parts := len(d.all)/replicas, max(parts, 1)
	if each >= parts {
		for r := range replicas {
			groups = append(groups, deviceSet{all: d.all[r*each : (r+1)*each], own: d.own, seen: d.seen})
		}
		return groups, false, nil
	}
	for _, device := range d.all {
		if device.Kind == exec.CUDA {
			return nil, false, refused("%d replicas of %d parts on %d devices; choose fewer, or name a device for each: those "+
				"of one index share a GPU", replicas, parts, len(d.all))
		}
	}
	for range replicas {
		one := deviceSet{seen: d.seen}
		for i := range parts {
			device := d.all[i%len(d.all)]
			device.ID, device.CPUs, device.Threads = fmt.Sprintf("cpu-%d", i), nil, 1
			one.all = append(one.all, device)
		}
		groups = append(groups, one)
	}
	return groups, true, nil
}

// replicate makes the plan of one replica that of all.
func (p *planned) replicate(job Job, groups []deviceSet) {
	l := &p.layout
	first := groups[0].of(len(l.Parts))
	for i, part := range l.Parts {
		at := slices.IndexFunc(first, func(d exec.Device) bool { return d.ID == part.Device.ID })
		for _, group := range groups[1:] {
			device := group.of(len(l.Parts))[max(at, 0)]
			device.Memory = part.Device.Memory
			l.Parts[i].Replicas = append(l.Parts[i].Replicas, device)
		}
	}
	l.Batch, l.Replicas, l.Sharding = job.Batch, job.replicas(), job.Sharding
	l.Collective = exec.Collective{Schedule: job.Schedule, ClipNorm: job.ClipNorm, Timeout: job.CollectiveTimeout}
	p.training.Batch, p.training.Replicas, p.training.Sharding = job.Batch, job.replicas(), string(job.Sharding)
	p.training.Reason = fmt.Sprintf("%d replicas were asked for, and what they send each other is not priced; of each, %s",
		job.replicas(), p.training.Reason)
}

// held takes the peaks of a pipeline's stages into the parts of a report: of several replicas, the highest.
func held(parts []predictor.TrainingPart, stage int, usage exec.Usage) {
	part := &parts[stage%len(parts)]
	if stage < len(parts) {
		part.PeakBytes = 0
	}
	part.PeakBytes = max(part.PeakBytes, usage.Peak)
}
