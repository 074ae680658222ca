package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// The bars of a soak.
const (
	soakMemory = quantity.Bytes(400_000_000) // resident, at the end
	soakStart  = 1500 * time.Millisecond
	soakTotals = 300 * time.Millisecond // to add up all runs
	// soakGrowth is by how much resident memory may grow over the second half: noise, where nothing accumulates.
	soakGrowth = 1.10
	// soakInFlight is how many runs are on their way at a time: the flow is as steady as the machine is fast.
	soakInFlight = 48
)

// soakSize is how many runs and samples a soak has; it is skipped where nobody asked for one.
func soakSize(t *testing.T) (runs, samples int) {
	t.Helper()
	if os.Getenv("SPILLWAY_SOAK_RUNS") == "" {
		t.Skip("a soak of many minutes: run it with make soak")
	}
	number := func(name string) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil || n < 4 {
			t.Fatalf("%s: want a number of at least 4, got %q", name, os.Getenv(name))
		}
		return n
	}
	return number("SPILLWAY_SOAK_RUNS"), number("SPILLWAY_SOAK_SAMPLES")
}

// TestSoak runs many short runs in a steady flow, while the agents of other hosts tell many samples, and looks at what
// grows: memory, disk, the time of a start; at the end the bill is to be complete and exact.
func TestSoak(t *testing.T) {
	runs, samples := soakSize(t)
	state, app := t.TempDir(), buildApp(t, 0)
	// The hosts' own account is the log, all of it: one that lies elsewhere is left as it is when it grows.
	log := filepath.Join(t.TempDir(), "all.log")
	err := errors.Join(os.WriteFile(log, nil, 0o600), os.Symlink(log, filepath.Join(state, "spillway.log")))
	if err != nil {
		t.Fatal(err)
	}
	program := os.Args[0]
	if heapDir() == "" { // a profile is written by this binary only
		program = buildPackage(t, "spillway", "../../spillway", "")
	}
	began := time.Now()
	e := startEngineOf(t, program, state, app, "--log-level", "debug")
	empty := time.Since(began)
	f := newFlood(e)
	fleet := newFleet(f)
	t.Logf("an empty state directory: ready after %s", empty.Round(time.Millisecond))
	f.tell("at the start", began)
	var half quantity.Bytes
	began = time.Now()
	for quarter := 1; quarter <= 4; quarter++ {
		var both sync.WaitGroup
		both.Go(func() { fleet.advance(samples*quarter/4, float64(samples)/float64(runs)) })
		both.Go(func() { f.flow(runs * quarter / 4) })
		both.Wait()
		f.tell(fmt.Sprintf("%3d%%", 25*quarter), began)
		switch now := resident(t, e.command.Process.Pid); {
		case quarter == 2:
			half = now
		case quarter == 4 && now > soakMemory:
			t.Errorf("%s are resident at the end, more than %s", now, soakMemory)
		case quarter == 4 && float64(now) > soakGrowth*float64(half):
			t.Errorf("resident memory has grown from %s to %s in the second half", half, now)
		}
	}
	f.settled(fleet)
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := e.soakBill()
	e.addedUp(runs+fleet.runs, before)
	e.stop()
	began = time.Now()
	e = startEngineOf(t, program, state, app, "--log-level", "debug")
	again := time.Since(began)
	t.Logf("started again after %s: ready after %s, %s resident", empty.Round(time.Millisecond),
		again.Round(time.Millisecond), resident(t, e.command.Process.Pid))
	if again > soakStart {
		t.Errorf("the engine was ready after %s, want %s at most", again, soakStart)
		for _, line := range lastLines(t, log, quantity.MiB) {
			if strings.Contains(line, "msg=opened") || strings.Contains(line, "msg=ready") {
				t.Log(line)
			}
		}
	}
	after := e.soakBill()
	if before.Pool != after.Pool || before.Function != after.Function {
		t.Errorf("the bill was %s and %s, and is %s and %s after the restart",
			before.Pool, before.Function, after.Pool, after.Function)
	}
	e.stop()
	account := readLog(t, state, stack.Hosts[0], stack.Functions)
	fleet.check(t, runs, after, account)
}

