package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
)

const (
	// gpusEvery is how often the driver is asked while no attempt has a GPU: those that come and go are seen then. Where
	// there is no driver, one may be loaded.
	gpusEvery = 10 * time.Second
	// soonestGPULook is the shortest time between two looks at the GPUs that attempts have, and lookShare the part of the
	// time that looks may take. What a program holds for less than that is seen by nobody but a driver that keeps account;
	// a program that begins to use CUDA needs some 200 ms for that alone.
	soonestGPULook = 100 * time.Millisecond
	lookShare      = 0.01
)

// pauseAfter is how long after a look at the GPUs of attempts, which took so long, the next one is made: never later
// than every.
func pauseAfter(took, every time.Duration) time.Duration {
	return min(max(time.Duration(float64(took)/lookShare), soonestGPULook), every)
}

// watch looks until ctx ends, and calls looked after each look.
func (g *gpus) watch(ctx context.Context, every time.Duration, looked func()) {
	if g.driver == nil {
		return
	}
	for {
		began := time.Now()
		err := g.look(ctx)
		if ctx.Err() != nil {
			return
		}
		if g.unknown() {
			close(g.answered)
		}
		g.tell(ctx, err)
		looked()
		// An attempt may be given a GPU in the meantime; its first look is that of whoever gave it.
		for pause := time.After(pauseAfter(time.Since(began), every)); ; pause = time.After(every) {
			select {
			case <-ctx.Done():
				return
			case <-pause:
			}
			if g.busy() || time.Since(began) >= gpusEvery {
				break
			}
		}
	}
}

// tell says once why the driver is not followed.
func (g *gpus) tell(ctx context.Context, err error) {
	g.mu.Lock()
	before := g.silent
	g.silent = err
	g.mu.Unlock()
	switch {
	case err == nil || before != nil && before.Error() == err.Error():
	case errors.Is(err, device.ErrNone):
		g.logger.DebugContext(ctx, "no GPU", "reason", err)
	default:
		g.logger.WarnContext(ctx, "the GPUs were not looked at; stages are given none that were not known before", "error",
			err)
	}
}

func (g *gpus) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held) > 0
}

// look asks the driver how the GPUs stand, and notes what attempts take of them.
func (g *gpus) look(ctx context.Context) error {
	g.mu.Lock()
	g.asked++
	number := g.asked
	g.mu.Unlock()
	at := time.Now()
	reading, err := g.driver.Read(ctx)
	if err != nil && !errors.Is(err, device.ErrNone) {
		return err
	}
	g.recognise(reading.Devices)
	if g.apply(ctx, reading, number, at) && g.limit != nil {
		g.limit()
	}
	return err
}

// follow tells where the processes of an attempt run from now on.
func (g *gpus) follow(hold *gpuHold, live target) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hold.live = &live
}

// recognise notes which processes attempts have, and which of those on their GPUs are theirs.
func (g *gpus) recognise(devices []device.State) {
	type question struct {
		hold *gpuHold
		live target
		pid  int
	}
	var questions []question
	lives := map[*gpuHold]target{}
	g.mu.Lock()
	for _, d := range devices {
		hold := g.held[d.UUID]
		if hold == nil || hold.live == nil {
			continue
		}
		lives[hold] = *hold.live
		for _, p := range d.Processes {
			if !hold.own[p.PID] {
				questions = append(questions, question{hold, *hold.live, p.PID})
			}
		}
	}
	g.mu.Unlock()
	// Both read files.
	questions = slices.DeleteFunc(questions, func(q question) bool { return !q.live.has(q.pid) })
	groups := map[*gpuHold][]int{}
	for hold, live := range lives {
		groups[hold] = live.pids()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range questions {
		q.hold.own[q.pid], q.hold.all[q.pid] = true, true
	}
	for hold, pids := range groups {
		for _, pid := range pids {
			hold.all[pid] = true
		}
	}
}

// apply takes a reading over, unless one that began later has been, and reports whether others can be used than before.
func (g *gpus) apply(ctx context.Context, reading device.Reading, number int, at time.Time) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if number < g.applied {
		return false
	}
	g.applied = number
	before := g.now
	now := g.offered(ctx, g.known(ctx, reading.Devices), reading.Devices)
	slices.SortFunc(now, device.Order)
	for _, d := range now {
		was := wrong(before, d.UUID)
		if was != d.Wrong && d.Wrong != "" {
			g.logger.WarnContext(ctx, "a GPU cannot be used", "gpu", d.Label(), "uuid", d.UUID, "reason", d.Wrong)
		}
	}
	g.now = now
	g.measure(at)
	return !slices.EqualFunc(working(before), working(now), func(a, b device.State) bool { return a.Device == b.Device })
}

