package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// Replicas of the parts train together, each on its share of every batch. One of them is planned, on its share of the
// devices; the others are the same on theirs.

// AutoReplicas is [Job.Replicas] of a training whose plan chooses how many replicas there are.
const AutoReplicas = -1

// mostReplicas is more than a host has devices, and as many as a report of a training may have.
const mostReplicas = 1000

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
	case j.Replicas == AutoReplicas:
		return nil
	case replicas == 1 && j.sharded():
		return refused("sharding of %s divides what replicas have, and there is one; choose two replicas or more", j.Sharding)
	case replicas == 1:
		return nil
	case j.Compile && j.sharded():
		return refused("replicas that divide what the %s take are not compiled; leave the compiler or the sharding out",
			j.Sharding)
	case batch < replicas*each:
		return refused("%d samples are too few for %d replicas with %d micro-batches each, which take %d at least; choose a "+
			"larger batch, or fewer replicas", batch, replicas, each, replicas*each)
	case j.Partitions > 1 && batch%(replicas*each) != 0:
		return refused("a batch of %d samples does not divide by %d replicas with %d micro-batches each: parts of replicas "+
			"pass micro-batches of one size; choose a batch that does", batch, replicas, each)
	}
	return nil
}

// replicas is how many were asked for, from 1; 1 where the plan chooses.
func (j Job) replicas() int { return max(j.Replicas, 1) }

// sharded reports whether replicas are to divide something.
func (j Job) sharded() bool { return j.Sharding != "" && j.Sharding != exec.ShardNone }

// way is a number of replicas and the devices of each.
type way struct {
	groups []deviceSet
	// shared says that there are more ranks than CPUs, so that they are pinned nowhere; processors is how many there are
	// for all ranks, where they are CPUs.
	shared     bool
	processors int
	// hosts is how many of the gang's it uses; 0 is this one.
	hosts int
}

func (w way) replicas() int { return len(w.groups) }

// parts are the numbers of parts that are tried: of several replicas, that the plan chooses, those that are powers of
// two, as each takes a while.
func (w way) parts(job Job) []int {
	numbers := partNumbers(job.Partitions, len(w.groups[0].all))
	if w.groups[0].spans != nil {
		numbers = slices.DeleteFunc(numbers, func(k int) bool { return k%w.hosts != 0 })
	}
	if w.replicas() == 1 || job.Replicas != AutoReplicas || job.Partitions > 0 {
		return numbers
	}
	return slices.DeleteFunc(numbers, func(k int) bool { return k&(k-1) != 0 })
}

// ranks are the devices of all replicas of so many parts.
func (w way) ranks(parts int) []exec.Device {
	var all []exec.Device
	for _, group := range w.groups {
		all = append(all, group.of(parts)...)
	}
	return all
}

// ways are the numbers of replicas that are planned: the one that was asked for, or those that are tried of parts, as
// far as there are as many devices alike for each, and samples. It is a function of its arguments alone.
func (j Job) ways(devices deviceSet) ([]way, error) {
	numbers := []int{j.replicas()}
	if j.Replicas == AutoReplicas && !j.Compile {
		numbers = partNumbers(0, len(devices.all))
	}
	var all []way
	for _, r := range numbers {
		if r > 1 && j.Replicas == AutoReplicas &&
			(len(devices.all)/r < max(j.Partitions, 1) || j.Batch < r*max(j.MicroBatches, 1)) {
			continue
		}
		groups, shared, err := devices.groups(r, j.Partitions)
		if err != nil {
			return nil, err
		}
		w := way{groups: groups, shared: shared, processors: len(devices.all)}
		if r > 1 && j.Replicas == AutoReplicas && !w.alike() {
			continue
		}
		all = append(all, w)
	}
	if len(j.Hosts) < 2 || j.Compile {
		return all, nil
	}
	across, err := j.acrossHosts(devices)
	if err != nil {
		return nil, err
	}
	if j.EveryHost {
		return across, nil
	}
	return append(all, across...), nil
}

// alike reports whether all replicas have devices of one class and size, so that a plan of one is that of all.
func (w way) alike() bool {
	same := func(a, b exec.Device) bool { return classOf(a) == classOf(b) && a.Memory == b.Memory }
	return !slices.ContainsFunc(w.groups[1:], func(g deviceSet) bool {
		return !slices.EqualFunc(g.all, w.groups[0].all, same)
	})
}

// of is the setup of so many replicas, where each has its share of the batch, divides so much, and exchanges what that
// takes. Those of one part are what all others are measured by.
func (s setup) of(w way, parts int, sharding exec.Sharding) setup {
	replicas := w.replicas()
	if s.hosts = w.hosts; s.hosts > 1 {
		s.exchange = s.across
	}
	if s.hosts > 1 && replicas < 2 { // whole steps, and messages between hosts
		s.machine.call, s.exchange.Step = 0, s.exchange.Step+s.machine.call
		return s
	}
	if replicas < 2 {
		return s
	}
	ranks, over := w.ranks(parts), 1.0
	if w.shared {
		over = float64(len(ranks)) / float64(min(s.exchange.Ranks, len(ranks)))
		if s.exchange.Ranks <= w.processors {
			over = float64(len(ranks)) / float64(w.processors)
		}
	}
	s.batch = (s.batch + replicas - 1) / replicas // the largest share
	s.replicas, s.sharding, s.exchange = replicas, sharding, among(s.exchange, replicas, over)
	s.beside, s.here = 0, 0
	for r := range replicas {
		if shares(ranks[0], ranks[r*parts]) {
			s.beside++
		}
		if ranks[r*parts].Host == ranks[0].Host {
			s.here++
		}
	}
	s.machine.call, s.exchange.Step = 0, s.exchange.Step+s.machine.call // ranks do whole steps
	return s
}

