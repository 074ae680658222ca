package predictor_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// flow is a stage at whose queue tasks of so many seconds arrive by chance, so many a second, served by the slots that
// the plan gives it.
type flow struct {
	state     predictor.State
	draw      *rand.Rand
	rate      float64 // tasks a second
	wall      float64 // seconds
	turn      float64 // seconds between two tasks of a slot
	queue     []int
	ends      map[int]float64 // of what runs, by task
	tasks     int
	arrival   float64 // of the next task
	slots     int
	lastTick  float64
	changes   []float64 // when the slots changed
	sizes     []float64 // when the size did
	told      []string  // and from what to what
	memory    func(task int) quantity.Bytes
	input     func(task int) quantity.Bytes
	features  func(task int) map[string]float64
	worstWait float64
	since     map[int]float64
	took      func(cpu quantity.Milli) quantity.Usage // what a task takes with so many cores; nil for one
	cpu       quantity.Milli
	begun     map[int]predictor.Record
	shares    []float64 // when the share of cores changed
}

func newFlow(seed uint64, rate, wall float64) *flow {
	f := &flow{
		draw: rand.New(rand.NewPCG(seed, 1)), rate: rate, wall: wall, turn: 0.010, ends: map[int]float64{},
		since: map[int]float64{}, begun: map[int]predictor.Record{},
		memory: func(int) quantity.Bytes { return 20 * quantity.MiB },
		input:  func(int) quantity.Bytes { return 0 },
	}
	f.state = fold(learn(predictor.State{}, "score", 10, wall), started("r", 0, predictor.Goal{}))
	return f
}

// run serves from..to seconds in steps of 5 ms; a decision follows every message within 50 ms, and one comes each
// second.
func (f *flow) run(from, to float64) {
	for i := range int((to - from) / 0.005) {
		now, heard := from+float64(i)*0.005, false
		for _, task := range slices.Sorted(maps.Keys(f.ends)) {
			if end := f.ends[task]; end+f.turn <= now {
				delete(f.ends, task)
				line := record("r", "score", task, end, f.wall)
				line.Usage.PeakMemory = f.memory(task)
				line.Usage.Input = f.input(task)
				if f.features != nil {
					line.Features = f.features(task)
				}
				if f.took != nil {
					line.Usage, line.Grant = f.begun[task].Usage, f.begun[task].Grant
				}
				f.state, heard = fold(f.state, line), true
			}
		}
		for f.rate > 0 && f.arrival <= now {
			f.arrival += f.draw.ExpFloat64() / f.rate
			f.state, heard = fold(f.state, hint("r", "score", 1, now)), true
			f.queue, f.since[f.tasks] = append(f.queue, f.tasks), now
			f.tasks++
		}
		for len(f.queue) > 0 && len(f.ends) < f.slots {
			task := f.queue[0]
			f.begin(task)
			f.queue, f.ends[task] = f.queue[1:], now+f.wall
			f.worstWait = max(f.worstWait, now-f.since[task])
			f.state = fold(f.state, start("r", "score", task, now))
		}
		if heard && now-f.lastTick >= 0.050 || now-f.lastTick >= 1 {
			f.tick(now)
		}
	}
}

// begin notes what the task takes that starts now.
func (f *flow) begin(task int) {
	if f.took == nil {
		return
	}
	var line predictor.Record
	line.Usage, line.Grant.CPU = f.took(f.cpu), f.cpu
	line.Usage.PeakMemory = f.memory(task)
	f.begun[task], f.wall = line, line.Usage.Wall.Seconds()
}

func (f *flow) tick(now float64) {
	var plan predictor.Plan
	snap := laptop(now, 2)
	snap.Functions.Enabled = false
	plan, f.state = predictor.Decide(f.state, snap)
	f.lastTick, f.slots = now, slots(plan, "score", predictor.Pool)
	for _, sizing := range plan.Sizings {
		if share := sizing.Base.CPU; share != f.cpu {
			f.cpu, f.shares = share, append(f.shares, now)
		}
	}
	for _, decision := range plan.Decisions {
		switch decision.What {
		case "slots":
			f.changes = append(f.changes, now)
		case "size":
			f.sizes = append(f.sizes, now)
			f.told = append(f.told, fmt.Sprintf("%.1f s: %s to %s", now, decision.From, decision.To))
		}
	}
}

// most is the largest number of times within a minute.
func most(times []float64) int {
	largest := 0
	for i, first := range times {
		n := 0
		for _, t := range times[i:] {
			if t < first+60 {
				n++
			}
		}
		largest = max(largest, n)
	}
	return largest
}

