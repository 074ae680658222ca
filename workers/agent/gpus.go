package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
)

const (
	// gpuPatience is how long an attempt waits, in the room that it was given, for a GPU that nobody uses: the driver
	// takes back what a program held within a second of its end, but another program may go on for hours. Then the attempt
	// is given back, so that another host may have it: seldom, as each time is a Record.
	gpuPatience = 10 * time.Minute
	gpuPause    = 500 * time.Millisecond
	// gpusEvery is how often the driver is asked while no attempt has a GPU.
	gpusEvery = 10 * time.Second
)

// errNoGPU says that no GPU is to be had now. It is no fault of the stage.
var errNoGPU = errors.New("no GPU is to be had")

// gpus are the GPUs of the host that attempts may have, and who has them. Its methods may be called concurrently.
type gpus struct {
	read   func(context.Context) (device.Reading, error)
	own    map[string]bool // the UUIDs of those that attempts may have; nil where nothing is known of any
	logger *slog.Logger
	// limit is called whenever a GPU is lost or works again, as another capacity is left then; nil for nobody.
	limit func()

	mu   sync.Mutex
	now  []device.State
	held map[string]*gpuHold // by UUID
	// asked numbers the readings as they begin, and applied is that of now: a slow one is older than it looks.
	asked, applied int
}

// gpuHold is the GPUs of one attempt. The zero value has none.
type gpuHold struct {
	who    predictor.GPUHolder
	uuids  []string
	before map[string]device.State // how each stood when it was given
	peak   quantity.Bytes          // the most of their memory that the attempt was seen to hold
	sample *predictor.GPUSample    // at the last look; nil before the first, replaced and never changed
	busy   time.Duration           // for how long they computed, added up
	looked time.Time
	// owns says whether a process is the attempt's; nil until it has some. Own are those of which it did.
	owns func(pid int) bool
	own  map[int]bool
}

func newGPUs(
	offered []device.State, read func(context.Context) (device.Reading, error), logger *slog.Logger,
) *gpus {
	g := &gpus{read: read, logger: logger, now: slices.Clone(offered), held: map[string]*gpuHold{}}
	if read != nil {
		g.own = map[string]bool{}
	}
	for _, d := range offered {
		g.own[d.UUID] = true
	}
	return g
}

// class is that of the GPUs of an attempt, of which all are one.
func (h *gpuHold) class() (class string) {
	for _, d := range h.before {
		class = d.Class
	}
	return class
}

// memory is what the GPUs of an attempt had free when it was given them.
func (h *gpuHold) memory() (sum quantity.Bytes) {
	for _, d := range h.before {
		sum += d.Free
	}
	return sum
}

// rounded is size with whole GPUs: a part of one is one, and who asks for none wants nothing of any.
func rounded(size quantity.Size) quantity.Size {
	if size.GPU <= 0 {
		return size.WithGPUs(quantity.GPUs{})
	}
	size.GPU = (size.GPU + quantity.Core - 1) / quantity.Core * quantity.Core
	return size
}

// needOf is what an attempt of a size asks of single devices.
func needOf(size quantity.Size, learned bool) device.Need {
	count := int((size.GPU + quantity.Core - 1) / quantity.Core)
	if count <= 0 {
		return device.Need{}
	}
	each := (size.GPUMemory + quantity.Bytes(count) - 1) / quantity.Bytes(count)
	return device.Need{Count: count, Class: size.DeviceClass, Memory: each, Learned: learned}
}

// whole is size with the memory of its GPUs as large as they are, on a host of capacity: they are one attempt's alone.
func whole(size, capacity quantity.Size) quantity.Size {
	if size.GPU > 0 && capacity.GPU > 0 {
		share := quantity.Bytes(float64(capacity.GPUMemory) * min(float64(size.GPU)/float64(capacity.GPU), 1))
		size.GPUMemory = max(size.GPUMemory, share)
	}
	return size
}

// capacity is that of the host for attempts of a size: see [predictor.Host.For]. GPUs that do not work now count.
func (g *gpus) capacity(all, size quantity.Size) quantity.Size {
	g.mu.Lock()
	defer g.mu.Unlock()
	host := predictor.Host{Capacity: all}
	for _, d := range g.now {
		host.GPUs = append(host.GPUs, predictor.GPU{Class: d.Class, Memory: d.Memory})
	}
	return host.For(size)
}

