package engine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// What the hosts of the measure are, and what the load is: tasks of taskTime in the mean, attemptsPerHost of them at a
// time on each host, of runs with stagesPerRun stages each.
const (
	taskTime        = 20 * time.Second
	attemptsPerHost = 4
	stagesPerRun    = 10
	// settleTime is how long a load goes on before it is measured, and measureTime for how long it is.
	settleTime  = 15 * time.Second
	measureTime = 20 * time.Second
)

// TestManyHosts plays hosts that have joined, with the connection, the rights and the rate of messages of an agent
// each, to a real server with its NATS, and tells what a tick, the memory and the traffic come to as hosts and
// stages grow. What it plays of a host is what the loop sees: its lease each second, samples of each attempt each
// second, starts and Records, and the plan, which is decoded and obeyed. What it leaves out is Temporal: no task is
// polled.
//
// SPILLWAY_HOSTS_GRID names other sizes than the usual ones, as "10x100,1000x10000".
func TestManyHosts(t *testing.T) {
	needMeasure(t)
	grid := os.Getenv("SPILLWAY_HOSTS_GRID")
	if grid == "" {
		grid = "10x100,10x1000,10x10000,100x100,100x1000,100x10000,1000x100,1000x1000,1000x10000"
	}
	fmt.Printf("%6s %7s | %-40s | %-17s | %-19s | %-18s | %-18s | %-28s | %s\n", "", "", "tick: p50/p99 ms", "the server",
		"its memory, MiB", "hosts send", "hosts receive", "plan: KiB, to hosts, ms late", "")
	fmt.Printf("%6s %7s | %9s %8s %8s %8s    | %8s %8s | %9s %9s | %8s %9s | %8s %9s | %6s %6s %12s | %s\n", "hosts",
		"stages", "all", "hosts", "decide", "post", "cores", "ticks/s", "now", "peak", "msg/s", "KiB/s", "msg/s", "KiB/s",
		"whole", "sent", "p50/p99", "attempts")
	for cell := range strings.SplitSeq(grid, ",") {
		var hosts, stages int
		if _, err := fmt.Sscanf(cell, "%dx%d", &hosts, &stages); err != nil {
			t.Fatalf("SPILLWAY_HOSTS_GRID: %q: %v", cell, err)
		}
		t.Run(cell, func(t *testing.T) { measureHosts(t, hosts, stages) })
	}
}

func measureHosts(t *testing.T, hosts, stages int) {
	t.Helper()
	server, arguments := startServer(t, "")
	load := newLoad(t, server, arguments, stages)
	defer load.stop()
	if err := load.join(hosts); err != nil {
		t.Errorf("%d of %d hosts could join: %v", len(load.hosts), hosts, err)
	}
	load.begin()
	time.Sleep(settleTime)
	pid := server.command.Process.Pid
	load.delays() // of those that begin
	before, ticks, busy := load.traffic(), server.ticks(), processorTime(t, pid)
	began := time.Now()
	time.Sleep(measureTime)
	took := time.Since(began).Seconds()
	after, later, used := load.traffic(), server.ticks(), processorTime(t, pid)-busy
	quantile := func(part string, q float64) float64 { return later[part].minus(ticks[part]).quantile(q) * 1000 }
	delays := load.delays()
	delayed := func(q float64) float64 {
		if len(delays) == 0 {
			return 0
		}
		return float64(delays[int(q*float64(len(delays)-1))].Milliseconds())
	}
	rate := func(after, before uint64) float64 { return float64(after-before) / took }
	fmt.Printf("%6d %7d | %4.0f/%-5.0f %3.0f/%-4.0f %3.0f/%-4.0f %3.0f/%-4.0f | %8.2f %8.1f | %9.0f %9.0f | "+
		"%8.0f %9.0f | %8.0f %9.0f | %6d %6d %5.0f/%-6.0f | %5d\n",
		len(load.hosts), stages, quantile("all", .5), quantile("all", .99), quantile("hosts", .5), quantile("hosts", .99),
		quantile("decide", .5), quantile("decide", .99), quantile("post", .5), quantile("post", .99), used.Seconds()/took,
		(later["all"].count()-ticks["all"].count())/took,
		float64(resident(t, pid))/float64(quantity.MiB), float64(peak(t, pid))/float64(quantity.MiB),
		rate(after.OutMsgs, before.OutMsgs), rate(after.OutBytes, before.OutBytes)/1024,
		rate(after.InMsgs, before.InMsgs), rate(after.InBytes, before.InBytes)/1024,
		server.planSize()/1024, len(delays), delayed(.5), delayed(.99), load.running())
	if failed := load.failed.Load(); failed > 0 {
		t.Errorf("%d leases were not taken; the last: %v", failed, load.failure.Load())
	}
}

