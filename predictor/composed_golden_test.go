package predictor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestComposedStreamsAreDecidedAsBefore plays scripts that reach what recorded streams seldom do (deadlines, budgets,
// shared hosts, functions that pay and that do not, sizes that follow inputs) and compares what is decided, forecast
// and expected with golden files. A change that is meant to decide nothing else leaves them as they are.
func TestComposedStreamsAreDecidedAsBefore(t *testing.T) {
	t.Parallel()
	for _, s := range scripts() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var told strings.Builder
			state := s.play(t, func(snapshot predictor.Snapshot, plan predictor.Plan, state predictor.State) {
				fmt.Fprintf(&told, "tick %d %s\n", plan.Tick, digest(encode(t, plan)))
				for _, d := range plan.Decisions {
					fmt.Fprintf(&told, "  %s %s %s %s: %s -> %s: %s\n", d.Stage.Name, d.Venue, d.Run, d.What, d.From, d.To, d.Reason)
				}
				if plan.Tick%10 == 5 {
					s.expect(t, &told, snapshot, state)
				}
			})
			fmt.Fprintf(&told, "end %s\n", digest(encode(t, state)))
			compareLines(t, "testdata/composed/"+s.name+".gz", told.String())
		})
	}
}

// expect tells what is expected of every run that goes on, and of a goal of each kind that it could have.
func (s script) expect(t *testing.T, told *strings.Builder, now predictor.Snapshot, state predictor.State) {
	t.Helper()
	for _, run := range s.runs {
		forecast, known := state.Forecast(run.id, now.Now)
		own := state.Outlook(run.id, run.goal, now)
		if own.Elapsed == 0 {
			continue
		}
		var others strings.Builder
		for _, goal := range []predictor.Goal{
			{},
			{Deadline: seconds(own.Elapsed + 20)},
			{Minimise: predictor.Latency},
			{Minimise: predictor.Cost},
			{Deadline: seconds(own.Elapsed + 60), Budget: quantity.USD.Times(0.002)},
		} {
			others.WriteString(" " + digest(encode(t, state.Outlook(run.id, goal, now))))
		}
		fmt.Fprintf(told, "  %s: forecast %t %s, outlook %s%s: %s\n", run.id, known, digest(encode(t, forecast)),
			digest(encode(t, own)), others.String(), own.Summary)
	}
}

// scripts are what is played, each for one part of what is decided.
func scripts() []script {
	return []script{
		deadlines(), dividedGoals(), spills(), withheld(), shares(), sizesThatFollow(), sizesOfDevices(), firstSizes(),
		windows(), switchedOff(),
	}
}

// flat takes so many seconds, a fifth more or less.
func flat(wall float64) func(*rand.Rand, quantity.Bytes) float64 {
	return func(draw *rand.Rand, _ quantity.Bytes) float64 { return wall * (0.8 + 0.4*draw.Float64()) }
}

func constant(peak quantity.Bytes) func(quantity.Bytes, map[string]float64) quantity.Bytes {
	return func(quantity.Bytes, map[string]float64) quantity.Bytes { return peak }
}

func evenly(most quantity.Bytes) func(*rand.Rand, int) quantity.Bytes {
	return func(draw *rand.Rand, _ int) quantity.Bytes { return quantity.Bytes(draw.Int64N(int64(most))) }
}

// simple is a stage of n tasks of about wall seconds, one core and 200 MiB.
func simple(stage string, n int, wall float64) load {
	return load{stage: stage, tasks: n, wall: flat(wall), cores: 1, peak: constant(200 * quantity.MiB)}
}

// machine is a host of so many cores, with four GiB for each.
func machine(id string, cores int) predictor.Host {
	return predictor.Host{ID: id, Capacity: quantity.Size{
		CPU: quantity.Milli(cores) * quantity.Core, Memory: quantity.Bytes(cores) * 4 * quantity.GiB,
	}}
}

func always(hosts ...predictor.Host) func(float64) []predictor.Host {
	return func(float64) []predictor.Host { return append([]predictor.Host(nil), hosts...) }
}

// scripted is a script on one host of two cores, with functions at Lambda's price.
func scripted(name string, length int, runs ...scriptedRun) script {
	usual := laptop(0, 2)
	return script{
		name: name, seconds: length, hosts: always(machine("a", 2)), venue: usual.Functions, policy: usual.Policy, runs: runs,
	}
}

