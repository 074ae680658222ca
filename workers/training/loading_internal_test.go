package training

import (
	"strings"
	"testing"
	"testing/quick"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

func TestAsManyProcessesFetchDataAsKeepUpWithTheSteps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		fetch, step  float64 // in seconds
		wanted, most int
		cores, used  int
		open         bool // files are
		want         int
	}{
		{name: "nothing to hide", fetch: 0.0005, step: 0.01, most: 9, cores: 8, used: 1},
		{name: "little of a long step", fetch: 0.02, step: 1, most: 9, cores: 8, used: 1},
		{name: "most of a step", fetch: 0.08, step: 0.1, most: 9, cores: 8, used: 1, want: 1},
		{name: "a step, which one does not keep up with", fetch: 0.1, step: 0.1, most: 9, cores: 8, used: 1, want: 2},
		{name: "longer than a step", fetch: 0.5, step: 0.1, most: 9, cores: 8, used: 1, want: 6},
		{name: "fewer cores than it takes", fetch: 0.5, step: 0.1, most: 9, cores: 4, used: 1, want: 3},
		{name: "no core left", fetch: 0.5, step: 0.1, most: 9, cores: 2, used: 2, want: 1},
		{name: "one reader after another", fetch: 0.5, step: 0.1, most: 1, cores: 8, used: 1, want: 1},
		{name: "a loader with processes of its own", fetch: 0.5, step: 0.1, most: 0, cores: 8, used: 1},
		{name: "a step of unknown length", fetch: 0.5, most: 9, cores: 4, used: 1, want: 3},
		{name: "as many as wanted", fetch: 0.0005, step: 0.1, wanted: 5, most: 9, cores: 2, used: 2, want: 5},
		{name: "more than can be", fetch: 0.0005, step: 0.1, wanted: 5, most: 1, cores: 2, used: 2, want: 1},
		{name: "files that are open", fetch: 0.5, step: 0.1, most: 9, cores: 8, used: 1, open: true, want: 1},
		{name: "open files, and wanted", fetch: 0.5, step: 0.1, wanted: 5, most: 9, cores: 8, used: 1, open: true, want: 5},
		{name: "none wanted", fetch: 0.5, step: 0.1, wanted: NoDataWorkers, most: 9, cores: 8, used: 1},
	} {
		l := loading{seconds: line{each: tt.fetch / 64}, most: tt.most, unasked: 9, wanted: tt.wanted, cores: tt.cores}
		if tt.open {
			l.unasked = 1
		}
		if got := l.workers(64, tt.step, tt.used); got != tt.want {
			t.Errorf("%s: %d processes; want %d", tt.name, got, tt.want)
		}
	}
}

func TestDataThatTakeLongerNeverHaveFewerProcesses(t *testing.T) {
	t.Parallel()
	never := func(fetch, more uint16, step uint16, cores, most uint8) bool {
		l := loading{seconds: line{fixed: float64(fetch) / 1e3}, most: int(most), unasked: 9, cores: int(cores)}
		slower := l
		slower.seconds.fixed += float64(more) / 1e3
		few, many := l.workers(1, float64(step)/1e3, 1), slower.workers(1, float64(step)/1e3, 1)
		return few <= many && many <= max(int(cores)-1, 1) && many <= int(most)
	}
	if err := quick.Check(never, nil); err != nil {
		t.Error(err)
	}
}

func TestProcessesThatFetchAreInThePlan(t *testing.T) {
	t.Parallel()
	probe := func(samples int) exec.Probe {
		each := quantity.Bytes(samples)
		fetching := exec.Fetching{Batch: 100 * each, Working: 1000 + 150*each, Processes: 4}
		return exec.Probe{Samples: samples, Fetching: fetching}
	}
	l := loadingOf(probe(8), probe(64))
	if got, want := l.holds(2, 32), 2.0*(3*3200+1000+150*32); got != want {
		t.Errorf("two processes hold %v bytes; want %v", got, want)
	}
	if got := l.holds(0, 32); got != 0 {
		t.Errorf("no processes hold %v bytes", got)
	}
	device := exec.Device{ID: "cpu-0", Threads: 1}
	s := setup{batch: 32, loading: l, model: model{measured: true, classes: map[string][]work{classOf(device): {
		{forward: line{each: 0.001}, backward: line{each: 0.002}},
	}}}}
	without := s.besideTensors(device, 0, 2, 32, 0)
	s.loading.wanted = 2
	if got, want := s.besideTensors(device, 0, 2, 32, 0)-without, l.holds(2, 32); got != want {
		t.Errorf("the first part holds %v bytes more; want %v", got, want)
	}
	if got := s.besideTensors(device, 1, 2, 32, 0); got != processBytes {
		t.Errorf("the second part holds %v bytes; want %v", got, processBytes)
	}
	if reason := l.reason(2, 32); !strings.Contains(reason, "2 processes fetch the data") || l.reason(0, 32) != "" {
		t.Errorf("the reason is %q, and %q without processes", reason, l.reason(0, 32))
	}
}

func TestPartsLeaveACoreToEachProcessThatIsWanted(t *testing.T) {
	t.Parallel()
	own := make([]exec.Device, 4)
	for _, tt := range []struct{ parts, workers, want int }{
		{0, 0, 4}, {0, NoDataWorkers, 4}, {0, 1, 3}, {2, 1, 3}, {2, 3, 2}, {4, 3, 4}, {0, 9, 1}, {9, 1, 4},
	} {
		if got := len(besideData(own, tt.parts, tt.workers)); got != tt.want {
			t.Errorf("%d parts and %d processes leave %d cores to parts; want %d", tt.parts, tt.workers, got, tt.want)
		}
	}
}