// TestASteadyFlowChangesItsSlotsSeldom serves steady flows of short tasks for three minutes.
func TestASteadyFlowChangesItsSlotsSeldom(t *testing.T) {
	t.Parallel()
	for _, wall := range []float64{0.001, 0.020, 0.3} {
		for _, load := range []float64{0.02, 0.1, 0.3, 0.6, 1.2} { // slots that are busy in the mean
			rate := load / (wall + 0.010)
			t.Run(fmt.Sprintf("%v s at %.1f/s", wall, rate), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(2) {
					f := newFlow(seed, rate, wall)
					f.run(0, 180)
					steady := f.changes
					for len(steady) > 0 && steady[0] < 30 {
						steady = steady[1:]
					}
					if got := most(steady); got > 10 {
						t.Errorf("seed %d: the slots changed %d times within a minute, want at most 10", seed, got)
					}
				}
			})
		}
	}
}

// TestABurstGetsItsSlotsAtOnce lets 200 tasks of 0.1 s come to a stage that has had a trickle for a minute; afterwards
// the stage goes to zero.
func TestABurstGetsItsSlotsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFlow(1, 2, 0.1)
	f.run(0, 60)
	f.state = fold(f.state, hint("r", "score", 200, 60))
	f.tick(60)
	if f.slots != 2 {
		t.Errorf("slots at the first tick after the burst: %d, want all 2", f.slots)
	}
	for task := range 200 {
		f.queue, f.since[f.tasks+task] = append(f.queue, f.tasks+task), 60
	}
	f.tasks, f.rate = f.tasks+200, 0
	f.run(60, 110)
	if f.slots != 0 {
		t.Errorf("slots 38 s after the last task: %d, want 0", f.slots)
	}
}

// TestTheMemoryLimitDoesNotFlap ends attempts whose peaks differ in several ways.
func TestTheMemoryLimitDoesNotFlap(t *testing.T) {
	t.Parallel()
	for name, peak := range map[string]func(f *flow, task int) quantity.Bytes{
		"evenly": func(f *flow, _ int) quantity.Bytes {
			return 20*quantity.MiB + quantity.Bytes(f.draw.IntN(int(4*quantity.MiB)))
		},
		"with a tail": func(f *flow, _ int) quantity.Bytes {
			return quantity.Bytes((20 + f.draw.ExpFloat64()) * float64(quantity.MiB))
		},
		"now and then larger": func(_ *flow, task int) quantity.Bytes {
			return quantity.Bytes(20+task%23/22*4) * quantity.MiB
		},
		"in turns": func(_ *flow, task int) quantity.Bytes {
			return quantity.Bytes(20+task/70%2*3) * quantity.MiB
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				f := newFlow(seed, 50, 0.001)
				f.memory = func(task int) quantity.Bytes { return peak(f, task) }
				f.run(0, 180)
				steady := f.sizes
				for len(steady) > 0 && steady[0] < 30 {
					steady = steady[1:]
				}
				if got := most(steady); got > 4 {
					t.Errorf("seed %d: the size changed %d times within a minute, want at most 4", seed, got)
				}
			}
		})
	}
}

// TestTheShareOfCoresDoesNotFlap serves steady flows of tasks that are faster on more cores, at loads at which the pool
// is idle, full, and now one and now the other.
func TestTheShareOfCoresDoesNotFlap(t *testing.T) {
	t.Parallel()
	for name, took := range map[string]func(cpu float64) (seconds, cores, held float64){
		"two threads": func(cpu float64) (seconds, cores, held float64) {
			seconds = 0.4 / min(cpu, 2)
			return seconds, 0.4 / seconds, max(0, 2-cpu)
		},
		"two threads for a part": func(cpu float64) (seconds, cores, held float64) {
			alone, together := 0.15*max(1, 1/cpu), 0.25/min(cpu, 2)
			seconds = alone + together
			return seconds, 0.4 / seconds, ((alone - 0.15) + max(0, 2-cpu)*together) / seconds
		},
		"waits": func(cpu float64) (seconds, cores, held float64) {
			seconds = 0.2 + 0.2*max(1, 1/cpu)
			return seconds, 0.2 / seconds, (seconds - 0.4) / seconds
		},
	} {
		for _, rate := range []float64{0.5, 2, 4} {
			t.Run(fmt.Sprintf("%s, %v/s", name, rate), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(2) {
					f := newFlow(seed, rate, 0.4)
					f.state, f.cpu = fold(predictor.State{}, started("r", 0, predictor.Goal{})), quantity.Core
					f.took = func(cpu quantity.Milli) quantity.Usage {
						seconds, cores, held := took(cpu.Cores())
						seconds *= 1 + 0.05*f.draw.NormFloat64()
						wall := time.Duration(seconds * float64(time.Second))
						return quantity.Usage{
							Wall: wall, CPU: time.Duration(cores * float64(wall)), Throttled: time.Duration(held * float64(wall)),
						}
					}
					f.run(0, 300)
					steady := f.shares
					for len(steady) > 0 && steady[0] < 60 {
						steady = steady[1:]
					}
					if got := most(steady); got > 1 {
						t.Errorf("seed %d: the share of cores changed %d times within a minute, want at most once: %v\n%s", seed, got,
							f.shares, strings.Join(f.told, "\n"))
					}
				}
			})
		}
	}
}

