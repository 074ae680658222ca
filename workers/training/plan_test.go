package training

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/schedule"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-12) }

func TestASplitHasEveryOperationOnceInOrderAndFitsItsDevices(t *testing.T) {
	t.Parallel()
	fits, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawSynthetic(t, 1, 10, true)
		k := rapid.IntRange(1, 4).Draw(t, "parts")
		devices := equalDevices(k, quantity.Bytes(rapid.SampledFrom([]int{0, 20_000, 60_000, 200_000}).Draw(t, "memory")))
		with := setupOf(t, s, 16, exec.Device{Threads: 1})
		with.schedule = rapid.SampledFrom([]string{OneForwardOneBackward, GPipe}).Draw(t, "schedule")
		with.recompute = rapid.SampledFrom([]string{RecomputeAuto, RecomputeNever, RecomputeAlways}).Draw(t, "recompute")
		by := correction{time: 1, peak: rapid.SampledFrom([]float64{1, 0.5, 2}).Draw(t, "peak")}
		if with.model.pieces() < k {
			return
		}
		all++
		made, err := with.split(devices, rapid.SampledFrom([]int{1, 2, 4, 16}).Draw(t, "micro-batches"), by)
		if err != nil {
			return
		}
		fits++
		if len(made.parts) != k {
			t.Fatalf("%d parts, want %d", len(made.parts), k)
		}
		home := slices.Repeat([]int{-1}, len(s.ops))
		used := map[string]bool{}
		for i, p := range made.parts {
			if used[p.device.ID] || len(p.ops) == 0 {
				t.Fatalf("part %d of %d operations is on %s, as another one", i, len(p.ops), p.device.ID)
			}
			used[p.device.ID] = true
			if p.peak > p.capacity || (p.device.Memory > 0 && p.peak > float64(p.device.Memory)) {
				t.Fatalf("part %d holds %v bytes on a device of %v", i, p.peak, p.device.Memory)
			}
			if p.recompute && with.recompute == RecomputeNever {
				t.Fatal("it computes activations again, which nobody wants")
			}
			for _, op := range p.ops {
				if home[op] >= 0 {
					t.Fatalf("operation %d is in parts %d and %d", op, home[op], i)
				}
				home[op] = i
			}
		}
		for _, r := range s.reads {
			if home[r[0]] > home[r[1]] {
				t.Fatalf("the tensor from %d to %d goes backwards", r[0], r[1])
			}
		}
		for i := 1; i < len(s.ops); i++ {
			if s.ops[i].colour != "" && s.ops[i].colour == s.ops[i-1].colour && home[i] != home[i-1] {
				t.Fatalf("operations %d and %d are apart", i-1, i)
			}
		}
		if slices.Contains(home, -1) {
			t.Fatalf("an operation is in no part: %v", home)
		}
	})
	t.Logf("%d of %d problems have a split", fits, all)
	if fits == 0 {
		t.Error("none had a split")
	}
}

func TestThePredictionIsWhatTheScheduleTakesWithTheTrueCosts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSynthetic(t, 1, 8, true)
		k := rapid.IntRange(1, 3).Draw(t, "parts")
		micro := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "micro-batches")
		with := setupOf(t, s, 16, exec.Device{Threads: 1})
		if with.model.pieces() < k {
			return
		}
		made, err := with.split(equalDevices(k, 0), micro, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		var costs schedule.Costs
		home := make([]int, len(s.ops))
		for i, p := range made.parts {
			forward, backward, parameters := with.machine.call, with.machine.call, 0.0
			for _, op := range p.ops {
				home[op] = i
				forward += s.ops[op].forward.at(16 / float64(micro))
				backward += s.ops[op].backward.at(16 / float64(micro))
				parameters += float64(s.ops[op].parameters)
			}
			costs.Forward, costs.Backward = append(costs.Forward, forward), append(costs.Backward, backward)
			costs.Step = append(costs.Step, parameters*7/2e6) // Adam moves seven parameters' worth
		}
		for border := range k - 1 {
			bytes := 0.0
			for op := range s.ops {
				last := home[op]
				for _, r := range s.reads {
					if r[0] == op {
						last = max(last, home[r[1]])
					}
				}
				if home[op] <= border && last > border {
					bytes += float64(s.ops[op].output) * 16 / float64(micro)
				}
			}
			costs.Send = append(costs.Send, bytes/1e6)
		}
		order, err := schedule.OneForwardOneBackward(k, micro, schedule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := schedule.Simulate(order, costs)
		if err != nil {
			t.Fatal(err)
		}
		if !near(made.seconds, want.Makespan) {
			t.Fatalf("%v seconds are predicted, the schedule takes %v", made.seconds, want.Makespan)
		}
	})
}

