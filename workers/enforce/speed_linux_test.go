package enforce_test

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	predicted "github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// worker is a program that works once for every line it is given.
type worker struct {
	group *enforce.Group
	in    io.Writer
	out   *bufio.Reader
}

// took is what one attempt took.
type took struct{ seconds, rate, held float64 }

// TestMeasureSpeeds compares predicted with measured speed at half a core, one and two, of programs that are run five
// times at one of these sizes and once at another, for every two sizes. What is measured is the median of five.
func TestMeasureSpeeds(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("SPILLWAY_MEASURE is not set")
	}
	python := pythonWith(t, "torch", "numpy")
	script := func(name string) *exec.Cmd {
		cmd := exec.Command(python, "testdata/speed/programs.py", name)
		cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=2", "OPENBLAS_NUM_THREADS=2") // of one, where that is usual here
		return cmd
	}
	programs := []struct {
		name  string
		start *exec.Cmd
	}{
		{"Python, one thread", script("single")},
		{"Python, two processes", script("processes")},
		{"numpy", script("arrays")},
		{"PyTorch, training", script("train")},
		{"PyTorch, inference", script("infer")},
		{"Go, parallel", self("parallel")},
		{"Go, one thread and its collector", self("garbage")},
		{"Python, waits half of its time", script("waits")},
	}
	for _, mode := range kernelModes(t) {
		e := open(t, mode, 0)
		if e.Limit().CPU < 2*quantity.Core {
			t.Skipf("this host has %s cores, and two are looked at", e.Limit().CPU)
		}
		t.Logf("%s: speed relative to one core at 0.5 and 2 cores, measured, and predicted after five attempts at one size "+
			"and one at another", mode)
		for i, p := range programs {
			w := startWorker(t, group(t, e, fmt.Sprintf("speed-%d", i)), p.start)
			tellSpeeds(t, p.name, w.measure(t))
			if err := w.group.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// speedSizes are those that are looked at, in cores.
var speedSizes = []float64{0.5, 1, 2}

// speedTimes is how often a program runs at each.
const speedTimes = 5

// measure runs the program at every size in turn, so that what else the host does meets all alike.
func (w *worker) measure(t *testing.T) map[float64][]took {
	t.Helper()
	found := map[float64][]took{}
	for range speedTimes {
		for _, cores := range speedSizes {
			resize(t, w.group, quantity.Size{CPU: quantity.Milli(cores * float64(quantity.Core)), Memory: 2 * quantity.GiB})
			time.Sleep(200 * time.Millisecond) // a limit is felt within two periods
			found[cores] = append(found[cores], w.work(t))
		}
	}
	return found
}

// work lets the program work once.
func (w *worker) work(t *testing.T) took {
	t.Helper()
	before, began := usage(t, w.group), time.Now()
	if _, err := io.WriteString(w.in, "go\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := w.out.ReadString('\n'); err != nil || line != "done\n" {
		t.Fatalf("the program answered %q: %v", line, err)
	}
	seconds, after := time.Since(began).Seconds(), usage(t, w.group)
	return took{
		seconds: seconds, rate: (after.CPU - before.CPU).Seconds() / seconds,
		held: (after.Throttled - before.Throttled).Seconds() / seconds,
	}
}

// tellSpeeds writes a program's line of the table.
func tellSpeeds(t *testing.T, name string, found map[float64][]took) {
	t.Helper()
	middle := func(cores float64) float64 {
		var seconds []float64
		for _, one := range found[cores] {
			seconds = append(seconds, one.seconds)
		}
		slices.Sort(seconds)
		return seconds[len(seconds)/2]
	}
	var line strings.Builder
	measured := map[float64]float64{}
	for _, cores := range speedSizes {
		measured[cores] = middle(1) / middle(cores)
		fmt.Fprintf(&line, " %s: %.2f s, %.2f cores, held %.2f;", quantity.Milli(cores*1000), middle(cores),
			found[cores][0].rate, found[cores][0].held)
	}
	t.Logf("%-34s measured %.2f %.2f;%s", name, measured[0.5], measured[2], line.String())
	for _, five := range speedSizes {
		for _, one := range speedSizes {
			if one == five {
				continue
			}
			var tries predicted.Tries
			for i, attempt := range found[five] {
				tries.Add(five, attempt.seconds, attempt.rate, attempt.held, predicted.Features{}, nil)
				if i == 0 {
					other := found[one][speedTimes/2]
					tries.Add(one, other.seconds, other.rate, other.held, predicted.Features{}, nil)
				}
			}
			speed := tries.Learn(predicted.Duration{}, true)
			worst := 0.0
			for _, cores := range speedSizes {
				worst = max(worst, math.Abs(speed.At(cores).Mid/measured[cores]-1))
			}
			verdict := "within 10 percent"
			if worst > 0.10 {
				verdict = "MISSED"
			}
			t.Logf("%-34s five at %-4v one at %-4v predicted %.2f %.2f; off by %2.0f percent: %s", "", five, one,
				speed.At(0.5).Mid, speed.At(2).Mid, 100*worst, verdict)
		}
	}
}

// startWorker starts a program in a group and waits until it has worked once.
func startWorker(t *testing.T, g *enforce.Group, cmd *exec.Cmd) *worker {
	t.Helper()
	resize(t, g, quantity.Size{CPU: 2 * quantity.Core, Memory: 2 * quantity.GiB})
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	w := &worker{group: g, in: in, out: bufio.NewReader(out)}
	if line, err := w.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%s answered %q: %v", cmd, line, err)
	}
	return w
}

// pythonWith finds a Python that has modules.
func pythonWith(t *testing.T, modules ...string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(python)
		if err == nil && exec.Command(path, "-c", "import "+strings.Join(modules, ",")).Run() == nil {
			return path
		}
	}
	t.Skipf("no python3 has %s", strings.Join(modules, " and "))
	return ""
}

// serve works once for every line that it reads.
func serve(work func()) error {
	work()
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		work()
		fmt.Println("done")
	}
	return lines.Err()
}

// parallel computes on two goroutines that share the work.
func parallel() {
	var all sync.WaitGroup
	for part := range 2 {
		all.Go(func() {
			x := uint64(part + 1)
			for range 300_000_000 {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
			}
			runtime.KeepAlive(x)
		})
	}
	all.Wait()
}

// node is a part of a tree.
type node struct{ left, right *node }

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}

// garbage builds trees on one goroutine: half of what lives is replaced again and again.
func garbage() {
	kept := tree(17)
	for range 120 {
		runtime.KeepAlive(tree(16))
	}
	runtime.KeepAlive(kept)
}
