package predictor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// busyState is one in which n stages have a history of 64 attempts at two sizes, four that run and a backlog.
func busyState(n int) predictor.State {
	var state predictor.State
	state = fold(state, started("r", 0, predictor.Goal{}))
	for i := range n {
		stage := fmt.Sprintf("stage-%04d", i)
		for task := range 64 {
			line := record("earlier", stage, task, -100, 0.1+float64(task%7)/10)
			line.Usage.PeakMemory = quantity.Bytes(task%13+50) * quantity.MiB
			line.Usage.Input = quantity.Bytes(task%5) * quantity.MiB
			line.Grant.CPU = quantity.Core * quantity.Milli(1+task%2)
			state = fold(state, line)
		}
		state = fold(state, hint("r", stage, 10+i%50, 0))
		for task := range 4 {
			begun := start("r", stage, task, 0)
			begun.Grant.CPU = quantity.Core * quantity.Milli(1+task%2)
			state = fold(state, begun)
		}
	}
	return state
}

func BenchmarkDecide(b *testing.B) {
	for _, stages := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("stages=%d", stages), func(b *testing.B) {
			state := busyState(stages)
			snap := laptop(1, 64)
			var plan predictor.Plan
			plan, state = predictor.Decide(state, snap)
			if len(plan.Sizings) != stages {
				b.Fatalf("%d stages are sized, want %d", len(plan.Sizings), stages)
			}
			b.ReportAllocs()
			for b.Loop() {
				plan, state = predictor.Decide(state, snap)
			}
			b.StopTimer()
			if len(plan.Decisions) != 0 {
				b.Fatalf("nothing changed, and yet: %v", reasons(plan))
			}
		})
	}
}

// BenchmarkDecideOnManyHosts has each stage want more than it has, and a quarter of all attempts end and begin between
// two ticks.
func BenchmarkDecideOnManyHosts(b *testing.B) {
	for _, size := range []struct{ hosts, stages int }{{10, 100}, {100, 1000}, {1000, 1000}, {1000, 10_000}} {
		b.Run(fmt.Sprintf("hosts=%d/stages=%d", size.hosts, size.stages), func(b *testing.B) {
			state := busyState(size.stages)
			snap := laptop(1, 4)
			one := snap.Hosts[0]
			snap.Hosts = nil
			for i := range size.hosts {
				one.ID = fmt.Sprintf("host-%04d", i)
				snap.Hosts = append(snap.Hosts, one)
			}
			b.ReportAllocs()
			placed := 0
			for b.Loop() {
				var plan predictor.Plan
				plan, state = predictor.Decide(state, snap)
				placed = len(plan.Placements)
			}
			if placed == 0 {
				b.Fatal("nothing is placed")
			}
		})
	}
}

// BenchmarkDecideForDeadlines has runs of two stages with deadlines, each of which tells of an attempt in every second,
// with four ticks in it.
func BenchmarkDecideForDeadlines(b *testing.B) {
	for _, runs := range []int{1, 10, 100} {
		for _, undivided := range []bool{false, true} {
			b.Run(fmt.Sprintf("runs=%d undivided=%v", runs, undivided), func(b *testing.B) {
				state := twoSteps(quantity.GiB, quantity.GiB)
				for i := range runs {
					run := fmt.Sprintf("r-%03d", i)
					goal := predictor.Goal{Deadline: 3*time.Hour + time.Duration(i)*time.Minute}
					state = fold(state, started(run, 0, goal), hint(run, "first", 40, 0))
				}
				tick := 0
				b.ReportAllocs()
				for b.Loop() {
					now := float64(tick) / 4
					for i := tick % 4; i < runs; i += 4 {
						state = predictor.Fold(state, record(fmt.Sprintf("r-%03d", i), "first", tick, now, 2))
					}
					snap := roomy(now)
					snap.Policy.Undivided = undivided
					_, state = predictor.Decide(state, snap)
					tick++
				}
			})
		}
	}
}

// attempts are the start and the Record of n tasks of one stage.
func attempts(n int) []predictor.Event {
	events := make([]predictor.Event, 0, 2*n)
	for i := range n {
		events = append(events, start("r", "score", i, float64(i)/100), record("r", "score", i, float64(i)/100+0.1, 0.1))
	}
	return events
}

func BenchmarkFoldStartAndRecord(b *testing.B) {
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 1_000_000, 0))
	events := attempts(100_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		state = predictor.Fold(state, events[i%len(events)])
		state = predictor.Fold(state, events[(i+1)%len(events)])
		i += 2
	}
}

// BenchmarkRecovery rebuilds a state from a million Records.
func BenchmarkRecovery(b *testing.B) {
	const records = 1_000_000
	events := make([]predictor.Event, 0, records)
	for i := range records {
		events = append(events, record("r", fmt.Sprintf("stage-%03d", i%100), i, float64(i)/1000, 0.1))
	}
	for b.Loop() {
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}))
		for _, event := range events {
			state = predictor.Fold(state, event)
		}
	}
	b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkCheckpoint(b *testing.B) {
	state := busyState(1000)
	size := len(encode(b, state))
	for b.Loop() {
		encode(b, state)
	}
	b.ReportMetric(float64(size), "bytes")
}

func TestFoldingAnAttemptAllocatesNothing(t *testing.T) {
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 1_000_000, 0))
	events := attempts(60_000)
	next := 0
	warm := func(n int) {
		for range n {
			state = predictor.Fold(state, events[next])
			next++
		}
	}
	warm(20_000)
	if got := testing.AllocsPerRun(1000, func() { warm(20) }); got > 0 {
		t.Errorf("folding the starts and the Records of ten attempts allocates %v times, want 0", got)
	}
}