func TestTheUnsplitModelTakesWhatTheProbeMeasured(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSynthetic(t, 1, 8, true)
		with := setupOf(t, s, 16, exec.Device{Threads: 1})
		with.machine = machine{}
		made, err := with.split(equalDevices(1, 0), 1, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		probe, err := s.Probe(t.Context(), exec.ProbeOptions{Samples: 16})
		if err != nil {
			t.Fatal(err)
		}
		if want := float64(probe.Forward + probe.Backward); !near(made.seconds, want) {
			t.Fatalf("%v seconds are predicted, the probe measured %v", made.seconds, want)
		}
	})
}

// TestASplitOfAChainIsTheBestOfAll is about chains that can be cut in few ways: each of them is priced.
func TestASplitOfAChainIsTheBestOfAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		made, best, ok := splitOfAChain(t, 1, 12)
		if ok && made.seconds > best*(1+1e-6) {
			t.Fatalf("a split takes %v, the best of all %v", made.seconds, best)
		}
	})
}

// TestASplitOfALongChainFitsAndIsCloseToTheBestOfAll is about chains that can be cut in too many ways to price each.
func TestASplitOfALongChainFitsAndIsCloseToTheBestOfAll(t *testing.T) {
	t.Parallel()
	worst, sum, n := 1.0, 0.0, 0.0
	rapid.Check(t, func(t *rapid.T) {
		made, best, ok := splitOfAChain(t, 18, 18)
		if !ok || best == 0 {
			return
		}
		ratio := made.seconds / best
		worst, sum, n = max(worst, ratio), sum+ratio, n+1
	})
	t.Logf("splits take %.3f of the best on average and %.3f at worst", sum/n, worst)
	if mean := sum / n; mean > 1.05 {
		t.Errorf("splits take %.3f of the best on average, want at most 1.05", mean)
	}
}

// splitOfAChain splits a chain of some operations for up to 4 devices and tells the least time of all its cuts; ok is
// false where none fits, which the split must say, too.
func splitOfAChain(t *rapid.T, least, most int) (made candidate, best float64, ok bool) {
	s := drawSynthetic(t, least, most, false)
	k := rapid.IntRange(1, min(4, len(s.ops))).Draw(t, "parts")
	micro := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "micro-batches")
	each := rapid.SampledFrom([]int{0, 40_000, 80_000}).Draw(t, "memory")
	devices := equalDevices(k, quantity.Bytes(each*len(s.ops)/9))
	with := setupOf(t, s, 16, exec.Device{Threads: 1})
	best = everySplit(t, with, devices, micro)
	made, err := with.split(devices, micro, unchanged)
	switch {
	case err == nil:
		return made, best, true
	case !errors.Is(err, partition.ErrUnfit):
		t.Fatal(err)
	case !math.IsInf(best, 1):
		t.Fatalf("none is found, though one takes %v: %v", best, err)
	}
	return candidate{}, best, false
}

// TestASplitThatFitsIsFoundWhereNoSmallChangeLeadsToIt has a chain of which neither the fastest split nor its
// neighbours fit.
func TestASplitThatFitsIsFoundWhereNoSmallChangeLeadsToIt(t *testing.T) {
	t.Parallel()
	ops := make([]syntheticOp, 8)
	ops[4].forward.each, ops[4].output = 0.001, 1
	ops[5].backward.each, ops[5].parameters, ops[5].activation = 0.001, 632*4, 73
	ops[6].activation, ops[6].output = 1673, 1
	ops[7].parameters, ops[7].activation = 647*4, 37
	s := synthetic{ops: ops}
	for i := range len(ops) - 1 {
		s.reads = append(s.reads, [2]int{i, i + 1})
	}
	with := setupOf(t, s, 16, exec.Device{Threads: 1})
	made, err := with.split(equalDevices(3, 40_000), 2, unchanged)
	if err != nil {
		t.Fatal(err)
	}
	if len(made.parts) != 3 {
		t.Errorf("%d parts, want 3", len(made.parts))
	}
}