// lastLines are those of the end of a file, of so many bytes.
func lastLines(t *testing.T, path string, bytes quantity.Bytes) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-int64(bytes)), int64(bytes)))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// flow publishes events until there were total, no more at a time than may be in flight, and waits until their runs
// have ended.
func (f *flood) flow(total int) {
	f.t.Helper()
	for deadline := time.Now().Add(2 * time.Hour); ; time.Sleep(10 * time.Millisecond) {
		done := f.done()
		if done >= total {
			return
		}
		for f.sent < min(total, done+soakInFlight) {
			message := nats.NewMsg(wire.EventSubject("echo"))
			message.Header.Set(wire.MessageIDHeader, "e"+strconv.Itoa(f.sent))
			message.Data = fmt.Appendf(nil, `{"index":%d}`, f.sent)
			if _, err := f.js.PublishMsg(f.t.Context(), message); err != nil {
				f.t.Error(err)
				return
			}
			f.sent++
		}
		if time.Now().After(deadline) {
			f.t.Errorf("%d of %d runs have ended after two hours", done, total)
			return
		}
	}
}

// done is how many runs were told to have ended.
func (f *flood) done() int {
	stream, err := f.js.Stream(f.t.Context(), wire.DoneStream)
	if err != nil {
		f.t.Error(err)
		return 0
	}
	return int(stream.CachedInfo().State.LastSeq)
}

// settled waits until the ledger has the Record of every run and of the whole fleet.
func (f *flood) settled(fleet *fleet) {
	f.t.Helper()
	f.testEngine.until("the bill has all attempts", func() bool {
		bill, err := f.client.Cost(f.t.Context(), ledger.BillQuery{By: ledger.ByPipeline})
		if err != nil {
			return false
		}
		tasks := map[string]int{}
		for _, line := range bill.Lines {
			tasks[line.Name] = line.Tasks
		}
		return tasks["echo"] == f.sent && tasks["fleet"] == fleet.attempts
	})
}

// soakBill is the whole bill, by run.
func (e *testEngine) soakBill() ledger.Bill {
	e.t.Helper()
	bill, err := e.client.Cost(e.t.Context(), ledger.BillQuery{By: ledger.ByRun})
	if err != nil {
		e.t.Fatal(err)
	}
	return bill
}

// addedUp looks at what all runs come to: they have succeeded, and cost what the bill has for their attempts.
func (e *testEngine) addedUp(runs int, bill ledger.Bill) {
	e.t.Helper()
	began := time.Now()
	totals, err := e.client.RunTotals(e.t.Context(), web.RunQuery{})
	took := time.Since(began)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Logf("%d runs are added up within %s: %s", totals.Runs, took.Round(time.Millisecond), totals.Cost)
	if took > soakTotals {
		e.t.Errorf("to add up all runs takes %s, want %s at most", took, soakTotals)
	}
	if totals.Runs != runs || totals.States[predictor.RunSucceeded] != runs || totals.Cost != bill.Attempts {
		e.t.Errorf("all runs come to %+v, want %d that have succeeded and cost %s", totals, runs, bill.Attempts)
	}
}

// tell prints what the engine takes now.
func (f *flood) tell(when string, began time.Time) {
	f.t.Helper()
	pid := f.command.Process.Pid
	series := f.series()
	mebibytes := func(name string) int { return int(series[name]) >> 20 }
	f.t.Logf("%s: %d runs in %s; resident %s (anonymous %s); "+
		"Go heap %d MiB in use, %d idle, %d released, next collection at %d; "+
		"stacks %d MiB of %d goroutines; the app's worker %s; disk %s%s",
		when, f.done(), time.Since(began).Round(time.Second), resident(f.t, pid), status(f.t, pid, "RssAnon:"),
		mebibytes("go_memstats_heap_inuse_bytes"), mebibytes("go_memstats_heap_idle_bytes"),
		mebibytes("go_memstats_heap_released_bytes"), mebibytes("go_memstats_next_gc_bytes"),
		mebibytes("go_memstats_stack_inuse_bytes"), int(series["go_goroutines"]),
		f.largestChild(), diskOf(f.t, f.state), f.collections())
	f.profile(strings.TrimSpace(when))
}

