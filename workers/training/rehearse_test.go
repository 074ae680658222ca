package training

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
)

func TestARehearsalTrainsTheWholeModelOnEveryDevice(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	for _, microBatches := range []int{0, 1, 3, 12} {
		p := prober{
			executor: exectest.Reference(exectest.Options{}), batch: 12, microBatches: microBatches, clip: true,
			optimizer: exec.Optimizer{Kind: exec.Adam},
			logger:    slog.New(slog.NewTextHandler(&log, nil)),
		}
		devices := equalDevices(3, 0)
		if err := p.class(t.Context(), devices[0], devices, 8); err != nil {
			t.Fatal(err)
		}
		made, known := p.model.performances[classOf(devices[0])]
		if !known || log.Len() > 0 {
			t.Fatalf("nothing was rehearsed: %s", log.String())
		}
		for _, r := range []rehearsal{made.small, made.large} {
			// A pace is what is left without the cost of a call, which on a busy machine is all of a small model's. That its
			// optimizer keeps state says that it was trained.
			if r.pace.forward < 0 || r.pace.backward < 0 || r.pace.step < 0 || r.usage.Parameters == 0 ||
				r.usage.Optimizer == 0 {
				t.Errorf("in %d micro-batches: got %+v", microBatches, r)
			}
		}
		if made.small.samples > made.large.samples || made.large.samples != 12 {
			t.Errorf("in %d micro-batches: they have %d and %d samples", microBatches, made.small.samples, made.large.samples)
		}
		s := setup{model: p.model}
		s.learn()
		if s.state < 8 || s.state > 8.1 {
			t.Errorf("the optimizer keeps %v bytes for each parameter; Adam keeps 8 and a few counts", s.state)
		}
	}
}

func TestAModelThatCannotBeRehearsedIsPlannedByItsProbe(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := synthetic{ops: []syntheticOp{{forward: line{each: 1}}}} // it only probes
	p := prober{executor: s, batch: 4, logger: slog.New(slog.NewTextHandler(&log, nil))}
	device := exec.Device{ID: "a", Threads: 1}
	if err := p.class(t.Context(), device, []exec.Device{device}, 8); err != nil {
		t.Fatal(err)
	}
	if len(p.model.classes) != 1 || len(p.model.performances) != 0 || !strings.Contains(log.String(), "it only probes") {
		t.Errorf("got %+v; the log is %s", p.model, log.String())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.model = model{}
	if err := p.class(ended, device, []exec.Device{device}, 8); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
}

func TestAvailableMemoryIsWhatLinuxSays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quantity.Bytes{
		"MemTotal: 9 kB\nMemAvailable:   3 kB\n": 3 << 10, "MemTotal: 9 kB\n": 0, "MemAvailable: much kB\n": 0, "": 0,
	} {
		got, known := availableMemory(fstest.MapFS{"proc/meminfo": {Data: []byte(text)}})
		if known != (want > 0) || (known && got != want) {
			t.Errorf("%q: got %v, %t; want %v", text, got, known, want)
		}
	}
	if _, known := availableMemory(fstest.MapFS{}); known {
		t.Error("nothing is known without the file")
	}
}

func TestAPlanTakesNoMoreThanTheLimitsAroundItLeave(t *testing.T) {
	t.Parallel()
	const host = "MemAvailable: 4096 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  quantity.Bytes // 0 is not known
		bound bool
	}{
		"nothing is known": {nil, 0, false},
		"no limit": {map[string]string{
			"proc/meminfo": host, "proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": unifiedMount,
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "100\n",
		}, 4 << 20, false},
		"a limit, and files that it caches": {map[string]string{
			"proc/meminfo": host, "proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": unifiedMount,
			"sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.current": "700\n",
			"sys/fs/cgroup/a/memory.stat": "anon 500\ninactive_file 200\n",
		}, 500, true},
		"a limit that is reached": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": unifiedMount,
			"sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.current": "1001\n",
		}, 0, true},
		"a host with less than the limit": {map[string]string{
			"proc/meminfo": host, "proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": unifiedMount,
			"sys/fs/cgroup/a/memory.max": "100000000\n", "sys/fs/cgroup/a/memory.current": "0\n",
		}, 4 << 20, true},
		"legacy": {map[string]string{
			"proc/meminfo": host, "proc/self/cgroup": "4:memory:/x\n",
			"proc/self/mountinfo":                          "31 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3000\n",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000\n",
			"sys/fs/cgroup/memory/x/memory.stat":           "cache 900\ntotal_inactive_file 400\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":   "9000\n",
		}, 2400, true},
	} {
		root := fstest.MapFS{}
		for path, text := range c.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		got, known := availableMemory(root)
		if got != c.want || known != (c.want > 0 || c.bound) {
			t.Errorf("%s: got %d, %t; want %d", name, got, known, c.want)
		}
		if _, bound := limitedMemory(root); bound != c.bound {
			t.Errorf("%s: bound is %t", name, bound)
		}
	}
}

func TestAProbeHoldsNoMoreThanTheLimitOfItsAttempt(t *testing.T) {
	t.Parallel()
	s := chain(4)
	s.held = new(quantity.Bytes)
	p := prober{executor: s, batch: 64, limit: 100_000}
	device := exec.Device{ID: "a", Threads: 1}
	if err := p.class(t.Context(), device, []exec.Device{device}, 8); err != nil {
		t.Fatal(err)
	}
	if *s.held > 100_000-16_000*3 || p.model.samples < 2 {
		t.Errorf("a probe of %d samples held %v of 100 kB, of which 48 kB are for gradients and Adam", p.model.samples,
			*s.held)
	}
	gpu := exec.Device{ID: "b", Kind: exec.CUDA}
	if got := p.bound(gpu); got != 0 {
		t.Errorf("the host's limit bounds a GPU: %v", got)
	}
}

func TestCompanionsAreOnTheHostsCPUsAndFewAreEnough(t *testing.T) {
	t.Parallel()
	devices := equalDevices(9, 0)
	devices[1].Kind = exec.CUDA
	got := companions(devices, 0, 0)
	if len(got) != mostTogether || got[1].ID != "device-2" {
		t.Errorf("got %v", got)
	}
	shared := []exec.Device{devices[1], devices[0], devices[1], {ID: "another", Kind: exec.CUDA, Index: 1}}
	if got := companions(shared, 1<<50, 1<<50); len(got) != 2 || got[0].Kind != exec.CUDA || got[1].Kind != exec.CUDA {
		t.Errorf("beside a CUDA device: %v; want the parts that share it, whatever the host's memory", got)
	}
	if _, known := availableMemory(fstest.MapFS{}); !known {
		if got := companions(devices, 1<<50, 0); len(got) > mostTogether {
			t.Errorf("got %d", len(got))
		}
	}
}

// timed notes whether layouts ask passes to wait for their device.
type timed struct {
	exec.Executor
	asked *[]bool
}

func (e timed) Load(ctx context.Context, layout exec.Layout) (exec.Pipeline, error) {
	*e.asked = append(*e.asked, layout.Timed)
	return e.Executor.Load(ctx, layout)
}

func TestARehearsalTimesWorkAndATrainingDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	var asked []bool
	on := timed{exectest.Reference(exectest.Options{}), &asked}
	device := exec.Device{ID: "a", Threads: 1}
	job := Job{Executor: on, Devices: []exec.Device{device}, Batch: 12, Steps: 1, Directory: t.TempDir()}
	_, layout, err := Plan(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	if len(asked) == 0 || slices.Contains(asked, false) || layout.Timed {
		t.Errorf("rehearsals were loaded with %v, the plan with %v", asked, layout.Timed)
	}
}