func TestTheFewestPartsWithinThreePercentAreTaken(t *testing.T) {
	t.Parallel()
	of := func(parts int, seconds float64) candidate {
		return candidate{parts: make([]part, parts), seconds: seconds}
	}
	for _, c := range []struct {
		candidates []candidate
		want       int
	}{
		{[]candidate{of(1, 1)}, 1},
		{[]candidate{of(1, 1.02), of(2, 1)}, 1},
		{[]candidate{of(1, 1.04), of(2, 1)}, 2},
		{[]candidate{of(1, 1.05), of(2, 1.02), of(3, 1)}, 2},
		{[]candidate{of(3, 1), of(2, 1.02), of(1, 1.05)}, 2},
	} {
		if got := len(fewest(c.candidates).parts); got != c.want {
			t.Errorf("%d parts of %+v, want %d", got, c.candidates, c.want)
		}
	}
}

// chain is a model of equal operations, which cost by the sample only.
func chain(n int) synthetic {
	var s synthetic
	for i := range n {
		s.ops = append(s.ops, syntheticOp{
			forward: line{each: 0.01}, backward: line{each: 0.02}, parameters: 4000, activation: 1000, output: 10,
		})
		if i > 0 {
			s.reads = append(s.reads, [2]int{i - 1, i})
		}
	}
	return s
}

// TestAModelThatHasOtherOperationsForOneSampleIsPlanned has what language models of libraries do: they look at how many
// samples there are.
func TestAModelThatHasOtherOperationsForOneSampleIsPlanned(t *testing.T) {
	t.Parallel()
	s := chain(8)
	s.other = true
	for _, batch := range []int{1, 2, 3, 8, 64} {
		training, layout, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(2, 0), Batch: batch})
		if err != nil {
			t.Errorf("a batch of %d: %v", batch, err)
			continue
		}
		if batch > 1 && batch/training.MicroBatches < 2 {
			t.Errorf("a batch of %d is cut into %d micro-batches, of which some have one sample", batch, layout.MicroBatches)
		}
	}
	for _, wanted := range []int{1, 2, 4} {
		if _, _, err := Plan(t.Context(), Job{
			Executor: s, Devices: equalDevices(2, 0), Batch: 8, MicroBatches: wanted,
		}); err != nil {
			t.Errorf("in %d micro-batches: %v", wanted, err)
		}
	}
	_, layout, err := Plan(t.Context(), Job{
		Executor: s, Devices: equalDevices(2, 0), Partitions: 2, Batch: 8, MicroBatches: 8,
	})
	if err != nil {
		t.Fatalf("micro-batches of one sample: %v", err)
	}
	if first := layout.Parts[0].Ops[0]; !strings.HasSuffix(first, "alone") {
		t.Errorf("with micro-batches of one sample a part begins with operation %q", first)
	}
}

func TestAPlanWeighsEveryNumberOfParts(t *testing.T) {
	t.Parallel()
	training, layout, err := Plan(t.Context(), Job{Executor: chain(8), Devices: equalDevices(4, 0), Batch: 16})
	if err != nil {
		t.Fatal(err)
	}
	if len(training.Parts) != 4 || len(layout.Parts) != 4 || len(training.Alternatives) != 3 || layout.MicroBatches < 4 {
		t.Fatalf("got %d parts, %d micro-batches and the alternatives %+v, want 4 parts of 2 operations", len(training.Parts),
			layout.MicroBatches, training.Alternatives)
	}
	for i, p := range layout.Parts {
		if len(p.Ops) != 2 || p.InFlight != 4-i {
			t.Errorf("part %d has %v with %d in flight", i, p.Ops, p.InFlight)
		}
	}
	for i, a := range training.Alternatives {
		if a.Partitions != i+1 || a.StepSeconds <= training.PredictedStepSeconds || a.Reason == "" || a.PeakBytes == 0 {
			t.Errorf("alternative %+v beside %v seconds", a, training.PredictedStepSeconds)
		}
	}
	if err := training.Validate(); err != nil {
		t.Error(err)
	}
}

func TestACallThatCostsMuchMakesFewMicroBatches(t *testing.T) {
	t.Parallel()
	cheap, dear := chain(8), chain(8)
	for i := range dear.ops {
		dear.ops[i].forward.fixed, dear.ops[i].backward.fixed = 0.1, 0.1
	}
	var numbers []int
	for _, s := range []synthetic{cheap, dear} {
		_, layout, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(2, 0), Partitions: 2, Batch: 64})
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, layout.MicroBatches)
	}
	if numbers[0] <= numbers[1] {
		t.Errorf("%v micro-batches where calls cost nothing and where they do", numbers)
	}
}

