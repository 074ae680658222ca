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
)

// Driver tells of the GPUs of a host, as [device.Reader] does. It may be asked concurrently.
type Driver interface {
	// Read tells how they stand now. The error wraps [device.ErrNone] where there is nothing to ask.
	Read(ctx context.Context) (device.Reading, error)
	// Accounts is what the driver has written down of processes on a device, those that have ended included.
	Accounts(ctx context.Context, uuid string, pids []int) ([]device.Account, error)
}

// errNoGPU says that no GPU is to be had now. It is no fault of the stage.
var errNoGPU = errors.New("no GPU is to be had")

// gpus are the GPUs of the host that attempts may have, and who has them. Which those are the driver tells at each
// look: they may come and go while the agent runs. Its methods may be called concurrently.
type gpus struct {
	driver Driver // nil where nobody is to be asked
	// offer says which of the devices that the driver tells of attempts may have, of a class where they have some
	// already, and what it keeps and why.
	offer  func(devices []device.State, class string) (offered []device.State, kept []device.Kept)
	logger *slog.Logger
	// limit is called whenever a GPU is lost, works again or is offered anew, as another capacity is left then; nil for
	// nobody.
	limit func()
	// answered is closed when the driver has been asked once, whatever came of it.
	answered chan struct{}

	mu     sync.Mutex
	now    []device.State      // those that attempts may have, in the order of the bus
	held   map[string]*gpuHold // by UUID
	silent error               // why the last look failed; nil when it did not
	kept   map[string]bool     // what was told of devices that are not offered
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
	// accounted says that peak is what the driver has written down, and not only what was seen.
	accounted bool
	// live is where its processes run; nil until it has some. Own are those that were seen on its GPUs, and all those
	// that it was seen to have, on a GPU or not.
	live *target
	own  map[int]bool
	all  map[int]bool
}

func newGPUs(
	driver Driver, offer func([]device.State, string) ([]device.State, []device.Kept), logger *slog.Logger,
) *gpus {
	g := &gpus{
		driver: driver, offer: offer, logger: logger, held: map[string]*gpuHold{}, kept: map[string]bool{},
		answered: make(chan struct{}),
	}
	if offer == nil {
		g.offer = device.Filter{}.Offer
	}
	if driver == nil {
		g.silent = device.ErrNone
		close(g.answered)
	}
	return g
}

// await waits until the driver has been asked once: before that nobody knows which GPUs there are.
func (g *gpus) await(ctx context.Context) {
	select {
	case <-g.answered:
	case <-ctx.Done():
	}
}

// unknown reports whether the driver has not been asked yet.
func (g *gpus) unknown() bool {
	select {
	case <-g.answered:
		return false
	default:
		return true
	}
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
	size.GPU = quantity.Milli(size.WholeGPUs()) * quantity.Core
	return size
}

// needOf is what an attempt of a size asks of single devices.
func needOf(size quantity.Size, learned bool) device.Need {
	count := size.WholeGPUs()
	if count == 0 {
		return device.Need{}
	}
	return device.Need{Count: count, Class: size.DeviceClass, Memory: size.MemoryOfEachGPU(), Learned: learned}
}

// capacity is that of the host for attempts of a size: see [predictor.Host.For]. GPUs that do not work now count.
func (g *gpus) capacity(base, size quantity.Size) quantity.Size {
	g.mu.Lock()
	defer g.mu.Unlock()
	host := predictor.Host{Capacity: with(base, g.now)}
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

// take gives an attempt its GPUs. It waits for other attempts that have them, and for gpuPatience where other programs
// use them. An error wraps errNoGPU and says which GPU is why not to be had.
func (g *gpus) take(ctx context.Context, need device.Need, who predictor.GPUHolder) (*gpuHold, error) {
	if need.Count == 0 {
		return &gpuHold{}, nil
	}
	told, since := false, time.Now() // since when others than attempts are in the way
	for {
		var why string
		var ours bool
		err := g.look(ctx)
		if err == nil {
			var hold *gpuHold
			if hold, why = g.choose(need, who); hold != nil {
				return hold, nil
			}
			ours = g.ours(need)
		} else {
			why = err.Error() // how they stand is not known: they may be in use
		}
		switch now := time.Now(); {
		case ours:
			since = now
		case !told: // once: how much others hold changes all the time
			told = true
			g.logger.WarnContext(ctx, "an attempt waits for a GPU", "run", who.Run, "task", who.Task, "attempt", who.Attempt,
				"reason", why)
		case now.Sub(since) >= gpuPatience:
			return nil, fmt.Errorf("%w: %s", errNoGPU, why)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s", errNoGPU, why)
		case <-time.After(gpuPause):
		}
	}
}

// ours reports whether other attempts alone keep the GPUs of a need from being had: as these end by themselves, that is
// waited for however long they go on.
func (g *gpus) ours(need device.Need) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	given := slices.Clone(g.now)
	for i, d := range given {
		if g.held[d.UUID] != nil {
			given[i].Free, given[i].Used, given[i].Processes = d.Memory, 0, nil
		}
	}
	_, why := device.Choose(given, nil, need)
	return why == ""
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
	hold = &gpuHold{
		who: who, uuids: uuids, before: map[string]device.State{}, own: map[int]bool{}, all: map[int]bool{},
		looked: time.Now(),
	}
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

// room is a host's capacity with the GPUs that attempts may have, also with those that do not work now.
func (g *gpus) room(capacity quantity.Size) quantity.Size {
	g.mu.Lock()
	defer g.mu.Unlock()
	return with(capacity, g.now)
}

// usable is the same without the GPUs that do not work now, and the number of the reading that tells of them: whoever
// takes it over takes none that began earlier after it.
func (g *gpus) usable(capacity quantity.Size) (size quantity.Size, reading int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return with(capacity, working(g.now)), g.applied
}

func with(capacity quantity.Size, devices []device.State) quantity.Size {
	gpus := device.Capacity(devices)
	capacity = capacity.Plus(gpus)
	capacity.DeviceClass = gpus.DeviceClass
	return capacity
}

// describe is what the host tells of its GPUs.
func (g *gpus) describe() []predictor.GPU {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []predictor.GPU
	for _, d := range g.now {
		told := predictor.GPU{
			UUID: d.UUID, Index: d.Index, Instance: d.Instance, Bus: d.Bus, GPUInstance: max(d.GPUInstance, 0),
			Profile: d.Profile(), Name: d.Name, Class: d.Class, Memory: d.Memory, Used: d.Used,
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
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(g.silent, device.ErrNone) && len(g.now) == 0 {
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