// known are the GPUs that attempts may have already, as a reading tells of them; the caller holds mu. One that it does
// not tell of cannot be used; it is forgotten where others are in its place, as when a GPU is cut into instances, and
// no attempt has it.
func (g *gpus) known(ctx context.Context, read []device.State) (now []device.State) {
	for _, old := range g.now {
		at := slices.IndexFunc(read, func(d device.State) bool { return d.UUID == old.UUID })
		if at >= 0 {
			d := read[at]
			if d.Wrong != "" {
				d.Device = old.Device // one that is lost may tell no more than its name
			}
			now = append(now, d)
			continue
		}
		replaced := slices.ContainsFunc(read, func(d device.State) bool { return d.Index == old.Index && d.UUID != "" })
		if replaced && g.held[old.UUID] == nil {
			g.logger.WarnContext(ctx, "a GPU is offered no more: others are in its place", "gpu", old.Label(), "uuid",
				old.UUID)
			continue
		}
		old.Wrong, old.Free, old.Used, old.Processes = "is not there any more", 0, 0, nil
		// One that fell off the bus may not even tell its name.
		if at := slices.IndexFunc(read, old.Same); at >= 0 && read[at].Wrong != "" {
			old.Wrong = read[at].Wrong
		}
		now = append(now, old)
	}
	return now
}

// offered adds to the GPUs that attempts may have those that a reading tells of besides, and says once what is kept
// from attempts; the caller holds mu.
func (g *gpus) offered(ctx context.Context, now, read []device.State) []device.State {
	known := slices.Clone(now)
	class := ""
	if len(now) > 0 {
		class = now[0].Class
	}
	offered, kept := g.offer(read, class)
	for _, d := range offered {
		if slices.ContainsFunc(now, func(old device.State) bool { return old.UUID == d.UUID }) {
			continue
		}
		g.logger.InfoContext(ctx, "a GPU is offered to stages", "gpu", d.Label(), "uuid", d.UUID, "name", d.Name, "memory",
			d.Memory.String())
		now = append(now, d)
	}
	before := g.kept
	g.kept = map[string]bool{}
	for _, k := range kept {
		if k.Device != nil && slices.ContainsFunc(known, func(d device.State) bool {
			return d.UUID == k.Device.UUID || d.Index == k.Device.Index && d.Instance == k.Device.Instance
		}) {
			continue // that is told of those that attempts may have
		}
		if g.kept[k.Reason] = true; !before[k.Reason] {
			g.logger.WarnContext(ctx, "a GPU is kept from stages", "reason", k.Reason)
		}
	}
	return now
}

func working(devices []device.State) []device.State {
	return slices.DeleteFunc(slices.Clone(devices), func(d device.State) bool { return d.Wrong != "" })
}

// wrong is what is known to be wrong with a GPU.
func wrong(devices []device.State, uuid string) string {
	for _, d := range devices {
		if d.UUID == uuid {
			return d.Wrong
		}
	}
	return ""
}

// measure notes what attempts take of their GPUs, which were looked at then; the caller holds mu.
func (g *gpus) measure(at time.Time) {
	samples := map[*gpuHold]*predictor.GPUSample{}
	for _, d := range g.now {
		hold := g.held[d.UUID]
		if hold == nil {
			continue
		}
		sample := samples[hold]
		if sample == nil {
			sample = &predictor.GPUSample{}
			samples[hold] = sample
		}
		sample.Memory += device.Taken(hold.before[d.UUID], d, func(pid int) bool { return hold.own[pid] })
		if d.Busy < 0 || sample.Busy < 0 {
			sample.Busy = -1 // of all of them nobody knows it then
		} else {
			sample.Busy += d.Busy
		}
	}
	for hold, sample := range samples {
		hold.peak, hold.sample = max(hold.peak, sample.Memory), sample
		if since := at.Sub(hold.looked); since > 0 && sample.Busy > 0 {
			hold.busy += time.Duration(sample.Busy * float64(since))
		}
		hold.looked = at
	}
}

// settle asks the driver, where it keeps account, what the processes of an attempt took of its GPUs at most, which are
// over: what they held between two looks is in that, too.
func (g *gpus) settle(ctx context.Context, hold *gpuHold) {
	g.mu.Lock()
	pids := slices.Sorted(maps.Keys(hold.all))
	accounted := len(hold.uuids) > 0
	for _, d := range g.now {
		if g.held[d.UUID] == hold {
			accounted = accounted && d.Accounts && !d.PIDsUnknown
		}
	}
	g.mu.Unlock()
	if !accounted {
		return
	}
	peak, written := quantity.Bytes(0), 0
	for _, uuid := range hold.uuids {
		accounts, err := g.driver.Accounts(ctx, uuid, pids)
		if err != nil {
			g.logger.WarnContext(ctx, "what the driver wrote down of an attempt was not read", "uuid", uuid, "error", err)
			return
		}
		one, known := device.Peak(accounts)
		if !known {
			return
		}
		peak, written = peak+one, written+len(accounts)
	}
	if written == 0 { // none of its processes is known
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	hold.peak, hold.accounted = max(hold.peak, peak), true
}

// sample is how the GPUs of an attempt stood at the last look; nil where it has none, or nobody has looked yet.
func (g *gpus) sample(hold *gpuHold) *predictor.GPUSample {
	g.mu.Lock()
	defer g.mu.Unlock()
	return hold.sample
}

// usage puts what an attempt took of its GPUs into what it took of the rest.
func (g *gpus) usage(hold *gpuHold, usage *quantity.Usage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	usage.GPUPeakMemory, usage.GPUPeakAccounted, usage.GPUBusy = hold.peak, hold.accounted, hold.busy
}