// load is hosts that are played, and what there is to do for them.
type load struct {
	t      *testing.T
	server *testEngine
	base   string
	token  join.Token
	stages []predictor.StageID
	owner  *nats.Conn
	facts  *loop.Recorder

	life    context.Context
	end     context.CancelFunc
	working sync.WaitGroup
	hosts   []*playedHost

	failed, task atomic.Int64
	failure      atomic.Value

	mu    sync.Mutex
	delay []time.Duration // from when a plan was decided until a host has it; guarded by mu
}

func newLoad(t *testing.T, server *testEngine, arguments []string, stages int) *load {
	t.Helper()
	l := &load{t: t, server: server, base: arguments[1]}
	text, err := os.ReadFile(arguments[3])
	if err != nil {
		t.Fatal(err)
	}
	if l.token, err = join.ParseToken(strings.TrimSpace(string(text))); err != nil {
		t.Fatal(err)
	}
	for i := range stages {
		l.stages = append(l.stages, predictor.StageID{App: "played", Build: "b1", Name: fmt.Sprintf("stage-%05d", i)})
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.owner = server.dialNATS()
	stream, err := jetstream.New(l.owner)
	if err != nil {
		t.Fatal(err)
	}
	l.facts = loop.NewRecorder(stream, &loop.RecorderOptions{Buffer: 1 << 16})
	return l
}

// join has hosts join, one after another, and connects them to NATS as agents do.
func (l *load) join(hosts int) error {
	trust := l.token.Trust("127.0.0.1")
	for i := range hosts {
		// Each has an address of its own: of one, the port takes no more connections than some fifty hosts have.
		own := &net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i/250), byte(i%250+1))}}
		host, err := l.joinOne(fmt.Sprintf("host-%04d", i), trust, own)
		if err != nil {
			return err
		}
		l.hosts = append(l.hosts, host)
	}
	return nil
}