func TestAModelThatFitsNoDeviceIsSplitOrRefusedWithWhatHelps(t *testing.T) {
	t.Parallel()
	var held quantity.Bytes
	s := chain(8) // 8 x 16 kB of parameters, gradients and state
	s.held = &held
	training, _, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(4, 80_000), Batch: 64})
	if err != nil {
		t.Fatal(err)
	}
	if len(training.Parts) < 2 {
		t.Errorf("%d parts of 80 kB for 128 kB", len(training.Parts))
	}
	if unfit := training.Alternatives[0]; unfit.Partitions != 1 || !strings.Contains(unfit.Reason, "short of") {
		t.Errorf("the unsplit model is %+v", unfit)
	}
	if held > 80_000 {
		t.Errorf("a probe held %v on a device of 80 kB", held)
	}
	_, _, err = Plan(t.Context(), Job{Executor: s, Devices: equalDevices(3, 30_000), Batch: 64})
	if !errors.Is(err, partition.ErrUnfit) || !strings.Contains(err.Error(), "too much") ||
		!strings.Contains(err.Error(), "more devices") {
		t.Errorf("got the error %v", err)
	}
}

func TestWhatAProcessHoldsIsTakenOffItsDevice(t *testing.T) {
	t.Parallel()
	s := chain(4)
	if _, _, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(1, 150_000), Batch: 4}); err != nil {
		t.Fatal(err)
	}
	s.base = 60_000
	if _, _, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(1, 150_000), Batch: 4}); !errors.Is(err,
		partition.ErrUnfit) {
		t.Errorf("got the error %v", err)
	}
	training, _, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(1, 200_000), Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	if got := training.Parts[0].CapacityBytes; got != 140_000 {
		t.Errorf("the part may hold %v, want 140000 bytes", int64(got))
	}
}

func TestACorrectionIsTheMedianOfWhatCameOverWhatTodaysPlanSays(t *testing.T) {
	t.Parallel()
	today := func(p predictor.Training) (candidate, bool) {
		return candidate{seconds: 2, parts: []part{{peak: 100}, {peak: 50}}}, p.Executor == "torch"
	}
	past := func(executor string, seconds float64, peaks ...quantity.Bytes) predictor.Training {
		// what was predicted then counts for nothing
		p := predictor.Training{Executor: executor, StepSeconds: seconds, PredictedStepSeconds: 17}
		for _, peak := range peaks {
			p.Parts = append(p.Parts, predictor.TrainingPart{PeakBytes: peak})
		}
		return p
	}
	for name, c := range map[string]struct {
		past []predictor.Training
		want correction
		used int
	}{
		"none":         {nil, correction{1, 1}, 0},
		"another kind": {[]predictor.Training{past("gomlx", 9, 9)}, correction{1, 1}, 0},
		"one":          {[]predictor.Training{past("torch", 3, 150, 50)}, correction{1.5, 1.5}, 1},
		"the middle of three": {
			[]predictor.Training{past("torch", 4), past("torch", 40), past("torch", 1)},
			correction{2, 1},
			3,
		},
		"the fullest part":        {[]predictor.Training{past("torch", 2, 80, 90)}, correction{1, 0.9}, 1},
		"a part that is measured": {[]predictor.Training{past("torch", 2, 0, 100)}, correction{1, 2}, 1},
		"not begun":               {[]predictor.Training{past("torch", 0), past("torch", 6)}, correction{3, 1}, 2},
		"the newest five": {[]predictor.Training{
			past("torch", 2), past("torch", 2), past("gomlx", 1), past("torch", 2), past("torch", 20), past("torch", 20),
			past("torch", 20), past("torch", 20),
		}, correction{1, 1}, 5},
	} {
		got, used := corrected(c.past, today)
		if !near(got.time, c.want.time) || !near(got.peak, c.want.peak) || used != c.used {
			t.Errorf("%s: got %+v of %d, want %+v of %d", name, got, used, c.want, c.used)
		}
	}
}