// collections is what the engine printed last of its collections of garbage, where GODEBUG=gctrace=1 has it print them.
func (f *flood) collections() string {
	lines := strings.Split(f.printed(), "\n")
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "gc ") {
			return "; " + line
		}
	}
	return ""
}

// largestChild is the resident memory of the largest process that runs a stored build.
func (f *flood) largestChild() (most quantity.Bytes) {
	entries, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(entry); err == nil && strings.HasPrefix(target, f.state) {
			if text, err := os.ReadFile(filepath.Join(filepath.Dir(entry), "statm")); err == nil {
				pages, _ := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
				most = max(most, quantity.Bytes(pages)*quantity.Bytes(os.Getpagesize()))
			}
		}
	}
	return most
}

// diskOf is what each folder of a state directory takes, the largest first; the streams of NATS are told one by one.
func diskOf(tb testing.TB, state string) string {
	tb.Helper()
	streams := filepath.Join(state, "nats", "jetstream", "$G", "streams")
	sizes := map[string]quantity.Bytes{}
	err := filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // what is gone takes nothing
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		relative, err := filepath.Rel(state, path)
		if in, within := strings.CutPrefix(path, streams+"/"); within {
			relative = in
		}
		name, _, _ := strings.Cut(relative, "/")
		taken := info.Size()
		if raw, ok := info.Sys().(*syscall.Stat_t); ok {
			taken = raw.Blocks * 512
		}
		sizes[name] += quantity.Bytes(taken)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	var all quantity.Bytes
	for name, size := range sizes {
		all += size
		if size >= quantity.MiB {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	var text strings.Builder
	text.WriteString(all.String())
	for _, name := range names {
		fmt.Fprintf(&text, ", %s %s", name, sizes[name])
	}
	return text.String()
}

const (
	fleetRunning = 100 // attempts at a time
	fleetLooks   = 100 // samples of each attempt
	// fleetPause is the pause after one sample of each attempt: what comes too fast may be dropped, as nobody waits.
	fleetPause = 10 * time.Millisecond
)

// fleetStage is what the fleet runs.
var fleetStage = predictor.StageID{App: "fleet", Build: "b1", Name: "train"}

// fleet tells what the agents of other hosts would tell: of attempts, sample by sample, and of their ends.
type fleet struct {
	*flood
	recorder *loop.Recorder
	told     int // samples so far
	runs     int // begun so far
	attempts int // ended so far
	cost     *big.Int
}

func newFleet(f *flood) *fleet {
	f.t.Helper()
	recorder := loop.NewRecorder(f.js, nil)
	f.t.Cleanup(func() { _ = recorder.Close(context.WithoutCancel(f.t.Context())) })
	return &fleet{flood: f, recorder: recorder, cost: new(big.Int)}
}

// advance tells until there were total samples, and keeps beside the flow of runs: each of them has so many samples.
func (f *fleet) advance(total int, each float64) {
	for f.told < total && f.t.Context().Err() == nil {
		if float64(f.told) > each*float64(f.done()) {
			time.Sleep(fleetPause)
			continue
		}
		f.run()
	}
}

// run tells of one run from its start to its end.
func (f *fleet) run() {
	run := "fleet-" + strconv.Itoa(f.runs)
	f.runs++
	grant := quantity.Size{CPU: 500, Memory: quantity.GiB}
	f.publishFact(predictor.RunStarted{
		Run: run, Pipeline: "fleet", App: fleetStage.App, Build: fleetStage.Build, At: time.Now(),
	}, wire.RunStartedID(run))
	for task := range fleetRunning {
		f.recorder.Tell(predictor.AttemptStarted{
			Run: run, Stage: fleetStage, Task: strconv.Itoa(task), Attempt: 1, Venue: predictor.Pool, Host: "fleet",
			Grant: grant, At: time.Now(),
		})
	}
	for look := range fleetLooks {
		for task := range fleetRunning {
			f.recorder.Tell(predictor.Sampled{
				Run: run, Stage: fleetStage, Task: strconv.Itoa(task), Attempt: 1, Venue: predictor.Pool, Host: "fleet",
				Grant: grant, CPU: quantity.Milli(300 + look), Memory: quantity.Bytes(500+look) * quantity.MiB, Step: look,
				At: time.Now(),
			})
			f.told++
		}
		time.Sleep(fleetPause)
	}
	for task := range fleetRunning {
		cost := quantity.Money(1_000_003 + 17*task)
		at := time.Now()
		if err := f.recorder.Record(f.t.Context(), predictor.Record{
			Run: run, Pipeline: "fleet", Stage: fleetStage, Task: strconv.Itoa(task), Attempt: 1,
			Venue: predictor.Pool, Host: "fleet", Outcome: predictor.Succeeded,
			ScheduledAt: at.Add(-time.Second), At: at, Grant: grant, Cost: cost,
			Usage: quantity.Usage{Wall: time.Second, PeakMemory: 600 * quantity.MiB},
		}); err != nil {
			f.t.Error(err)
			return
		}
		f.attempts++
		f.cost.Add(f.cost, big.NewInt(int64(cost)))
	}
	f.publishFact(predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: time.Now()}, wire.RunEndedID(run))
}

// publishFact tells what the workflow worker of the fleet would tell.
func (f *fleet) publishFact(event predictor.Event, id string) {
	kind, data, err := wire.EncodeEvent(event)
	if err == nil {
		_, err = f.js.Publish(f.t.Context(), wire.LoopSubject(kind), data, jetstream.WithMsgID(id))
	}
	if err != nil {
		f.t.Error(err)
	}
}

// check compares the bill with the hosts' own account.
func (f *fleet) check(t *testing.T, runs int, bill ledger.Bill, account logged) {
	t.Helper()
	pool := new(big.Int).Set(f.cost)
	for _, held := range account.held {
		pool.Add(pool, held)
	}
	if pool.Cmp(big.NewInt(int64(bill.Pool))) != 0 || account.function.Cmp(big.NewInt(int64(bill.Function))) != 0 {
		t.Errorf("the bill has %d and %d picodollars at pool and functions, the hosts' own account %s and %s",
			bill.Pool, bill.Function, pool, account.function)
	}
	if len(bill.Incomplete) > 0 {
		t.Errorf("the bill lacks times: %+v", bill.Incomplete)
	}
	lines := map[string]ledger.Line{}
	for _, line := range bill.Lines {
		lines[line.Name] = line
	}
	missing := 0
	for i := range runs {
		if lines[trigger.RunID("echo", "e"+strconv.Itoa(i))].Tasks != 1 {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("the bill lacks %d of %d runs", missing, runs)
	}
	t.Logf("the bill of %d runs and %d attempts of other hosts: %s at the pool, %s at functions (%d invokes)",
		runs, f.attempts, bill.Pool, bill.Function, account.invokes)
}

// heapDir is where heap profiles of the engine are wanted; empty for nowhere.
func heapDir() string { return os.Getenv("SPILLWAY_SOAK_HEAP") }

// profile has the engine write a profile of its heap, where that is wanted.
func (f *flood) profile(when string) {
	f.t.Helper()
	if heapDir() == "" {
		return
	}
	path := filepath.Join(heapDir(), "heap")
	if err := f.command.Process.Signal(syscall.SIGUSR1); err != nil {
		f.t.Fatal(err)
	}
	f.testEngine.until("the profile is written", func() bool {
		return os.Rename(path, path+"-"+strings.NewReplacer(" ", "-", "%", "").Replace(when)) == nil
	})
}

// writeHeaps writes a profile of this process's heap into the directory whenever somebody asks for it by a signal.
func writeHeaps(dir string) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	for range asked {
		runtime.GC()
		file, err := os.Create(filepath.Join(dir, "heap.part"))
		if err == nil {
			err = errors.Join(pprof.Lookup("heap").WriteTo(file, 0), file.Close(),
				os.Rename(file.Name(), filepath.Join(dir, "heap")))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}