func (l *load) joinOne(name string, trust *tls.Config, from *net.Dialer) (*playedHost, error) {
	answer, status, said := joinFrom(l.t, from, l.base, trust, l.token.Secret, join.Request{
		Host: name, Instance: "i", Version: "test", Platform: "linux/amd64", At: time.Now(),
	})
	if status != http.StatusOK {
		return nil, fmt.Errorf("join as %s: %d %s", name, status, said)
	}
	own, err := answer.Trust("127.0.0.1")
	if err != nil {
		return nil, err
	}
	own.NextProtos = []string{join.Protocol}
	connection, err := nats.Connect(answer.NATS[0], nats.UserInfo(answer.NATSUser, answer.Token),
		nats.SetCustomDialer(from), nats.CustomInboxPrefix("_INBOX_host_"+name), nats.TLSHandshakeFirst(),
		nats.Secure(own), nats.Timeout(time.Minute),
		nats.MaxReconnects(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return nil, fmt.Errorf("connect %s to NATS: %w", name, err)
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	h := &playedHost{load: l, name: name, connection: connection, running: map[predictor.StageID][]*playedTask{}}
	plans, err := loop.NewPlans(l.life, stream, nil)
	if err != nil {
		return nil, fmt.Errorf("plans of %s: %w", name, err)
	}
	if h.plans = plans; answer.OwnPlan {
		h.plans = plans.Of(name)
	}
	if h.leases, err = loop.NewLeases(l.life, stream, nil); err != nil {
		return nil, fmt.Errorf("leases of %s: %w", name, err)
	}
	h.recorder = loop.NewRecorder(stream, nil)
	return h, nil
}

// begin has runs begin and hosts work.
func (l *load) begin() {
	now := time.Now()
	for i, stage := range l.stages {
		run := l.run(stage)
		if i%stagesPerRun == 0 {
			l.facts.Tell(predictor.RunStarted{Run: run, Pipeline: "played", App: stage.App, Build: stage.Build, At: now})
		}
		l.schedule(stage, 4)
		if i%500 == 499 { // what is told at once is bounded by the buffer
			time.Sleep(50 * time.Millisecond)
		}
	}
	for _, host := range l.hosts {
		l.working.Go(func() { _ = host.plans.Watch(l.life, host.obey) })
		l.working.Go(func() { host.work(l.life) })
	}
}

// run is the run of which a stage is.
func (l *load) run(stage predictor.StageID) string {
	number, _ := strconv.Atoi(strings.TrimPrefix(stage.Name, "stage-"))
	return fmt.Sprintf("played-%04d", number/stagesPerRun)
}

// schedule says that a stage has more tasks.
func (l *load) schedule(stage predictor.StageID, tasks int) {
	l.facts.Tell(predictor.Scheduled{
		Run: l.run(stage), Stage: stage, Tasks: tasks, Input: quantity.MiB, Program: predictor.GoProgram, At: time.Now(),
		Declared: quantity.Size{CPU: quantity.Core, Memory: 256 * quantity.MiB},
	})
}

// delays are those since it was asked last, the least first.
func (l *load) delays() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	delays := l.delay
	l.delay = nil
	slices.Sort(delays)
	return delays
}

// traffic is what all hosts have sent and received.
func (l *load) traffic() (sum nats.Statistics) {
	for _, host := range l.hosts {
		one := host.connection.Stats()
		sum.InMsgs, sum.OutMsgs = sum.InMsgs+one.InMsgs, sum.OutMsgs+one.OutMsgs
		sum.InBytes, sum.OutBytes = sum.InBytes+one.InBytes, sum.OutBytes+one.OutBytes
	}
	return sum
}

// running is how many attempts run.
func (l *load) running() (attempts int) {
	for _, host := range l.hosts {
		host.mu.Lock()
		attempts += host.count()
		host.mu.Unlock()
	}
	return attempts
}

func (l *load) stop() {
	l.end()
	l.working.Wait()
	var closing sync.WaitGroup
	for _, host := range l.hosts {
		closing.Go(func() {
			host.connection.Close()
			_ = host.recorder.Close(l.life)
		})
	}
	closing.Wait()
	_ = l.facts.Close(l.life)
	l.owner.Close()
}

// playedHost is one host.
type playedHost struct {
	load       *load
	name       string
	connection *nats.Conn
	plans      activities.Plans
	leases     *loop.Leases
	recorder   *loop.Recorder

	mu      sync.Mutex
	wanted  map[predictor.StageID]int           // slots; guarded by mu
	size    map[predictor.StageID]quantity.Size // of them; guarded by mu
	running map[predictor.StageID][]*playedTask // guarded by mu
}

type playedTask struct {
	id    string
	grant quantity.Size
	began time.Time
	ends  time.Time
}

var playedCapacity = quantity.Size{CPU: attemptsPerHost * quantity.Core, Memory: 16 * quantity.GiB}

// obey takes what a plan says of this host.
func (h *playedHost) obey(plan predictor.Plan) {
	wanted, size := map[predictor.StageID]int{}, map[predictor.StageID]quantity.Size{}
	for _, placement := range plan.Placements {
		if placement.Host == h.name {
			wanted[placement.Stage] += placement.Slots
		}
	}
	for _, grant := range plan.Grants {
		if wanted[grant.Stage] > 0 && grant.Venue == predictor.Pool {
			size[grant.Stage] = grant.Size
		}
	}
	late := time.Since(plan.At)
	h.load.mu.Lock()
	h.load.delay = append(h.load.delay, late)
	h.load.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted, h.size = wanted, size
}

// work runs tasks where the plan has slots, and tells of them each second.
func (h *playedHost) work(ctx context.Context) {
	if !sleep(ctx, time.Duration(rand.Int64N(int64(time.Second)))) { // hosts do not tell at the same moment
		return
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		h.advance(now)
		if err := h.leases.PutHost(ctx, h.describe(now)); err != nil && ctx.Err() == nil {
			h.load.failed.Add(1)
			h.load.failure.Store(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// count is how many attempts run. The caller holds mu.
func (h *playedHost) count() (attempts int) {
	for _, running := range h.running {
		attempts += len(running)
	}
	return attempts
}

func (h *playedHost) describe(now time.Time) predictor.Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	free := playedCapacity
	for _, running := range h.running {
		for _, task := range running {
			free.CPU, free.Memory = free.CPU-task.grant.CPU, free.Memory-task.grant.Memory
		}
	}
	free.CPU, free.Memory = max(free.CPU, 0), max(free.Memory, 0)
	return predictor.Host{
		ID: h.name, Instance: "i", Capacity: playedCapacity, Free: free, PricePerHour: quantity.USD / 5, At: now,
		CPUs: []int{0, 1, 2, 3}, Enforcement: "cgroup v2",
	}
}

// advance ends tasks, starts others and tells of those that run.
func (h *playedHost) advance(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for stage, running := range h.running {
		var left []*playedTask
		for _, task := range running {
			if now.Before(task.ends) {
				left = append(left, task)
				h.recorder.Tell(predictor.Sampled{
					Run: h.load.run(stage), Stage: stage, Task: task.id, Attempt: 1, Venue: predictor.Pool, Host: h.name,
					CPU: quantity.Core * 9 / 10, Memory: 100 * quantity.MiB, Grant: task.grant, At: now,
				})
				continue
			}
			h.load.working.Go(func() { h.end(stage, task, now) })
		}
		if h.running[stage] = left; len(left) == 0 {
			delete(h.running, stage)
		}
	}
	for stage, slots := range h.wanted {
		for len(h.running[stage]) < slots && h.count() < attemptsPerHost {
			took := time.Duration(float64(taskTime) * (0.5 + rand.Float64()))
			task := &playedTask{
				id: fmt.Sprintf("t%d", h.load.task.Add(1)), grant: h.size[stage], began: now, ends: now.Add(took),
			}
			h.running[stage] = append(h.running[stage], task)
			h.recorder.Tell(predictor.AttemptStarted{
				Run: h.load.run(stage), Stage: stage, Task: task.id, Attempt: 1, Venue: predictor.Pool, Host: h.name,
				Instance: "i", Grant: task.grant, Input: quantity.MiB, At: now,
			})
		}
	}
}

// end tells that a task has ended, and that its stage has another.
func (h *playedHost) end(stage predictor.StageID, task *playedTask, now time.Time) {
	wall := now.Sub(task.began)
	err := h.recorder.Record(h.load.life, predictor.Record{
		Run: h.load.run(stage), Pipeline: "played", Stage: stage, Task: task.id, Attempt: 1, Venue: predictor.Pool,
		Host: h.name, Outcome: predictor.Succeeded, ScheduledAt: task.began, At: now, Grant: task.grant,
		Usage: quantity.Usage{
			Wall: wall, CPU: wall * 9 / 10, PeakMemory: quantity.Bytes(90+rand.IntN(20)) * quantity.MiB, Input: quantity.MiB,
		},
		Cost: quantity.USD / 1_000_000,
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		h.load.failed.Add(1)
		h.load.failure.Store(err)
	}
	h.load.schedule(stage, 1)
}

// distribution counts times by the bounds, in seconds, that they are within.
type distribution struct{ bounds, counts []float64 }

// ticks reads how long ticks took, by part, of the server's series.
func (e *testEngine) ticks() map[string]distribution {
	e.t.Helper()
	answer := e.get(e.t.Context(), "/metrics")
	defer answer.Body.Close() //nolint:errcheck // it was only read
	found := map[string]distribution{}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, is := strings.CutPrefix(lines.Text(), `spillway_tick_seconds_bucket{part="`)
		if !is {
			continue
		}
		part, rest, _ := strings.Cut(rest, `",le="`)
		bound, count, _ := strings.Cut(rest, `"} `)
		at, err := strconv.ParseFloat(bound, 64)
		n, counted := strconv.ParseFloat(count, 64)
		if err := errors.Join(err, counted); err != nil {
			e.t.Fatalf("series %q: %v", lines.Text(), err)
		}
		one := found[part]
		found[part] = distribution{append(one.bounds, at), append(one.counts, n)}
	}
	if err := lines.Err(); err != nil {
		e.t.Fatal(err)
	}
	return found
}

// planSize is how many bytes the whole plan has as the API shows it, without its decisions.
func (e *testEngine) planSize() int {
	e.t.Helper()
	plan := e.plan()
	plan.Decisions = nil
	text, err := json.Marshal(plan)
	if err != nil {
		e.t.Fatal(err)
	}
	return len(text)
}

// minus is what came since another reading.
func (d distribution) minus(before distribution) distribution {
	left := distribution{d.bounds, make([]float64, len(d.counts))}
	for i, count := range d.counts {
		left.counts[i] = count
		if i < len(before.counts) {
			left.counts[i] -= before.counts[i]
		}
	}
	return left
}

func (d distribution) count() float64 {
	if len(d.counts) == 0 {
		return 0
	}
	return d.counts[len(d.counts)-1]
}

// quantile is the time below which a share q of all lies, by a straight line between two bounds; 0 of none.
func (d distribution) quantile(q float64) float64 {
	rank, below, from := q*d.count(), 0.0, 0.0
	for i, count := range d.counts {
		if count >= rank && count > below {
			if math.IsInf(d.bounds[i], 1) {
				return from
			}
			return from + (d.bounds[i]-from)*(rank-below)/(count-below)
		}
		below, from = count, d.bounds[i]
	}
	return 0
}

// processorTime is what a process has had of the processors.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, second := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err, second); err != nil {
		t.Fatal(err)
	}
	const perSecond = 100 // clock ticks, which Linux shows to programs
	return time.Duration(user+system) * time.Second / perSecond
}