// levels are what replicas may divide, less first: where nobody says, more than nothing where memory wants it.
func (w way) levels(job Job, validates bool) []exec.Sharding {
	switch {
	case w.replicas() < 2:
		return []exec.Sharding{""}
	case job.Sharding != "":
		return []exec.Sharding{job.Sharding}
	case validates: // sharded models are not evaluated
		return []exec.Sharding{exec.ShardNone}
	}
	return []exec.Sharding{exec.ShardNone, exec.ShardOptimizer, exec.ShardGradients, exec.ShardParameters}
}

// microBatchNumbers are those that are tried for a number of parts. Parts of replicas pass micro-batches of one size,
// and replicas that divide something are traced for one.
func (s setup) microBatchNumbers(job Job, parts int) ([]int, error) {
	replicas := s.count()
	if replicas == 1 {
		return microBatchNumbers(job.MicroBatches, job.Batch, s.least), nil
	}
	share := job.Batch / replicas
	numbers := slices.DeleteFunc(microBatchNumbers(job.MicroBatches, share, s.least), func(m int) bool {
		return m > share || (parts > 1 || s.divides()) && job.Batch%(replicas*m) != 0
	})
	if len(numbers) == 0 {
		return nil, refused("a batch of %d samples does not divide by %d replicas, whose parts pass micro-batches of one "+
			"size; choose a batch that does, or one part", job.Batch, replicas)
	}
	return numbers, nil
}

// distributed leaves those ways that the executor can train, where the plan chooses, and refuses the one that was asked
// for where it cannot. why says what speaks against replicas; empty where nothing does.
func distributed(ctx context.Context, job Job, ways []way) (left []way, why string, err error) {
	if !slices.ContainsFunc(ways, func(w way) bool { return w.replicas() > 1 || w.hosts > 1 }) {
		if job.Replicas == AutoReplicas && job.Compile {
			return ways, "of what is compiled there are replicas only where they are asked for", nil
		}
		return ways, "", nil
	}
	distributor, can := job.Executor.(exec.Distributor)
	err = refused("the executor %s has no replicas; train one", job.Executor.Name())
	if can {
		err = distributor.Distributes(ctx)
	}
	switch {
	case err == nil || ctx.Err() != nil || job.Replicas != AutoReplicas:
		return ways, "", err
	default:
		why = "replicas cannot be trained here"
		left, err = onThisHost(ways, why)
		return left, why, err
	}
}

// mostExchanging bounds the ranks that what replicas exchange is measured among.
const mostExchanging = 8

// exchanging measures what replicas send each other.
func (s *setup) exchanging(ctx context.Context, job Job, w way) error {
	exchanger, can := job.Executor.(exec.Exchanger)
	if !can {
		return nil
	}
	var devices []exec.Device
	if spans := w.groups[0].spans; spans != nil { // of a replica that is on several hosts no single device can be had
		devices = []exec.Device{spans[0].of(1)[0], spans[1].of(1)[0]}
	} else {
		devices = make([]exec.Device, min(w.replicas(), mostExchanging))
		for r := range devices { // of more, some of each host
			devices[r] = w.groups[r*w.replicas()/len(devices)].of(1)[0]
		}
	}
	found, err := exchanger.Exchange(ctx, devices)
	if err != nil {
		return err
	}
	if w.hosts > 1 {
		s.across = found
	} else {
		s.exchange = found
	}
	if job.Logger != nil {
		job.Logger.DebugContext(ctx, "what replicas exchange was measured", "ranks", found.Ranks, "hosts",
			max(w.hosts, 1), "all_reduce_seconds",
			found.AllReduce.Fixed, "bytes_per_second", inverse(found.AllReduce.EachByte), "step_seconds", found.Step, "hidden",
			found.Hidden, "process_bytes", int64(found.Process))
	}
	return nil
}

// exchangingAll measures what ranks send each other on this host and between hosts, as far as some way has them do so:
// among those of the first such way.
func (s *setup) exchangingAll(ctx context.Context, job Job, ways []way) error {
	for _, between := range []bool{false, true} {
		at := slices.IndexFunc(ways, func(w way) bool {
			return (w.hosts > 1) == between && (w.replicas() > 1 || w.hosts > 1)
		})
		if at < 0 {
			continue
		}
		if err := s.exchanging(ctx, job, ways[at]); err != nil {
			return err
		}
	}
	return nil
}

