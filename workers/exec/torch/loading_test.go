package torch_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// fetching is the layout of a small model, unsplit, whose data so many processes fetch.
func fetching(workers int) spillway.Layout {
	return spillway.Layout{
		Batch: 4, MicroBatches: 1, Seed: 5, DataWorkers: workers,
		Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 0.1},
		Parts:     []spillway.Part{{InFlight: 1, Device: spillway.Device{ID: "cpu", Threads: 1}}},
	}
}

// bothVersions runs a test with each version of PyTorch.
func bothVersions(t *testing.T, test func(t *testing.T, python string)) {
	t.Helper()
	t.Run("PyTorch 1", func(t *testing.T) {
		t.Parallel()
		test(t, torch.RequirePython(t))
	})
	t.Run("PyTorch 2", func(t *testing.T) {
		t.Parallel()
		test(t, torchtest.Python2(t))
	})
}

func TestLossesAreTheSameWhoeverFetchesTheData(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, python string) {
		t.Helper()
		e := executorOf(t, python, "loading.py:build", "")
		in := func(workers, parts int) []float64 {
			l := fetching(workers)
			if parts == 2 {
				l.MicroBatches = 2
				l.Parts = []spillway.Part{
					{Ops: []string{"input_1", "_0", "_1"}, InFlight: 2, Device: core(0)},
					{Ops: []string{"_2", "loss"}, InFlight: 2, Device: core(1)},
				}
			}
			return train(t, load(t, e, l), l, 9) // into the second epoch
		}
		for parts := 1; parts <= 2; parts++ {
			want := in(0, parts)
			for _, workers := range []int{1, 3} {
				if diff := cmp.Diff(want, in(workers, parts)); diff != "" {
					t.Errorf("%d parts, %d processes (-without +got):\n%s", parts, workers, diff)
				}
			}
		}
	})
}

// The loss of loading_ahead.py is not there before a sample of the next batch was read.
func TestTheNextBatchIsReadWhileAStepComputes(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, python string) {
		t.Helper()
		l := fetching(1)
		train(t, load(t, executorOf(t, python, "loading_ahead.py:build", filepath.Join(t.TempDir(), "log")), l), l, 3)
	})
}

func TestProcessesThatFetchEndWithTheirPart(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, python string) {
		t.Helper()
		for _, end := range []struct {
			name string
			end  func(p spillway.Pipeline) error
		}{
			{"when it is closed", spillway.Pipeline.Close},
			{"when it is killed", func(p spillway.Pipeline) error {
				return syscall.Kill(torch.Processes(p)[0], syscall.SIGKILL)
			}},
		} {
			t.Run(end.name, func(t *testing.T) {
				log := filepath.Join(t.TempDir(), "log")
				e := executorOf(t, python, "loading_ahead.py:build", log)
				p, err := e.Load(t.Context(), fetching(2))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = p.Close() }()
				if _, err := p.Batch(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				read, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				if err := end.end(p); err != nil {
					t.Fatal(err)
				}
				deadline := time.Now().Add(time.Minute)
				for line := range strings.Lines(string(read)) {
					pid, err := strconv.Atoi(strings.Fields(line)[1])
					if err != nil {
						t.Fatal(err)
					}
					for runs(pid) {
						if time.Now().After(deadline) {
							t.Fatalf("process %d goes on", pid)
						}
						time.Sleep(10 * time.Millisecond)
					}
				}
			})
		}
	})
}

// runs reports whether a process is there and has not ended.
func runs(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, after, found := bytes.Cut(stat, []byte(") "))
	return err == nil && found && !bytes.HasPrefix(after, []byte("Z"))
}

// What samples draw belongs to them, whichever replica reads them.
func TestReplicasReadTheirSamplesOfTheBatchOfOneProcess(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "loading.py:build", "")
	l := fetching(1)
	want := train(t, load(t, e, l), l, 8)
	for _, workers := range []int{0, 1} {
		l := fetching(workers)
		l.Replicas = 2
		got := wholeSteps(t, load(t, e, l), 0, 8)
		alike(t, strconv.Itoa(workers)+" processes for each of two replicas", want, got, 1e-5)
	}
}