// taught are runs of a pipeline one after the other, before what matters.
func taught(pipeline string, at, apart float64, n int, stages ...load) (runs []scriptedRun) {
	for i := range n {
		runs = append(runs, scriptedRun{
			id: fmt.Sprintf("%s-taught-%d", pipeline, i), pipeline: pipeline, at: at + apart*float64(i), stages: stages,
			goal: predictor.Goal{Minimise: predictor.Cost},
		})
	}
	return runs
}

// deadlines has runs of one pipeline with deadlines that are easy, tight and lost, that share a stage, and whose goals
// change.
func deadlines() script {
	by := func(seconds float64) predictor.Goal { return predictor.Goal{Deadline: time.Duration(seconds * 1e9)} }
	pipeline := []load{simple("prepare", 4, 1), simple("score", 40, 1.5), simple("report", 1, 4)}
	runs := taught("p", 0, 60, 3, simple("prepare", 4, 1), simple("score", 12, 1.5), simple("report", 1, 4))
	runs = append(runs, taught("q", 20, 70, 2, simple("score", 10, 2), simple("rank", 6, 1))...)
	left, right := simple("rank", 25, 1), simple("prepare", 40, 0.8)
	right.beside = true
	runs = append(runs, taught("both", 160, 20, 1, simple("rank", 4, 1), right)...)
	return scripted("deadlines", 520, append(
		runs,
		scriptedRun{id: "easy", pipeline: "p", at: 200, goal: by(150), stages: pipeline},
		scriptedRun{id: "tight", pipeline: "p", at: 205, goal: by(35), stages: pipeline},
		scriptedRun{id: "none", pipeline: "q", at: 210, stages: []load{simple("score", 60, 1.5), simple("rank", 20, 1)}},
		scriptedRun{id: "lost", pipeline: "p", at: 330, goal: by(6), stages: pipeline},
		scriptedRun{
			id: "turned", pipeline: "q", at: 335, stages: []load{simple("score", 50, 1.5), simple("rank", 30, 1)},
			changes: map[float64]predictor.Goal{
				345: by(60), 365: {Deadline: 50 * time.Second, Minimise: predictor.Latency}, 400: {},
			},
		},
		scriptedRun{id: "both", pipeline: "both", at: 410, goal: by(30), stages: []load{left, right}},
		scriptedRun{id: "later", pipeline: "both", at: 412, goal: by(5), stages: []load{left}},
		scriptedRun{id: "thrifty", pipeline: "p", at: 340, goal: predictor.Goal{
			Deadline: 60 * time.Second, Budget: quantity.USD.Times(0.0005), Minimise: predictor.Cost,
		}, stages: pipeline},
	)...)
}

// dividedGoals has runs whose first stage is dear at functions and whose second is not: with deadlines that are easy,
// tight, lost and changed, with budgets, and two at once.
func dividedGoals() script {
	dear := simple("dear", 24, 1.5)
	dear.peak = constant(3 * quantity.GiB)
	pipeline := []load{dear, simple("cheap", 30, 1.5), simple("last", 2, 2)}
	by := func(seconds float64) predictor.Goal { return predictor.Goal{Deadline: time.Duration(seconds * 1e9)} }
	budget := func(usd float64) predictor.Goal {
		return predictor.Goal{Minimise: predictor.Latency, Budget: quantity.USD.Times(usd)}
	}
	sure := by(50)
	sure.Confidence, sure.Budget = 0.99, quantity.USD.Times(0.004)
	return scripted("divided", 620, append(
		taught("p", 0, 60, 3, pipeline...),
		scriptedRun{id: "easy", pipeline: "p", at: 200, goal: by(120), stages: pipeline},
		scriptedRun{id: "tight", pipeline: "p", at: 260, goal: by(34), stages: pipeline},
		scriptedRun{id: "lost", pipeline: "p", at: 310, goal: by(6), stages: pipeline},
		scriptedRun{
			id: "turned", pipeline: "p", at: 350, goal: by(200), stages: pipeline,
			changes: map[float64]predictor.Goal{356: by(36), 370: {}},
		},
		scriptedRun{id: "paid", pipeline: "p", at: 410, goal: budget(0.004), stages: pipeline},
		scriptedRun{id: "poor", pipeline: "p", at: 460, goal: budget(0.0004), stages: pipeline},
		scriptedRun{id: "sure", pipeline: "p", at: 520, goal: sure, stages: pipeline},
		scriptedRun{id: "beside", pipeline: "p", at: 522, goal: by(70), stages: pipeline},
	)...)
}