// chooseAmong prices all ways and takes one. What replicas exchange is measured where they would be worth it if they
// exchanged nothing, or were asked for.
func (s *setup) chooseAmong(ctx context.Context, job Job, ways []way) (choice, error) {
	if job.replicas() > 1 || job.EveryHost && len(job.Hosts) > 1 {
		if err := s.exchangingAll(ctx, job, ways); err != nil {
			return choice{}, err
		}
		return s.choose(ctx, job, ways)
	}
	c, err := s.choose(ctx, job, ways)
	if err != nil || c.best.count() == 1 && c.best.hosts < 2 {
		c.fitting = slices.DeleteFunc(c.fitting, func(c candidate) bool { return c.count() > 1 || c.hosts > 1 })
		return c, err
	}
	at := wayOf(ways, c.best.count(), c.best.hosts)
	measured := []way{ways[at]}
	if len(job.Hosts) > 1 { // between hosts it is another matter than on one
		measured = append(measured, ways...)
	}
	if err := s.exchangingAll(ctx, job, measured); err != nil {
		if ctx.Err() != nil {
			return choice{}, context.Cause(ctx)
		}
		if job.Logger != nil {
			job.Logger.WarnContext(ctx, "what replicas exchange cannot be measured, so that there are none", "error", err)
		}
		if ways, err = onThisHost(ways, err.Error()); err != nil {
			return choice{}, err
		}
	}
	return s.choose(ctx, job, ways)
}

// besideFewer prices as many replicas of as many parts as there are CPUs for, beside more that were asked for, and says
// what these cost: they are no error, as trainings of many devices are tried on few.
func (s setup) besideFewer(ctx context.Context, job Job, devices deviceSet, c *choice) error {
	k := len(c.best.parts)
	fewer := len(devices.all) / k
	if fewer < 1 || fewer >= c.best.count() || job.Batch < fewer {
		return nil
	}
	one := job
	one.Replicas, one.Partitions, one.Hosts = fewer, k, nil
	ways, err := one.ways(deviceSet{all: devices.all, seen: devices.seen}) // of a thread each, as they were measured
	if err != nil {
		return err
	}
	other, err := s.tryLevels(ctx, one, ways[0], k)
	if err != nil {
		return err
	}
	if other.fits.parts == nil {
		return nil
	}
	c.others = append(c.others, other.fits)
	if job.Logger != nil && other.fits.seconds < c.best.seconds {
		job.Logger.WarnContext(ctx, "there are more ranks than CPUs, so that they wait for each other; choose fewer replicas",
			"replicas", c.best.count(), "parts", k, "cpus", len(devices.all), "step", seconds(c.best.seconds).String(),
			"replicas_with_cpus_of_their_own", fewer, "step_of_those", seconds(other.fits.seconds).String())
	}
	return nil
}

// groups divides devices among replicas, which have as many each. Where there are fewer CPUs than ranks, shared, they
// run wherever there is room.
func (d deviceSet) groups(replicas, parts int) (groups []deviceSet, shared bool, err error) {
	if replicas == 1 {
		return []deviceSet{d}, false, nil
	}
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
func (p *planned) replicate(job Job) {
	replicas := p.choice.best.count()
	at := wayOf(p.ways, replicas, p.choice.best.hosts)
	p.layout = replicated(p.layout, job, p.ways[at], p.choice.best.sharding)
	p.training.Batch, p.training.Replicas, p.training.Sharding = job.Batch, replicas, string(p.choice.best.sharding)
}

// replicated is the layout of all replicas by that of the first.
func replicated(l exec.Layout, job Job, w way, sharding exec.Sharding) exec.Layout {
	first := w.groups[0].of(len(l.Parts))
	for i, part := range l.Parts {
		at := slices.IndexFunc(first, func(d exec.Device) bool { return d.ID == part.Device.ID })
		l.Parts[i].Replicas = nil
		for _, group := range w.groups[1:] {
			device := group.of(len(l.Parts))[max(at, 0)]
			device.Memory = part.Device.Memory
			l.Parts[i].Replicas = append(l.Parts[i].Replicas, device)
		}
	}
	l.Batch, l.Replicas, l.Sharding = job.Batch, w.replicas(), sharding
	l.Collective = exec.Collective{Schedule: job.Schedule, ClipNorm: job.ClipNorm, Timeout: job.CollectiveTimeout}
	return l
}

// alone is the plan without the replicas that nobody asked for, where they cannot be loaded.
func (p planned) alone(job Job) (planned, error) {
	c := p.choice
	c.fitting = slices.DeleteFunc(slices.Clone(c.fitting), func(c candidate) bool { return c.count() > 1 || c.hosts > 1 })
	if len(c.fitting) == 0 {
		return p, errors.New("nothing fits without replicas")
	}
	c.best, c.trials = fewest(c.fitting), 0
	c.against = "replicas could not be loaded"
	return p.by(c, job), nil
}

// held takes the peaks of a pipeline's stages into the parts of a report: of several replicas, the highest.
func held(parts []predictor.TrainingPart, stage int, usage exec.Usage) {
	part := &parts[stage%len(parts)]
	if stage < len(parts) {
		part.PeakBytes = 0
	}
	part.PeakBytes = max(part.PeakBytes, usage.Peak)
}
