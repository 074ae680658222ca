package schedule_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/schedule"
)

func Example() {
	s, err := schedule.OneForwardOneBackward(2, 3, schedule.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, i := range s.Workers[1] {
		fmt.Println(i)
	}
	// Output:
	// receive activation 0 of stage 1
	// forward 0 of stage 1
	// backward 0 of stage 1
	// send gradient 0 of stage 1
	// receive activation 1 of stage 1
	// forward 1 of stage 1
	// backward 1 of stage 1
	// send gradient 1 of stage 1
	// receive activation 2 of stage 1
	// forward 2 of stage 1
	// backward 2 of stage 1
	// send gradient 2 of stage 1
	// step of stage 1
}

// equal is n times the same cost.
func equal(n int, cost float64) []float64 {
	return slices.Repeat([]float64{cost}, n)
}

func must(tb testing.TB, s schedule.Schedule, err error) schedule.Schedule {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func run(tb testing.TB, s schedule.Schedule, c schedule.Costs) schedule.Result {
	tb.Helper()
	result, err := schedule.Simulate(s, c)
	if err != nil {
		tb.Fatal(err)
	}
	return result
}

func close9(got, want float64) bool { return math.Abs(got-want) <= 1e-9*max(1, math.Abs(want)) }

func TestTheBubbleOfEqualStagesIsThatOfTheLiterature(t *testing.T) {
	t.Parallel()
	for workers := 1; workers <= 6; workers++ {
		for micro := 1; micro <= 24; micro++ {
			want := float64(workers-1) / float64(micro+workers-1)
			for name, plan := range map[string]func(int, int, schedule.Options) (schedule.Schedule, error){
				"gpipe": schedule.GPipe, "1f1b": schedule.OneForwardOneBackward,
			} {
				made, err := plan(workers, micro, schedule.Options{})
				result := run(t, must(t, made, err), schedule.Costs{Forward: equal(workers, 0.7), Backward: equal(workers, 1.9)})
				if !close9(result.Bubble(), want) {
					t.Errorf("%s of %d stages and %d micro-batches: bubble %v, want %v", name, workers, micro, result.Bubble(), want)
				}
			}
			if micro%workers != 0 {
				continue
			}
			for chunks := 1; chunks <= 4; chunks++ {
				made, err := schedule.Interleaved(workers, micro, chunks, schedule.Options{})
				costs := schedule.Costs{Forward: equal(workers*chunks, 0.7), Backward: equal(workers*chunks, 1.9)}
				result := run(t, must(t, made, err), costs)
				want := float64(workers-1) / float64(chunks*micro+workers-1)
				if !close9(result.Bubble(), want) {
					t.Errorf("%d chunks on %d workers, %d micro-batches: bubble %v, want %v", chunks, workers, micro, result.Bubble(),
						want)
				}
			}
		}
	}
}

func TestGPipeOfUnequalStagesTakesTheSumAndTheSlowestAgainAndAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers, micro := rapid.IntRange(1, 7).Draw(t, "stages"), rapid.IntRange(1, 12).Draw(t, "micro-batches")
		costs := schedule.Costs{Forward: draw(t, "forward", workers), Backward: draw(t, "backward", workers)}
		made, err := schedule.GPipe(workers, micro, schedule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		result, err := schedule.Simulate(made, costs)
		if err != nil {
			t.Fatal(err)
		}
		want := 0.0
		for _, direction := range [][]float64{costs.Forward, costs.Backward} {
			for _, c := range direction {
				want += c
			}
			want += float64(micro-1) * slices.Max(direction)
		}
		if !close9(result.Makespan, want) {
			t.Fatalf("makespan %v, want %v", result.Makespan, want)
		}
	})
}

func draw(t *rapid.T, name string, n int) []float64 {
	return rapid.SliceOfN(rapid.Float64Range(0, 10), n, n).Draw(t, name)
}

func TestStagesHoldNoMoreActivationsThanTheScheduleSays(t *testing.T) {
	t.Parallel()
	for workers := 1; workers <= 6; workers++ {
		for micro := 1; micro <= 9; micro++ {
			made, err := schedule.OneForwardOneBackward(workers, micro, schedule.Options{})
			got := run(t, must(t, made, err), schedule.Costs{}).PeakActivations
			all, err := schedule.GPipe(workers, micro, schedule.Options{})
			for stage := range workers {
				if want := min(workers-stage, micro); got[stage] != want {
					t.Errorf("1F1B: stage %d of %d holds %d of %d micro-batches, want %d", stage, workers, got[stage], micro, want)
				}
				if held := run(t, must(t, all, err), schedule.Costs{}).PeakActivations[stage]; held != micro {
					t.Errorf("GPipe: stage %d holds %d of %d micro-batches", stage, held, micro)
				}
			}
		}
	}
}