// spills has backlogs for which functions pay, do not, are too small, too slow or too few, and budgets that bound them.
func spills() script {
	wide := simple("wide", 30, 2)
	wide.peak = constant(900 * quantity.MiB)
	long := simple("long", 6, 20)
	busy := simple("busy", 30, 1)
	busy.cores = 1.6
	kept := simple("kept", 10, 1)
	kept.poolOnly = true
	trickle := simple("trickle", 40, 1.2)
	trickle.each = 0.5
	partly := simple("score", 6, 1)
	partly.reused = 4
	huge := simple("huge", 4, 1)
	huge.peak = constant(5 * quantity.GiB)
	runs := taught("p", 0, 40, 2, simple("score", 8, 1), wide, busy)
	s := scripted("spills", 600, append(
		runs,
		scriptedRun{id: "worth", pipeline: "p", at: 150, stages: []load{simple("score", 80, 1), wide, busy}},
		scriptedRun{id: "small", pipeline: "p", at: 160, stages: []load{simple("score", 3, 1), kept}},
		scriptedRun{id: "fast", pipeline: "p", at: 220, goal: predictor.Goal{Minimise: predictor.Latency}, stages: []load{
			simple("score", 40, 1), wide, trickle,
		}},
		scriptedRun{id: "poor", pipeline: "p", at: 225, goal: predictor.Goal{
			Minimise: predictor.Latency, Budget: quantity.USD.Times(0.0006),
		}, stages: []load{simple("score", 60, 1), busy}},
		scriptedRun{id: "partly", pipeline: "s", at: 290, stages: []load{partly, simple("rank", 4, 1)}},
		scriptedRun{id: "as partly", pipeline: "s", at: 310, stages: []load{partly, simple("rank", 4, 1)}},
		scriptedRun{id: "whole", pipeline: "s", at: 315, stages: []load{simple("score", 10, 1), simple("rank", 4, 1)}},
		scriptedRun{id: "free", pipeline: "r", at: 330, stages: []load{long, huge, trickle}},
		scriptedRun{id: "again", pipeline: "r", at: 420, stages: []load{long, huge, trickle}},
	)...)
	s.venue.Concurrency, s.venue.Cores = 6, 5*quantity.Core
	s.venue.MaxMemory, s.venue.MaxDuration = 4*quantity.GiB, 25*time.Second
	return s
}

// withheld has large attempts that follow each other on the only host, beside tasks that functions end sooner than it
// has room for them.
func withheld() script {
	block := func(stage string, n int, wall float64) load {
		l := simple(stage, n, wall)
		l.cores, l.peak = 1, constant(6600*quantity.MiB)
		l.declared = quantity.Size{CPU: quantity.Core, Memory: 7600 * quantity.MiB}
		return l
	}
	quiet := block("quiet", 6, 12)
	quiet.silent = true
	short := func(n int) load {
		l := simple("short", n, 2.5)
		l.each, l.peak = 3, constant(700*quantity.MiB)
		return l
	}
	return scripted("withheld", 420,
		scriptedRun{id: "before", pipeline: "p", at: 0, goal: predictor.Goal{Minimise: predictor.Cost}, stages: []load{
			block("large", 6, 9), short(20), block("middling", 3, 3), quiet,
		}},
		scriptedRun{id: "a", pipeline: "p", at: 190, goal: predictor.Goal{Minimise: predictor.Cost}, stages: []load{
			block("large", 5, 9), block("middling", 20, 3), quiet,
		}},
		scriptedRun{id: "b", pipeline: "q", at: 200, goal: predictor.Goal{Minimise: predictor.Latency}, stages: []load{
			short(60),
		}},
	)
}