// never says why no such GPUs are ever to be had here, also when nobody uses any; empty when they are.
func (g *gpus) never(need device.Need) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	idle := slices.Clone(g.now)
	for i := range idle {
		idle[i].Wrong, idle[i].Free, idle[i].Used, idle[i].Processes = "", idle[i].Memory, 0, nil
	}
	_, why := device.Choose(idle, nil, need)
	return why
}

// take gives an attempt its GPUs, and waits a little where other programs use them. An error wraps errNoGPU and says
// which GPU is why not to be had.
func (g *gpus) take(ctx context.Context, need device.Need, who predictor.GPUHolder) (*gpuHold, error) {
	if need.Count == 0 {
		return &gpuHold{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, gpuPatience)
	defer cancel()
	told := ""
	for {
		if err := g.look(ctx); err != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("%w: %w", errNoGPU, err)
		}
		hold, why := g.choose(need, who)
		if hold != nil {
			return hold, nil
		}
		if told == "" { // once: how much others hold changes all the time
			told = why
			g.logger.WarnContext(ctx, "an attempt waits for a GPU", "run", who.Run, "task", who.Task, "attempt", who.Attempt,
				"reason", why)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s", errNoGPU, why)
		case <-time.After(gpuPause):
		}
	}
}

func (g *gpus) choose(need device.Need, who predictor.GPUHolder) (hold *gpuHold, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := make(map[string]bool, len(g.held))
	for uuid := range g.held {
		held[uuid] = true
	}
	uuids, why := device.Choose(g.now, held, need)
	if why != "" {
		return nil, why
	}
	hold = &gpuHold{who: who, uuids: uuids, before: map[string]device.State{}, own: map[int]bool{}, looked: time.Now()}
	for _, d := range g.now {
		if slices.Contains(uuids, d.UUID) {
			hold.before[d.UUID] = d
			g.held[d.UUID] = hold
		}
	}
	return hold, ""
}

// give takes an attempt's GPUs back.
func (g *gpus) give(hold *gpuHold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, uuid := range hold.uuids {
		delete(g.held, uuid)
	}
}

// follow tells which processes are an attempt's from now on.
func (g *gpus) follow(hold *gpuHold, owns func(pid int) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hold.owns = owns
}

// recognise notes which of the processes on the GPUs of attempts are their own.
func (g *gpus) recognise(devices []device.State) {
	type question struct {
		hold *gpuHold
		owns func(pid int) bool
		pid  int
	}
	var questions []question
	g.mu.Lock()
	for _, d := range devices {
		hold := g.held[d.UUID]
		if hold == nil || hold.owns == nil {
			continue
		}
		for _, p := range d.Processes {
			if !hold.own[p.PID] {
				questions = append(questions, question{hold, hold.owns, p.PID})
			}
		}
	}
	g.mu.Unlock()
	questions = slices.DeleteFunc(questions, func(q question) bool { return !q.owns(q.pid) }) // it reads files
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range questions {
		q.hold.own[q.pid] = true
	}
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
	usage.GPUPeakMemory, usage.GPUBusy = hold.peak, hold.busy
}

// look asks the driver how the GPUs stand, and notes what attempts take of them.
func (g *gpus) look(ctx context.Context) error {
	g.mu.Lock()
	g.asked++
	number := g.asked
	g.mu.Unlock()
	at := time.Now()
	reading, err := g.read(ctx)
	if err != nil {
		return err
	}
	g.recognise(reading.Devices)
	if g.apply(ctx, reading, number, at) && g.limit != nil {
		g.limit()
	}
	return nil
}