func TestEveryScheduleIsValidWithOneMessageInEachChannel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers, groups := rapid.IntRange(1, 6).Draw(t, "workers"), rapid.IntRange(1, 4).Draw(t, "groups")
		options := schedule.Options{
			Recompute: rapid.Bool().Draw(t, "recompute"),
			AllReduce: rapid.Bool().Draw(t, "all-reduce"),
		}
		var made schedule.Schedule
		var err error
		buffer := 1
		switch rapid.IntRange(0, 3).Draw(t, "schedule") {
		case 0:
			made, err = schedule.GPipe(workers, groups, options)
		case 1:
			made, err = schedule.OneForwardOneBackward(workers, groups, options)
		case 2:
			flight := rapid.SliceOfN(rapid.IntRange(1, 9), workers, workers).Draw(t, "in flight")
			slices.SortFunc(flight, func(a, b int) int { return b - a })
			made, err = schedule.InFlight(flight, groups, options)
			buffer = 9 // what stages hold beyond their own turn waits in the channels
		default:
			made, err = schedule.Interleaved(workers, groups*workers, rapid.IntRange(1, 3).Draw(t, "chunks"), options)
			buffer = workers
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := made.Validate(buffer); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRecomputationAndSumsOfGradientsAreCountedWhereTheyHappen(t *testing.T) {
	t.Parallel()
	made, err := schedule.OneForwardOneBackward(2, 4, schedule.Options{Recompute: true, AllReduce: true})
	s := must(t, made, err)
	costs := schedule.Costs{
		Forward: equal(2, 1), Backward: equal(2, 2), Recompute: equal(2, 1), AllReduce: []float64{0.5, 5},
		Step: equal(2, 0.25),
	}
	result := run(t, s, costs)
	// Four units for each micro-batch, one bubble of four; stage 1 ends its last backward pass one unit of three before
	// stage 0 does.
	if want := 20 - 3 + 5 + 0.25; !close9(result.Makespan, want) {
		t.Errorf("makespan %v, want %v", result.Makespan, want)
	}
	if diff := cmp.Diff([]float64{20, 17}, result.BackwardEnd); diff != "" {
		t.Error(diff)
	}
}

func TestTransfersAreHiddenByMoreMicroBatchesInFlight(t *testing.T) {
	t.Parallel()
	const workers, micro = 4, 64
	costs := schedule.Costs{Forward: equal(workers, 1), Backward: equal(workers, 1), Send: equal(workers-1, 0.9)}
	flight := []int{7, 5, 3, 1}
	few, err := schedule.OneForwardOneBackward(workers, micro, schedule.Options{})
	slow := run(t, must(t, few, err), costs).Makespan
	many, err := schedule.InFlight(flight, micro, schedule.Options{})
	fast := run(t, must(t, many, err), costs).Makespan
	if fast >= slow || fast > 1.15*2*micro {
		t.Errorf("%v with more in flight, %v with few; the work alone takes %v", fast, slow, 2*micro)
	}
}

func TestInvalidSchedulesAreRefused(t *testing.T) {
	t.Parallel()
	good := func() schedule.Schedule {
		s, err := schedule.OneForwardOneBackward(3, 4, schedule.Options{Recompute: true, AllReduce: true})
		return must(t, s, err)
	}
	if err := good().Validate(1); err != nil {
		t.Fatal(err)
	}
	for worker, list := range good().Workers {
		for at := range list {
			without := good()
			without.Workers[worker] = slices.Delete(slices.Clone(list), at, at+1)
			// Nothing but the recomputation and the sum of gradients is optional.
			if optional := list[at].Kind == schedule.Recompute ||
				list[at].Kind == schedule.AllReduce; !optional && without.Validate(0) == nil {
				t.Errorf("worker %d without %v is valid", worker, list[at])
			}
			twice := good()
			twice.Workers[worker] = slices.Insert(slices.Clone(list), at, list[at])
			if err := twice.Validate(0); !errors.Is(err, schedule.ErrSchedule) {
				t.Errorf("worker %d with %v twice: %v", worker, list[at], err)
			}
		}
	}
	swapped := good()
	swapped.Workers[0], swapped.Workers[1] = swapped.Workers[1], swapped.Workers[0]
	if swapped.Validate(0) == nil {
		t.Error("workers that run the stages of each other are valid")
	}
}

func TestADeadlockIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	// The first stage sends all five micro-batches before it takes a gradient; the second one wants to give a gradient
	// away first.
	s, err := schedule.GPipe(2, 5, schedule.Options{})
	s = must(t, s, err)
	late := s
	late.Workers = slices.Clone(s.Workers)
	other, err := schedule.OneForwardOneBackward(2, 5, schedule.Options{})
	late.Workers[1] = must(t, other, err).Workers[1]
	if err := late.Validate(0); err != nil {
		t.Errorf("with channels of any size: %v", err)
	}
	if err := late.Validate(1); !errors.Is(err, schedule.ErrSchedule) {
		t.Errorf("with channels of one message: %v, want a deadlock", err)
	}
}

