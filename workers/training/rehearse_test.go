package training

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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

func TestWhatIsHeldBesideTensorsIsALineThroughTheSmallRehearsal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		few, many, small, large float64
		want                    line
	}{
		"it rises":                 {1, 3, 12, 16, line{fixed: 10, each: 2}},
		"it falls":                 {1, 3, 12, 6, line{fixed: 12}},
		"it begins below 0":        {2, 3, 4, 12, line{each: 2}},
		"less is held than known":  {2, 3, -4, 1, line{}},
		"there is one measurement": {2, 2, 5, 5, line{fixed: 5}},
		"nothing is kept":          {0, 0, 5, 6, line{fixed: 5}},
	} {
		if got := proportional(c.few, c.many, c.small, c.large); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
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