func TestAPlanLearnsFromThePastAndDoesNotSwing(t *testing.T) {
	t.Parallel()
	job := Job{Executor: chain(8), Devices: equalDevices(2, 0), Partitions: 2, MicroBatches: 4, Batch: 64}
	first, _, err := Plan(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 8 { // the machine is half as fast as the probe says
		came := first
		came.StepSeconds = 2 * first.PredictedStepSeconds
		came.Parts = slices.Clone(first.Parts)
		for i := range came.Parts {
			came.Parts[i].PeakBytes = 3 * first.Parts[i].PredictedPeakBytes
		}
		job.Past = append([]predictor.Training{came}, job.Past...)
		next, _, err := Plan(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		// The bandwidth of memory is measured anew each time.
		if ratio := next.PredictedStepSeconds / came.StepSeconds; ratio < 0.99 || ratio > 1.01 {
			t.Errorf("round %d: %v seconds are predicted, %v came", round, next.PredictedStepSeconds, came.StepSeconds)
		}
		if got, want := next.Parts[0].PredictedPeakBytes, came.Parts[0].PeakBytes; math.Abs(float64(got-want)) > 4 {
			t.Errorf("round %d: %v bytes are predicted, %v came", round, int64(got), int64(want))
		}
		if !strings.Contains(next.Reason, words.Count(min(round+1, mostPast), "past training")+":") {
			t.Errorf("round %d: the reason is %q", round, next.Reason)
		}
	}
	for _, change := range []func(*predictor.Training){
		func(p *predictor.Training) { p.Model = "another" },
		func(p *predictor.Training) { p.Executor = "another" },
		func(p *predictor.Training) { p.Parts = p.Parts[:1] },
		func(p *predictor.Training) { p.MicroBatches = 0 },
		func(p *predictor.Training) { p.Schedule = "another" },
		func(p *predictor.Training) { p.Replicas = 2 },
		func(p *predictor.Training) { p.Parts = []predictor.TrainingPart{{Kind: exec.CUDA}, {Kind: exec.CUDA}} },
	} {
		other := job.Past[0]
		change(&other)
		again := job
		again.Past = []predictor.Training{other}
		next, _, err := Plan(t.Context(), again)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(next.Reason, "past") {
			t.Errorf("it learns from %+v", other)
		}
	}
}

func TestALineGoesThroughTheLargerProbeAndIsNeverNegative(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		few := rapid.IntRange(1, 100).Draw(t, "few")
		many := few + rapid.IntRange(0, 100).Draw(t, "more")
		small, large := rapid.Float64Range(0, 10).Draw(t, "small"), rapid.Float64Range(0, 10).Draw(t, "large")
		l := through(few, many, small, large)
		if !near(l.at(float64(many)), large) && large > 1e-9 {
			t.Fatalf("%+v is %v at %d, want %v", l, l.at(float64(many)), many, large)
		}
		if l.fixed < -1e-12 || l.each < 0 {
			t.Fatalf("%+v", l)
		}
		if small <= large && small >= large*float64(few)/float64(many) && few < many && !near(l.at(float64(few)), small) &&
			small > 1e-9 {
			t.Fatalf("%+v is %v at %d, want %v", l, l.at(float64(few)), few, small)
		}
	})
}

func TestThePartThatNeedsMoreGetsTheDeviceThatHasMore(t *testing.T) {
	t.Parallel()
	s := chain(4)
	s.ops[3].parameters = 40_000 // 160 kB with gradients and Adam's state
	for _, memory := range [][]quantity.Bytes{{80_000, 250_000}, {250_000, 80_000}} {
		devices := equalDevices(2, 0)
		devices[0].Memory, devices[1].Memory = memory[0], memory[1]
		training, layout, err := Plan(t.Context(), Job{
			Executor: s, Devices: devices, Partitions: 2, Batch: 4, CheckpointEvery: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		if last := layout.Parts[1]; last.Device.Memory != 250_000 || training.Parts[1].PredictedPeakBytes > 250_000 {
			t.Errorf("%v: the last part, of %v, is on the device of %v", memory, last.Ops, last.Device.Memory)
		}
	}
}

func TestALargeModelIsPlannedSoon(t *testing.T) {
	t.Parallel()
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("SPILLWAY_MEASURE is not set")
	}
	for _, n := range []int{10, 100, 1000} {
		s := chain(n)
		started := time.Now()
		training, _, err := Plan(t.Context(), Job{Executor: s, Devices: equalDevices(4, 0), Batch: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d operations on up to 4 devices: %d parts after %v", n, len(training.Parts), time.Since(started))
	}
}