// apply takes a reading over, unless one that began later has been, and reports whether others can be used than before.
func (g *gpus) apply(ctx context.Context, reading device.Reading, number int, at time.Time) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if number < g.applied {
		return false
	}
	g.applied = number
	var now []device.State
	for _, d := range reading.Devices {
		if !g.own[d.UUID] {
			continue
		}
		at := slices.IndexFunc(g.now, func(old device.State) bool { return old.UUID == d.UUID })
		if d.Wrong != "" && at >= 0 {
			d.Device = g.now[at].Device // one that is lost may tell no more than its name
		}
		now = append(now, d)
	}
	// One that fell off the bus may not even tell its name.
	for _, d := range g.now {
		if !slices.ContainsFunc(now, func(other device.State) bool { return other.UUID == d.UUID }) {
			d.Wrong, d.Free, d.Used, d.Processes = "is not there any more", 0, 0, nil
			if at := slices.IndexFunc(reading.Devices, d.Same); at >= 0 && reading.Devices[at].Wrong != "" {
				d.Wrong = reading.Devices[at].Wrong
			}
			now = append(now, d)
		}
	}
	slices.SortFunc(now, device.Order)
	for _, d := range now {
		was := g.wrong(d.UUID)
		changed = changed || (was == "") != (d.Wrong == "")
		if was != d.Wrong && d.Wrong != "" {
			g.logger.WarnContext(ctx, "a GPU cannot be used", "gpu", d.Label(), "uuid", d.UUID, "reason", d.Wrong)
		}
	}
	g.now = now
	g.measure(at)
	return changed
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

// wrong is what is known to be wrong with a GPU; the caller holds mu.
func (g *gpus) wrong(uuid string) string {
	for _, d := range g.now {
		if d.UUID == uuid {
			return d.Wrong
		}
	}
	return ""
}

// watch looks until ctx ends, and calls looked after each look: as often as attempts are looked at while one has a GPU.
func (g *gpus) watch(ctx context.Context, every time.Duration, looked func()) {
	if len(g.own) == 0 {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if !g.busy() && now.Sub(last) < gpusEvery {
				continue
			}
			last = now
			if err := g.look(ctx); err != nil && ctx.Err() == nil {
				g.logger.WarnContext(ctx, "the GPUs were not looked at", "error", err)
			}
			looked()
		}
	}
}

func (g *gpus) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.held) > 0
}

// usable is capacity without the GPUs that do not work now.
func (g *gpus) usable(capacity quantity.Size) quantity.Size {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.now {
		if d.Wrong != "" {
			capacity = capacity.Minus(quantity.Size{GPU: quantity.Core, GPUMemory: d.Memory})
		}
	}
	return capacity
}

// describe is what the host tells of its GPUs.
func (g *gpus) describe() []predictor.GPU {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []predictor.GPU
	for _, d := range g.now {
		told := predictor.GPU{
			UUID: d.UUID, Index: d.Index, Instance: d.Instance, Name: d.Name, Class: d.Class, Memory: d.Memory, Used: d.Used,
			Busy: d.Busy, Watts: d.Watts, Uncorrected: d.Uncorrected, Wrong: d.Wrong,
			OthersUnknown: d.PIDsUnknown && g.held[d.UUID] != nil,
		}
		var own map[int]bool
		if hold := g.held[d.UUID]; hold != nil {
			who := hold.who
			told.Holder, own = &who, hold.own
		}
		if !told.OthersUnknown {
			told.Others = othersOn(d, own)
		}
		all = append(all, told)
	}
	return all
}

// othersOn are the processes on a GPU that are not own.
func othersOn(d device.State, own map[int]bool) (others []predictor.GPUProcess) {
	for _, p := range d.Processes {
		if !own[p.PID] {
			others = append(others, predictor.GPUProcess{PID: p.PID, Memory: p.Memory})
		}
	}
	slices.SortStableFunc(others, func(a, b predictor.GPUProcess) int { return cmp.Compare(b.Memory, a.Memory) })
	return others[:min(len(others), predictor.MostOthers)]
}

// visible is what a program is told of the GPUs of its host: those that it has, or that there are none for it. Nil
// where the host has no driver, and nothing is said.
func (g *gpus) visible(hold *gpuHold) []string {
	if g.own == nil {
		return nil
	}
	return append([]string{}, hold.uuids...)
}

// visibleTo puts into an environment which GPUs a program sees.
func visibleTo(values map[string]string, uuids []string) {
	if uuids != nil {
		values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" // the order of nvidia-smi
		values["CUDA_VISIBLE_DEVICES"] = strings.Join(uuids, ",")
	}
}