func TestSimulationAgreesWithOneThatMovesTheClockInSmallSteps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers, micro := rapid.IntRange(1, 4).Draw(t, "workers"), rapid.IntRange(1, 5).Draw(t, "micro-batches")
		whole := func(name string, n int) []float64 {
			costs := make([]float64, n)
			for i := range costs {
				costs[i] = float64(rapid.IntRange(0, 5).Draw(t, name))
			}
			return costs
		}
		costs := schedule.Costs{
			Forward: whole("forward", workers), Backward: whole("backward", workers), Send: whole("send", workers-1),
			Buffer: rapid.IntRange(0, 2).Draw(t, "buffer"),
		}
		made, err := schedule.OneForwardOneBackward(workers, micro, schedule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		result, err := schedule.Simulate(made, costs)
		if err != nil {
			t.Fatal(err)
		}
		if want := tick(made, costs); result.Makespan != float64(want) {
			t.Fatalf("makespan %v, the clock says %d", result.Makespan, want)
		}
	})
}

// tick runs a schedule of whole costs second by second: the slow, independent way.
func tick(s schedule.Schedule, c schedule.Costs) int {
	type message struct{ left, micro int }
	type line struct {
		onWay   []message // the first one travels
		arrived []int
	}
	lines := map[[2]int]*line{} // direction (0 down, 1 up) and stage of the sender
	at := func(up, stage int) *line {
		key := [2]int{up, stage}
		if lines[key] == nil {
			lines[key] = &line{}
		}
		return lines[key]
	}
	n := len(s.Workers)
	next, left := make([]int, n), slices.Repeat([]int{-1}, n) // left: seconds of the present pass; -1 is not begun
	for clock := range 100_000 {
		for moved := true; moved; { // all that happens within no time
			moved = false
			for _, l := range lines {
				for len(l.onWay) > 0 && l.onWay[0].left == 0 {
					l.arrived = append(l.arrived, l.onWay[0].micro)
					l.onWay = l.onWay[1:]
					moved = true
				}
			}
			for w := range n {
				if next[w] == len(s.Workers[w]) {
					continue
				}
				i := s.Workers[w][next[w]]
				done := false
				send := func(up, link int) {
					l := at(up, w)
					if c.Buffer == 0 || len(l.onWay)+len(l.arrived) < c.Buffer {
						l.onWay = append(l.onWay, message{int(c.Send[link]), i.MicroBatch})
						done = true
					}
				}
				receive := func(l *line) {
					if len(l.arrived) > 0 {
						l.arrived = l.arrived[1:]
						done = true
					}
				}
				switch i.Kind {
				case schedule.SendActivation:
					send(0, w)
				case schedule.SendGradient:
					send(1, w-1)
				case schedule.ReceiveActivation:
					receive(at(0, w-1))
				case schedule.ReceiveGradient:
					receive(at(1, w+1))
				case schedule.Forward, schedule.Backward:
					if left[w] < 0 {
						left[w] = int(c.Forward[w])
						if i.Kind == schedule.Backward {
							left[w] = int(c.Backward[w])
						}
					}
					done = left[w] == 0
				default:
					done = true
				}
				if done {
					next[w]++
					left[w] = -1
					moved = true
				}
			}
		}
		finished := true
		for w := range n {
			finished = finished && next[w] == len(s.Workers[w])
		}
		if finished {
			return clock
		}
		for w := range n {
			if left[w] > 0 {
				left[w]--
			}
		}
		for _, l := range lines {
			if len(l.onWay) > 0 {
				l.onWay[0].left--
			}
		}
	}
	return -1
}

