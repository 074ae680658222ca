package training

import (
	"errors"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
)

// gpus are CUDA devices of these indices.
func gpus(indices ...int) []exec.Device {
	all := make([]exec.Device, len(indices))
	for i, index := range indices {
		all[i] = exec.Device{ID: "gpu-" + strconv.Itoa(i), Kind: exec.CUDA, Index: index}
	}
	return all
}

func TestGPUsOfTwoModelsAreTwoClasses(t *testing.T) {
	t.Parallel()
	s := chain(12)
	s.seen = map[int]exec.Surveyed{0: {Name: "A100", Memory: 80e9, Free: 80e9}, 1: {Name: "T4", Memory: 16e9, Free: 16e9}}
	s.speed = func(d exec.Device) float64 {
		return map[string]float64{"A100": 5, "T4": 1}[d.Class]
	}
	_, layout, err := Plan(t.Context(), Job{Executor: s, Devices: gpus(0, 1), Partitions: 2, Batch: 8, MicroBatches: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range layout.Parts {
		if fast := part.Device.Class == "A100"; fast != (len(part.Ops) > 6) {
			t.Errorf("%s has %d of 12 equal operations", part.Device.Class, len(part.Ops))
		}
	}
}

func TestGPUsOfOneModelAreProbedOnce(t *testing.T) {
	t.Parallel()
	s := chain(12)
	s.asked = new([]exec.ProbeOptions)
	s.seen = map[int]exec.Surveyed{0: {Name: "A100"}, 1: {Name: "A100"}}
	job := Job{Executor: s, Devices: gpus(1, 0), Partitions: 2, Batch: 8, Precision: exec.BFloat16}
	if _, _, err := Plan(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	for _, o := range *s.asked {
		if o.Device.Index != 1 || o.Precision != exec.BFloat16 {
			t.Errorf("probed is %+v", o)
		}
	}
}

func TestALinkIsAsFastAsTheWayOfItsMessages(t *testing.T) {
	t.Parallel()
	m := machine{copyRate: 10, seen: map[string]exec.Surveyed{
		"gpu-0": {Out: 4, In: 5, Copy: 1000}, "gpu-1": {Out: 2, In: 1}, "gpu-2": {},
	}}
	g := gpus(0, 1, 2)
	host := exec.Device{ID: "cpu", Kind: exec.CPU}
	for name, c := range map[string]struct {
		from, to exec.Device
		want     float64
	}{
		"on the host":              {host, host, 0.1},
		"to a GPU":                 {host, g[0], 0.1 + 0.2},
		"from a GPU":               {g[0], host, 0.25},
		"from one to another":      {g[0], g[1], 0.25 + 1},
		"back":                     {g[1], g[0], 0.5 + 0.2},
		"to one that was not seen": {host, g[2], 0.1 + 0.1},
	} {
		if got := m.perByte(c.from, c.to); !near(got, c.want) {
			t.Errorf("%s: %v seconds for a byte; want %v", name, got, c.want)
		}
	}
	if got := m.toAndFro(g[0], g[1]); !near(got, 1.25) {
		t.Errorf("to and fro: %v", got)
	}
	if got := (machine{}).perByte(g[0], host); got != 0 {
		t.Errorf("what is not known takes %v", got)
	}
	if m.within(g[0]) != 1000 || m.within(host) != 10 {
		t.Errorf("memory is copied at %v and %v", m.within(g[0]), m.within(host))
	}
	s := setupOf(t, chain(3), 8, g[0])
	s.machine = m
	s.model.classes[classOf(host)] = s.model.classes[classOf(g[0])]
	made, err := s.price([][]int{{0}, {1}, {2}}, []exec.Device{g[0], g[1], host}, 2, unchanged)
	if err != nil {
		t.Fatal(err)
	}
	passed := 4 * float64(chain(3).ops[0].output)
	if got := []float64{made.parts[0].send, made.parts[1].send}; !near(got[0], 1.25*passed) || !near(got[1], 1.1*passed) {
		t.Errorf("%v bytes take %v seconds; want %v and %v", passed, got, 1.25*passed, 1.1*passed)
	}
	if got := s.problem(g[:2], 2).Links.Pairs[[2]string{"gpu-0", "gpu-1"}]; !near(got.BytesPerSecond, 1/1.25) {
		t.Errorf("the problem has %+v", got)
	}
}

func TestSharedMemoryOfTheHostIsNoMemoryOfAGPU(t *testing.T) {
	t.Parallel()
	s := setupOf(t, chain(2), 8, exec.Device{Kind: exec.CUDA})
	s.schedule, s.recompute, s.state = GPipe, RecomputeNever, 0
	s.model.classes[exec.CPU+"/1"] = s.model.classes[exec.CUDA+"/"]
	s.model.base = 1 // parts have processes
	peaks := func(d exec.Device, recompute string) []float64 {
		s.recompute = recompute
		made, err := s.price([][]int{{0}, {1}}, []exec.Device{d, d}, 4, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		return []float64{made.parts[0].peak, made.parts[1].peak}
	}
	op := chain(2).ops[0]
	// Four micro-batches of two samples.
	parameters, kept, tensor := float64(op.parameters), 2*float64(op.activation), 2*float64(op.output)
	// In the second backward pass, parameters, gradients of the micro-batch before and those of this one; what is kept of
	// all that are left, or with recomputation of one; and the tensor between them: of the first part as many as are left
	// and its gradient, of the second all that came in and the gradient of the one at work.
	want := []float64{3*parameters + 3*kept + 4*tensor, 3*parameters + 3*kept + 5*tensor}
	if got := peaks(exec.Device{Kind: exec.CUDA}, RecomputeNever); !near(got[0], want[0]) || !near(got[1], want[1]) {
		t.Errorf("on a GPU: %v; want %v", got, want)
	}
	want = []float64{3*parameters + kept + 2*tensor, 3*parameters + kept + 5*tensor}
	if got := peaks(exec.Device{Kind: exec.CUDA}, RecomputeAlways); !near(got[0], want[0]) || !near(got[1], want[1]) {
		t.Errorf("recomputed on a GPU: %v; want %v", got, want)
	}
	want = []float64{3*parameters + 3*kept + 9*tensor, 3*parameters + 3*kept + 9*tensor}
	got := peaks(exec.Device{Kind: exec.CPU, Threads: 1}, RecomputeNever)
	if !near(got[0], want[0]) || !near(got[1], want[1]) {
		t.Errorf("on CPUs, which read and write shared memory: %v; want %v", got, want)
	}
}

func TestTheOptimizersTemporariesAreMemoryOfAGPU(t *testing.T) {
	t.Parallel()
	one := synthetic{ops: []syntheticOp{{forward: line{each: 1}, parameters: 1000, activation: 1}}}
	for _, recompute := range []string{RecomputeNever, RecomputeAlways} {
		s := setupOf(t, one, 8, exec.Device{Kind: exec.CUDA})
		s.recompute, s.model.measured = recompute, true // as torch is
		// Half a segment comes besides, and of the temporaries what does not fit into half of what is kept.
		for state, want := range map[float64]float64{8: 4000 + 8 + 1000 - 4, 4: 3000 + 8, 0: 2000 + 8} {
			s.state = state
			made, err := s.price([][]int{{0}}, gpus(0), 1, unchanged)
			if err != nil {
				t.Fatal(err)
			}
			if got := made.parts[0].peak - smallSegment/2; !near(got, want) {
				t.Errorf("%s, with %v bytes of state for each parameter: a peak of %v; want %v", recompute, state, got, want)
			}
		}
	}
}

func TestWhatIsKeptWhateverTheBatchDoesNotShrinkWithIt(t *testing.T) {
	t.Parallel()
	s := synthetic{ops: []syntheticOp{{forward: line{each: 1}, activation: 100, keeps: 7000}}}
	with := setupOf(t, s, 64, exec.Device{Threads: 1})
	with.recompute = RecomputeNever
	for _, m := range []int{1, 8, 64} {
		made, err := with.price([][]int{{0}}, []exec.Device{{Threads: 1}}, m, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		kept := 7000 + 100*64/float64(m)
		if got := made.parts[0].peak; !near(got, kept) {
			t.Errorf("in %d micro-batches: a peak of %v; want %v", m, got, kept)
		}
	}
}

func TestSamplesAreTriedOutThatOneOperationHasRoomFor(t *testing.T) {
	t.Parallel()
	s := synthetic{ops: []syntheticOp{
		{forward: line{each: 1}, parameters: 1000, activation: 10, output: 5},
		{forward: line{each: 1}, parameters: 3000, activation: 10},
	}, reads: [][2]int{{0, 1}}}
	probe, err := s.Probe(t.Context(), exec.ProbeOptions{Samples: 1})
	if err != nil {
		t.Fatal(err)
	}
	for memory, want := range map[quantity.Bytes]int{1: 1, 7600: 4, 10_000: 64, math.MaxInt32: 64} {
		if got := mostApart(probe.Graph, 64, memory); got != want {
			t.Errorf("in %d bytes: %d samples; want %d", memory, got, want)
		}
	}
	if got := mostSamples(probe.Graph, 64, 8, 10_000); got != 0 {
		t.Errorf("%d samples of a model of 16 kB fit 10 kB", got)
	}
}

func TestWhatIsAskedOfADeviceIsThere(t *testing.T) {
	t.Parallel()
	has := exec.Surveyed{Name: "A100", Memory: 80 * quantity.GiB, Free: 60 * quantity.GiB}
	bounded := func(memory quantity.Bytes, indices ...int) []exec.Device {
		all := gpus(indices...)
		for i := range all {
			all[i].Memory = memory
		}
		return all
	}
	for name, c := range map[string]struct {
		devices []exec.Device
		want    string
	}{
		"two parts beyond it": {
			bounded(50*quantity.GiB, 0, 0), "gpu-0 and gpu-1 may hold 100 GiB on cuda:0, A100, which has 80 GiB",
		},
		"what others hold": {
			bounded(70*quantity.GiB, 0), "gpu-0 may hold 70 GiB on cuda:0, A100, of whose 80 GiB 60 GiB are free",
		},
		"one that is not there": {gpus(3), "there is no cuda:3"},
		"two parts within it":   {bounded(30*quantity.GiB, 0, 0), ""},
	} {
		s := chain(2)
		s.seen, s.asked = map[int]exec.Surveyed{0: has}, new([]exec.ProbeOptions)
		_, _, err := Plan(t.Context(), Job{Executor: s, Devices: c.devices, Partitions: len(c.devices), Batch: 8})
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, exec.ErrRequest) || !strings.Contains(err.Error(), c.want) || len(*s.asked) > 0 {
			t.Errorf("%s: got %v after %d probes; want %q before any", name, err, len(*s.asked), c.want)
		}
	}
	both := synthetic{seen: map[int]exec.Surveyed{0: has, 1: has}}
	all, _, err := surveyed(t.Context(), both, gpus(0, 1, 0), exec.Float32)
	if err != nil {
		t.Fatal(err)
	}
	var got []quantity.Bytes
	for _, d := range all {
		got = append(got, d.Memory)
	}
	if want := []quantity.Bytes{30 * quantity.GiB, 60 * quantity.GiB, 30 * quantity.GiB}; !slices.Equal(got, want) {
		t.Errorf("devices without a bound have %v; want %v", got, want)
	}
}

func TestEachPartThatSharesADeviceHasAProcessThere(t *testing.T) {
	t.Parallel()
	has := exec.Surveyed{Name: "A100", Memory: 24 * quantity.GiB, Free: 20 * quantity.GiB, Context: 2 * quantity.GiB}
	all, _, err := surveyed(t.Context(), synthetic{seen: map[int]exec.Surveyed{0: has}}, gpus(0, 0, 0), exec.Float32)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all { // one process was there when it was looked at
		if want := (20 - 2*2) * quantity.GiB / 3; d.Memory != want {
			t.Errorf("%s may hold %v; want %v", d.ID, d.Memory, want)
		}
	}
	bounded := gpus(0, 0)
	bounded[0].Memory, bounded[1].Memory = 10*quantity.GiB, 9*quantity.GiB
	_, _, err = surveyed(t.Context(), synthetic{seen: map[int]exec.Surveyed{0: has}}, bounded, exec.Float32)
	if !errors.Is(err, exec.ErrRequest) || !strings.Contains(err.Error(), "less 2 GiB for each process beside the first") {
		t.Errorf("got %v", err)
	}
	has.Context = 15 * quantity.GiB
	_, _, err = surveyed(t.Context(), synthetic{seen: map[int]exec.Surveyed{0: has}}, gpus(0, 0, 0), exec.Float32)
	if err == nil {
		t.Error("no memory is left, and nobody says so")
	}
}

func TestAPrecisionThatADeviceLacksIsRefusedBeforeAnythingIsProbed(t *testing.T) {
	t.Parallel()
	s := chain(4)
	s.asked = new([]exec.ProbeOptions)
	s.seen = map[int]exec.Surveyed{0: {Name: "A100"}, 1: {Name: "V100", Float32Only: true}}
	job := Job{Executor: s, Devices: gpus(0, 1), Partitions: 2, Batch: 8}
	for _, job.Precision = range []exec.Precision{exec.BFloat16, exec.TF32} {
		_, _, err := Plan(t.Context(), job)
		want := "gpu-1 (cuda:1, V100) cannot compute in " + string(job.Precision)
		if !errors.Is(err, exec.ErrRequest) || !strings.Contains(err.Error(), want) || len(*s.asked) > 0 {
			t.Errorf("got %v after %d probes", err, len(*s.asked))
		}
	}
	for _, job.Precision = range []exec.Precision{exec.Float32, exec.Float16} {
		if _, _, err := Plan(t.Context(), job); err != nil {
			t.Errorf("in %s: %v", job.Precision, err)
		}
	}
}

func TestAPrecisionThatACPUImitatesIsToldToBeSlow(t *testing.T) {
	t.Parallel()
	for slowdown, want := range map[float64]bool{0: false, 0.2: false, 1.1: false, 57: true} {
		var log strings.Builder
		s := chain(4)
		s.slowdown = slowdown
		_, _, err := Plan(t.Context(), Job{
			Executor: s, Devices: []exec.Device{{ID: "cpu-0"}}, Batch: 8, Precision: exec.Float16,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "times_as_long=57"); got != want {
			t.Errorf("a slowdown of %v: it says %q", slowdown, log.String())
		}
	}
}

func TestAnAttemptTrainsOnTheGPUsThatItWasGiven(t *testing.T) {
	t.Parallel()
	for visible, want := range map[string]int{
		"": 0, "-1": 0, "GPU-1f2e": 1, "GPU-1f2e,GPU-77aa": 2, "3, 1": 2, "0,-1,1": 1,
	} {
		got := Assigned(synthetic{}, visible)
		if len(got) != want || want == 0 && got != nil {
			t.Fatalf("%q: got %v; want %d devices", visible, got, want)
		}
		for i, d := range got { // CUDA numbers those that are visible
			if d.Kind != exec.CUDA || d.Index != i || d.ID != "cuda:"+strconv.Itoa(i) {
				t.Errorf("%q: device %d is %+v", visible, i, d)
			}
		}
	}
	if got := Assigned(exectest.Reference(exectest.Options{}), "0"); got != nil {
		t.Errorf("an executor without CUDA gets %v", got)
	}
}