// shares has stages that share three hosts, of which one comes, goes and starts anew.
func shares() script {
	slow := simple("slow", 6, 9)
	slow.peak = constant(3 * quantity.GiB)
	flaky := simple("flaky", 20, 1.5)
	flaky.fails = 4
	drip := simple("drip", 60, 0.2)
	drip.each = 0.75
	half := simple("half", 30, 1)
	half.cores = 0.4
	brief := simple("brief", 50, 0.03)
	brief.wall = func(draw *rand.Rand, _ quantity.Bytes) float64 { return 0.018 + 0.016*draw.Float64() }
	s := scripted("shares", 420,
		scriptedRun{id: "a", pipeline: "p", at: 0, stages: []load{simple("score", 50, 1), slow, simple("rank", 20, 2)}},
		scriptedRun{id: "b", pipeline: "q", at: 10, stages: []load{flaky, drip}},
		scriptedRun{id: "c", pipeline: "q", at: 20, stages: []load{half, flaky}},
		scriptedRun{id: "d", pipeline: "p", at: 130, stages: []load{simple("score", 90, 1), slow}},
		scriptedRun{id: "e", pipeline: "p", at: 140, goal: predictor.Goal{Deadline: 60 * time.Second}, stages: []load{
			simple("rank", 40, 2), simple("score", 10, 1),
		}},
		scriptedRun{id: "h", pipeline: "q", at: 195, stages: []load{simple("patient", 8, 60)}},
		scriptedRun{id: "f", pipeline: "q", at: 300, stages: []load{drip, half}},
		scriptedRun{id: "g", pipeline: "q", at: 310, stages: []load{brief, half, brief}},
	)
	s.venue.Enabled = false
	s.policy.IdleAfter = 15 * time.Second
	s.hosts = func(now float64) []predictor.Host {
		hosts := []predictor.Host{machine("b", 4), machine("a", 2)}
		if now >= 40 && (now < 150 || now > 180) && (now < 200 || now >= 214) {
			hosts = append(hosts, machine("c", 3))
		}
		if now >= 270 && now < 280 {
			return nil
		}
		return hosts
	}
	s.restarts = map[float64]string{180.25: "c", 60: "b"}
	return s
}

// sizesThatFollow has peaks that follow the input, another feature or nothing, that move, and that were predicted
// wrongly.
func sizesThatFollow() script {
	byInput := load{
		stage: "input", tasks: 40, wall: flat(1), cores: 1, input: evenly(100 * quantity.MiB),
		peak: func(input quantity.Bytes, _ map[string]float64) quantity.Bytes { return 60*quantity.MiB + 9*input },
	}
	byRows := load{
		stage: "rows", tasks: 40, wall: flat(0.5), cores: 0.7, input: evenly(quantity.KiB),
		features: func(draw *rand.Rand, i int) map[string]float64 {
			return map[string]float64{"rows": float64(draw.IntN(1000)), "shard": float64(i), "width": float64(draw.IntN(50))}
		},
		peak: func(_ quantity.Bytes, features map[string]float64) quantity.Bytes {
			return 50*quantity.MiB + quantity.Bytes(features["rows"]*features["rows"]*1500)
		},
	}
	wild := simple("wild", 40, 0.8)
	wild.input = evenly(quantity.MiB)
	wild.peak = func(input quantity.Bytes, _ map[string]float64) quantity.Bytes {
		return 100*quantity.MiB + input%(37*quantity.KiB)*30_000
	}
	shrinks := func(peak quantity.Bytes) load {
		l := simple("shrinks", 30, 0.5)
		l.peak = constant(peak)
		return l
	}
	unsteady := simple("unsteady", 40, 1)
	unsteady.wall = func(draw *rand.Rand, _ quantity.Bytes) float64 { return 0.25 * float64(uint(1)<<draw.IntN(7)) }
	s := scripted("sizes", 700,
		scriptedRun{id: "a", pipeline: "p", at: 0, stages: []load{byInput, byRows, wild, shrinks(quantity.GiB)}},
		scriptedRun{id: "b", pipeline: "p", at: 30, stages: []load{byInput, byRows}},
		scriptedRun{id: "c", pipeline: "q", at: 200, stages: []load{
			shrinks(300 * quantity.MiB), shrinks(200 * quantity.MiB), shrinks(100 * quantity.MiB), unsteady,
			shrinks(2 * quantity.GiB), byRows,
		}},
		scriptedRun{id: "d", pipeline: "q", at: 420, stages: []load{wild, shrinks(100 * quantity.MiB), unsteady, byInput}},
	)
	s.hosts = always(machine("a", 6))
	s.venue.Enabled = false
	return s
}