func TestBadNumbersAreRefused(t *testing.T) {
	t.Parallel()
	for _, made := range []func() (schedule.Schedule, error){
		func() (schedule.Schedule, error) { return schedule.GPipe(0, 1, schedule.Options{}) },
		func() (schedule.Schedule, error) { return schedule.GPipe(1, 0, schedule.Options{}) },
		func() (schedule.Schedule, error) { return schedule.GPipe(1000, 1_000_000, schedule.Options{}) },
		func() (schedule.Schedule, error) { return schedule.Interleaved(3, 4, 2, schedule.Options{}) },
		func() (schedule.Schedule, error) { return schedule.InFlight([]int{1, 2}, 4, schedule.Options{}) },
		func() (schedule.Schedule, error) { return schedule.InFlight(nil, 4, schedule.Options{}) },
	} {
		if _, err := made(); !errors.Is(err, schedule.ErrSchedule) {
			t.Errorf("got %v, want a refusal", err)
		}
	}
	s, err := schedule.GPipe(2, 2, schedule.Options{})
	for _, costs := range []schedule.Costs{
		{Forward: equal(3, 1)},
		{Forward: []float64{1, math.NaN()}},
		{Backward: []float64{1, -1}},
		{Send: []float64{math.Inf(1)}},
		{Buffer: -1},
		{Contention: make([]schedule.Contention, 3)},
		{Contention: []schedule.Contention{{}, {Backward: math.NaN()}}},
	} {
		if _, err := schedule.Simulate(must(t, s, err), costs); !errors.Is(err, schedule.ErrSchedule) {
			t.Errorf("%+v: got %v, want a refusal", costs, err)
		}
	}
}

func BenchmarkSimulate(b *testing.B) {
	for _, micro := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("8x%d", micro), func(b *testing.B) {
			made, err := schedule.OneForwardOneBackward(8, micro, schedule.Options{})
			s := must(b, made, err)
			costs := schedule.Costs{Forward: equal(8, 1), Backward: equal(8, 2)}
			for b.Loop() {
				run(b, s, costs)
			}
		})
	}
}

func TestWorkersSlowEachOtherDownWhileBothWork(t *testing.T) {
	t.Parallel()
	s := schedule.Schedule{Stages: 2, MicroBatches: 1, Workers: [][]schedule.Instruction{
		{{Kind: schedule.Forward}, {Kind: schedule.AllReduce}}, {{Kind: schedule.Forward, Stage: 1}},
	}}
	costs := schedule.Costs{
		Forward: []float64{2, 4}, AllReduce: []float64{9, 0},
		Contention: []schedule.Contention{{Forward: 0.5}, {Forward: 1}},
	}
	result, spans, err := schedule.Trace(s, costs)
	if err != nil {
		t.Fatal(err)
	}
	// The first takes 2 x 1.5 s. By then the second has done 1.5 s of its work, and goes on alone: sums go over links.
	want := []schedule.Span{
		{Worker: 0, Instruction: s.Workers[0][0], Start: 0, End: 3},
		{Worker: 1, Instruction: s.Workers[1][0], Start: 0, End: 5.5},
		{Worker: 0, Instruction: s.Workers[0][1], Start: 3, End: 12},
	}
	if diff := cmp.Diff(want, spans); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float64{3, 5.5}, result.Busy); diff != "" || result.Makespan != 12 {
		t.Errorf("it takes %v: %s", result.Makespan, diff)
	}
}

func TestContentionMakesNoDifferenceToWorkersThatNeverMeet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		costs := schedule.Costs{Forward: draw(t, "forward", workers), Backward: draw(t, "backward", workers)}
		made, err := schedule.GPipe(workers, 1, schedule.Options{}) // one micro-batch is in one place
		if err != nil {
			t.Fatal(err)
		}
		alone, err := schedule.Simulate(made, costs)
		if err != nil {
			t.Fatal(err)
		}
		costs.Contention = slices.Repeat([]schedule.Contention{{Forward: 3, Backward: 2, Step: 1}}, workers)
		beside, err := schedule.Simulate(made, costs)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(alone, beside, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Fatal(diff)
		}
	})
}