// TestSamplesDoNotMakeTheShareOfCoresFlap runs a dozen attempts of two minutes at a time for four hours, of which the
// second thread only spins: one core holds them back, and two make them no faster.
func TestSamplesDoNotMakeTheShareOfCoresFlap(t *testing.T) {
	t.Parallel()
	const attempts, wall = 12, 120
	rate := func(cpu quantity.Milli) float64 { return min(cpu.Cores(), 1.95) }
	held := func(cpu quantity.Milli) float64 { return 1.95 - rate(cpu) }
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", attempts, 0))
	cpu, tasks := quantity.Core, 0
	var told []string
	var running [attempts]struct {
		task int
		cpu  quantity.Milli
	}
	for second := range 4 * 3600 {
		now := float64(second)
		for i := range running {
			one := &running[i]
			if left := (second + i*wall/attempts) % wall; left == 0 && second > 0 {
				line := record("r", "score", one.task, now, wall)
				line.Grant.CPU = one.cpu
				line.Usage.CPU = time.Duration(rate(one.cpu) * float64(line.Usage.Wall))
				line.Usage.Throttled = time.Duration(held(one.cpu) * float64(line.Usage.Wall))
				state = fold(state, line, hint("r", "score", 1, now))
			} else if second > 0 {
				state = predictor.Fold(state, predictor.Sampled{
					Run: "r", Stage: stageNamed("score"), Task: fmt.Sprintf("score-%d", one.task), Attempt: 1,
					Venue: predictor.Pool, Host: "laptop", CPU: quantity.Milli(1000 * rate(one.cpu)), Memory: quantity.MiB,
					Throttled: held(one.cpu), Grant: quantity.Size{CPU: one.cpu}, At: after(now),
				})
				continue
			}
			one.task, one.cpu, tasks = tasks, cpu, tasks+1
			begun := start("r", "score", one.task, now)
			begun.Grant.CPU = one.cpu
			state = predictor.Fold(state, begun)
		}
		if second%5 > 0 {
			continue
		}
		var plan predictor.Plan
		snap := laptop(now, 64)
		snap.Functions.Enabled = false
		plan, state = predictor.Decide(state, snap)
		if next := plan.Sizings[0].Base.CPU; next != cpu {
			told, cpu = append(told, fmt.Sprintf("%d s: %s to %s", second, cpu, next)), next
		}
	}
	if len(told) > 8 { // two cores are tried again each 512 attempts
		t.Errorf("the share of cores changed %d times in four hours, want 8 at most:\n%s", len(told),
			strings.Join(told, "\n"))
	}
}

// TestAPhaseOfAnAttemptDoesNotOutweighThoseThatEnded samples the start of an attempt, which computes; the rest waits.
func TestAPhaseOfAnAttemptDoesNotOutweighThoseThatEnded(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 2, 0))
	for task := range 20 {
		line := record("earlier", "score", task, -100, 3600)
		line.Usage.CPU, line.Grant.CPU = time.Minute, quantity.Core
		line.Usage.Throttled = time.Second
		state = predictor.Fold(state, line)
	}
	plan, state := predictor.Decide(state, laptop(0, 4))
	share := plan.Sizings[0].Base.CPU
	if share > quantity.Core/5 {
		t.Fatalf("a share of %s cores for attempts that use a sixtieth of one", share)
	}
	state = predictor.Fold(state, start("r", "score", 100, 1))
	for second := range 200 {
		state = predictor.Fold(state, predictor.Sampled{
			Run: "r", Stage: stageNamed("score"), Task: "score-100", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
			CPU: share, Memory: quantity.MiB, Throttled: 0.5, Grant: quantity.Size{CPU: share}, At: after(float64(second + 2)),
		})
	}
	plan, _ = predictor.Decide(state, laptop(203, 4))
	if slower := plan.Sizings[0].Speed.Slower(1, share.Cores()); slower > 1.5 {
		t.Errorf("after 200 s of its start an attempt of an hour is expected to take %.1f times as long with %s cores",
			slower, share)
	}
}