// sizesOfDevices has stages that declare a part of a GPU.
func sizesOfDevices() script {
	gpu := machine("gpu", 4)
	gpu.Capacity.GPU, gpu.Capacity.GPUMemory, gpu.Capacity.DeviceClass = 2*quantity.Core, 80*quantity.GiB, "h200"
	train := load{
		stage: "train", tasks: 12, wall: flat(4), cores: 1, peak: constant(quantity.GiB), device: 9 * quantity.GiB,
		declared: quantity.Size{GPU: quantity.Core, GPUMemory: 6 * quantity.GiB, DeviceClass: "h200"},
	}
	s := scripted("devices", 240,
		scriptedRun{id: "a", pipeline: "p", at: 0, stages: []load{simple("score", 20, 1), train}},
		scriptedRun{id: "b", pipeline: "p", at: 5, goal: predictor.Goal{Deadline: time.Minute}, stages: []load{
			train, simple("score", 20, 1),
		}},
		scriptedRun{id: "c", pipeline: "p", at: 120, stages: []load{train}},
	)
	s.hosts = always(machine("a", 2), gpu)
	s.restarts = map[float64]string{30: "gpu", 50: "gpu"}
	return s
}

// firstSizes has stages that nobody has seen: declared in part, of large inputs, before there is a host, and attempts
// so long that only samples tell what they take.
func firstSizes() script {
	declared := simple("declared", 6, 2)
	declared.declared = quantity.Size{CPU: 500, Memory: 150 * quantity.MiB}
	cores := simple("cores", 6, 2)
	cores.declared = quantity.Size{CPU: 2 * quantity.Core}
	large := simple("large", 3, 2)
	large.input = func(_ *rand.Rand, i int) quantity.Bytes { return quantity.Bytes(i+1) * 300 * quantity.MiB }
	huge := simple("monster", 2, 2)
	huge.peak = constant(7 * quantity.GiB)
	long := simple("long", 2, 250)
	long.cores, long.peak = 0.6, constant(1200*quantity.MiB)
	s := scripted("first", 420,
		scriptedRun{id: "a", pipeline: "p", at: 0, stages: []load{declared, cores, large, huge}},
		scriptedRun{id: "b", pipeline: "p", at: 1, stages: []load{long, declared}},
		scriptedRun{id: "c", pipeline: "p", at: 90, stages: []load{declared, huge}},
	)
	s.hosts = func(now float64) []predictor.Host {
		if now < 4 {
			return nil
		}
		return []predictor.Host{machine("a", 3)}
	}
	return s
}

// windows has Maps whose windows grow, and runs that overtake others.
func windows() script {
	many := simple("many", 400, 0.4)
	runs := taught("p", 0, 30, 2, simple("many", 20, 0.4), simple("last", 2, 1))
	s := scripted("windows", 300, append(
		runs,
		scriptedRun{id: "flood", pipeline: "p", at: 70, stages: []load{many, simple("last", 4, 1)}},
		scriptedRun{id: "late", pipeline: "p", at: 80, goal: predictor.Goal{Deadline: 15 * time.Second}, stages: []load{
			simple("many", 60, 0.4), simple("last", 2, 1),
		}},
		scriptedRun{
			id: "hurries", pipeline: "p", at: 82, goal: predictor.Goal{Deadline: 100 * time.Second},
			stages: []load{simple("many", 30, 0.4), simple("last", 2, 1)},
			changes: map[float64]predictor.Goal{
				90: {Deadline: 20 * time.Second}, 95: {Deadline: 45 * time.Second}, 99: {Deadline: 500 * time.Second},
			},
		},
	)...)
	s.hosts = func(now float64) []predictor.Host {
		if now < 90 {
			return []predictor.Host{machine("a", 4)}
		}
		return []predictor.Host{machine("a", 4), machine("b", 16)}
	}
	s.venue.Concurrency = 3
	s.policy.Window, s.policy.MaxWindow = 20, 70
	return s
}

// switchedOff has a predictor that only watches.
func switchedOff() script {
	byInput := load{
		stage: "input", tasks: 20, wall: flat(1), cores: 1, input: evenly(50 * quantity.MiB),
		peak: func(input quantity.Bytes, _ map[string]float64) quantity.Bytes { return 60*quantity.MiB + 9*input },
	}
	s := scripted("shadow", 120,
		scriptedRun{id: "a", pipeline: "p", at: 0, stages: []load{byInput, simple("score", 20, 1)}},
		scriptedRun{id: "b", pipeline: "p", at: 60, goal: predictor.Goal{Deadline: 20 * time.Second}, stages: []load{
			byInput,
		}},
	)
	s.policy.Shadow = true
	return s
}
