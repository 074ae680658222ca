package policy

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"
)

// Entrant is a policy with what it begins with.
type Entrant struct {
	Policy Policy
	// Spills says that a task for which no core is free goes to a function; otherwise it waits, first come first served.
	Spills bool
	// First is how many hosts serve at the start, and Most how many it has at most; 0 is no bound.
	First, Most int
}

// Replay lets the arrivals, which are in the order of their times, be served on the hosts that a policy holds. The
// error is that of ctx.
func Replay(ctx context.Context, setting Setting, arrivals []Arrival, entrant Entrant) (Outcome, error) {
	p := &pool{
		Setting: setting, Entrant: entrant, arrivals: arrivals,
		out: Outcome{Latencies: make([]time.Duration, len(arrivals))},
	}
	for range entrant.First {
		p.hosts = append(p.hosts, &host{ready: true})
	}
	p.out.MostHosts = len(p.hosts)
	every := entrant.Policy.Every()
	p.busy = make([]float64, every/time.Second)
	came, ask := 0, every
	for number := 0; came < len(arrivals) || p.inside > 0 || ask <= setting.Span; number++ {
		if number%1000 == 0 && ctx.Err() != nil {
			return Outcome{}, fmt.Errorf("replay a trace: %w", ctx.Err())
		}
		next := ask
		if came < len(arrivals) {
			next = min(next, arrivals[came].At)
		}
		if len(p.due) > 0 {
			next = min(next, p.due[0].at)
		}
		p.passTo(next, ask-every)
		switch {
		case len(p.due) > 0 && p.due[0].at == next:
			p.happen(heap.Pop(&p.due).(happening))
		case came < len(arrivals) && arrivals[came].At == next:
			p.inside++
			p.queue = append(p.queue, came)
			came++
		default:
			p.ask()
			ask += every
		}
		p.serve()
	}
	for _, host := range p.hosts {
		p.pay(host, max(setting.Span, p.now))
	}
	return p.out, nil
}

// pool is what a policy has at a time.
type pool struct {
	Setting
	Entrant
	arrivals []Arrival
	now      time.Duration
	hosts    []*host
	queue    []int // arrivals that wait
	inside   int   // those that have not ended
	invokes  int   // functions that run
	onHosts  int   // tasks that hosts run
	idle     []time.Duration
	due      happenings
	number   int
	busy     []float64 // of the seconds since the last question
	out      Outcome
}

type host struct {
	launched time.Duration
	ready    bool
	leaving  bool // it ends what it runs
	busy     int
}

// passTo lets the time pass; asked is when the last question was.
func (p *pool) passTo(to, asked time.Duration) {
	for from := p.now; from < to; {
		until := min(to, asked+(from-asked).Truncate(time.Second)+time.Second)
		p.busy[(from-asked)/time.Second] += float64(p.inside) * (until - from).Seconds()
		from = until
	}
	p.now = to
}

// happen ends a task, or the start of a host.
func (p *pool) happen(what happening) {
	if what.task < 0 {
		what.host.ready = true
		return
	}
	p.inside--
	p.out.Latencies[what.task] = p.now - p.arrivals[what.task].At
	if what.host == nil {
		p.invokes--
		p.idle = append(p.idle, p.now)
		return
	}
	what.host.busy--
	p.onHosts--
	if what.host.leaving && what.host.busy == 0 {
		p.giveBack(what.host)
	}
}

// ask holds as many hosts as the policy wants.
func (p *pool) ask() {
	var held []*host
	ready := 0
	for _, host := range p.hosts {
		if !host.leaving {
			held = append(held, host)
			if host.ready {
				ready++
			}
		}
	}
	wanted := max(0, p.Policy.Hosts(Seen{Busy: p.busy, Held: len(held), Ready: ready}))
	if p.Most > 0 {
		wanted = min(wanted, p.Most)
	}
	clear(p.busy)
	for _, host := range p.hosts { // those that have not gone yet stay
		if host.leaving && len(held) < wanted {
			host.leaving = false
			held = append(held, host)
		}
	}
	for n := len(held); n < wanted; n++ {
		launched := &host{launched: p.now}
		p.hosts = append(p.hosts, launched)
		p.enter(happening{at: p.now + p.HostStart, task: -1, host: launched})
	}
	p.out.MostHosts = max(p.out.MostHosts, len(p.hosts))
	slices.SortStableFunc(held, func(x, y *host) int { // those that have least to do go first, of equals the last
		return cmp.Or(cmp.Compare(y.busy, x.busy), cmp.Compare(x.launched, y.launched))
	})
	for _, host := range held[min(wanted, len(held)):] {
		host.leaving = true
		if host.busy == 0 {
			p.giveBack(host)
		}
	}
}

func (p *pool) giveBack(gone *host) {
	p.pay(gone, p.now)
	p.hosts = slices.DeleteFunc(p.hosts, func(host *host) bool { return host == gone })
}

func (p *pool) pay(host *host, until time.Duration) {
	p.out.HostCost = p.out.HostCost.Plus(p.HostPrice.Times((until - host.launched).Hours()))
}

// serve starts what waits, on hosts in the order in which they were launched.
func (p *pool) serve() {
	for len(p.queue) > 0 {
		task := p.queue[0]
		took, on := p.arrivals[task].Work, p.free()
		switch {
		case on != nil:
			on.busy++
			p.onHosts++
			p.out.MostOnHosts = max(p.out.MostOnHosts, p.onHosts)
		case p.Spills && p.Functions.Enabled && p.invokes < p.Functions.Concurrency:
			took = p.invoke(took)
		default:
			return
		}
		p.queue = p.queue[1:]
		p.enter(happening{at: p.now + took, task: task, host: on})
	}
}

func (p *pool) free() *host {
	for _, host := range p.hosts {
		if host.ready && !host.leaving && host.busy < p.Cores {
			return host
		}
	}
	return nil
}

// invoke starts a function, and returns when it ends: the environment that was used last, or a new one.
func (p *pool) invoke(work time.Duration) time.Duration {
	p.invokes++
	p.out.Spilled++
	took := work
	if last := len(p.idle) - 1; last >= 0 && (p.KeepWarm == 0 || p.now-p.idle[last] <= p.KeepWarm) {
		p.idle = p.idle[:last]
	} else {
		p.idle = p.idle[:0] // none was used later
		p.out.Cold++
		took += p.Functions.ColdStart
	}
	p.out.FunctionCost = p.out.FunctionCost.Plus(p.Functions.Price(p.Functions.Classes[0], took))
	return took
}

func (p *pool) enter(what happening) {
	p.number++
	what.number = p.number
	heap.Push(&p.due, what)
}

// happening is the end of a task, or that of a host's start where the task is negative; host is nil at functions.
type happening struct {
	at     time.Duration
	number int
	task   int
	host   *host
}

// happenings are a heap by time.
type happenings []happening

func (h happenings) Len() int      { return len(h) }
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h happenings) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].number, h[j].number)) < 0
}

// Push implements heap.Interface.
func (h *happenings) Push(next any) { *h = append(*h, next.(happening)) }

// Pop implements heap.Interface.
func (h *happenings) Pop() any {
	last := len(*h) - 1
	next := (*h)[last]
	*h = (*h)[:last]
	return next
}
