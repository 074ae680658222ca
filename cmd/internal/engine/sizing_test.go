package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

// buildDigits compiles the sample app.
func buildDigits(tb testing.TB) string {
	tb.Helper()
	return buildPackage(tb, "digits", "../../digits", "")
}

// runDigits runs the sample once and returns the Records of its attempts at the pool.
func runDigits(
	t *testing.T, e *testEngine, records func(func(predictor.Record) bool) []predictor.Record, id string,
) []predictor.Record {
	t.Helper()
	run := e.publish("digits", id, map[string]any{})
	view := e.wait(run, patience)
	if view.State != predictor.RunSucceeded {
		t.Fatalf("run %s %s: %s\n%s", run, view.State, view.Error, e.output)
	}
	mine := func(r predictor.Record) bool { return r.Run == run && r.Venue == predictor.Pool }
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		tasks := map[string]bool{}
		for _, record := range records(func(r predictor.Record) bool {
			return r.Run == run && r.Outcome == predictor.Succeeded
		}) {
			tasks[record.Task] = true
		}
		if len(tasks) >= 363 { // load, preprocess, 39 jobs of trials, train, evaluate and 320 shards
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return records(mine)
}

func median(values []float64) float64 {
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[len(values)/2]
}

// TestTenRunsOfDigits runs the sample ten times in a row and tells how close the memory that attempts were given was to
// what they took.
func TestTenRunsOfDigits(t *testing.T) {
	needMeasure(t)
	enforcetest.Need(t)
	e := startEngine(t, t.TempDir(), buildDigits(t))
	records := e.followRecords()
	for n := 1; n <= 10; n++ {
		began := time.Now()
		var ratios []float64
		byStage := map[string][]float64{}
		under := 0
		attempts := runDigits(t, e, records, "digits-"+string(rune('a'+n)))
		for _, a := range attempts {
			if a.Usage.PeakMemory <= 0 {
				continue
			}
			ratio := float64(a.Grant.Memory) / float64(a.Usage.PeakMemory)
			ratios = append(ratios, ratio)
			byStage[a.Stage.Name] = append(byStage[a.Stage.Name], ratio)
			if a.Outcome == predictor.OutOfMemory || ratio < 1 {
				under++
				t.Logf("under: %s %s at %s, peak %s of %s (%s), cold %v, %s", a.Task, a.Outcome, a.At.Format(time.TimeOnly),
					a.Usage.PeakMemory, a.Grant.Memory, a.Predicted.Source, a.Cold, a.Error)
			}
		}
		t.Logf("run %2d: %5.1f s, %d attempts at the pool, granted/peak memory at the median %.2f, under %.2f%%; load %.2f "+
			"preprocess %.2f train %.2f score %.2f evaluate %.2f",
			n, time.Since(began).Seconds(), len(attempts), median(ratios), 100*float64(under)/float64(len(ratios)),
			median(byStage["load"]), median(byStage["preprocess"]), median(byStage["train"]), median(byStage["score"]),
			median(byStage["evaluate"]))
	}
}

// used is what attempts took of what they were granted, in core-seconds and byte-seconds.
type used struct {
	cpu, cpuGranted, memory, memoryGranted float64
}

func (u *used) add(a predictor.Record) {
	wall := a.Usage.Wall.Seconds()
	u.cpu += a.Usage.CPU.Seconds()
	u.cpuGranted += a.Grant.CPU.Cores() * wall
	u.memory += float64(a.Usage.PeakMemory) * wall
	u.memoryGranted += float64(a.Grant.Memory) * wall
}

// TestUtilisationOfThePool runs the sample in turn with predicted and with static sizes, and tells what part of the
// granted CPU and memory was used. Static is what a stage gets without a prediction; beside it stands the one size that
// would have held all stages, known only afterwards: the largest peak and one core.
func TestUtilisationOfThePool(t *testing.T) {
	needMeasure(t)
	enforcetest.Need(t)
	app := buildDigits(t)
	ours, static := startEngine(t, t.TempDir(), app, "--no-burst"), startEngine(t, t.TempDir(), app, "--predictor", "off")
	ourRecords, staticRecords := ours.followRecords(), static.followRecords()
	runDigits(t, ours, ourRecords, "warm")
	runDigits(t, static, staticRecords, "warm")
	var mine, theirs, uniform used
	var took, tookStatic []float64
	for n := range 3 {
		began := time.Now()
		attempts := runDigits(t, ours, ourRecords, "o"+string(rune('a'+n)))
		took = append(took, time.Since(began).Seconds())
		largest := quantity.Bytes(0)
		for _, a := range attempts {
			mine.add(a)
			largest = max(largest, a.Usage.PeakMemory)
		}
		for _, a := range attempts {
			a.Grant = quantity.Size{CPU: quantity.Core, Memory: largest}
			uniform.add(a)
		}
		began = time.Now()
		for _, a := range runDigits(t, static, staticRecords, "s"+string(rune('a'+n))) {
			theirs.add(a)
		}
		tookStatic = append(tookStatic, time.Since(began).Seconds())
	}
	for _, u := range []struct {
		name string
		used
	}{{"predicted", mine}, {"static", theirs}, {"one size, with hindsight", uniform}} {
		t.Logf("%-26s CPU used/granted %.1f%%, peak/granted memory %.1f%%", u.name, 100*u.cpu/u.cpuGranted,
			100*u.memory/u.memoryGranted)
	}
	t.Logf("median run: %.1f s predicted, %.1f s static", median(took), median(tookStatic))
}

// firstRuns are pipelines of which nothing is known: the two samples, many small tasks, one large one, and tasks whose
// memory depends on their input.
func firstRuns(t *testing.T) map[string]func(*testing.T) *testEngine {
	t.Helper()
	digits, small := buildDigits(t), buildApp(t, 0)
	ofApp := func(app, pipeline string, input any) func(*testing.T) *testEngine {
		return func(t *testing.T) *testEngine {
			t.Helper()
			e := startEngine(t, t.TempDir(), app, "--no-burst")
			run := e.publish(pipeline, pipeline, input)
			if view := e.wait(run, patience); view.State != predictor.RunSucceeded {
				t.Fatalf("%s: run %s %s: %s\n%s", pipeline, run, view.State, view.Error, e.output)
			}
			return e
		}
	}
	ofChain := func(files map[string]string) func(*testing.T) *testEngine {
		return func(t *testing.T) *testEngine {
			t.Helper()
			e := startEngine(t, t.TempDir(), "", "--no-burst")
			code, stdout, stderr := command(t, t.Context(), e.state, "run", filepath.Join(directory(t, files), "chain.yaml"))
			if code != cli.ExitOK {
				t.Fatalf("exit code %d\n%s\n%s\n%s", code, stdout, stderr, e.printed())
			}
			return e
		}
	}
	return map[string]func(*testing.T) *testEngine{
		"digits": ofApp(digits, "digits", map[string]any{}),
		"chain": ofChain(map[string]string{
			"chain.yaml": squares, "split.py": split, "words.txt": strings.Repeat("word ", 40),
		}),
		"many small tasks": ofApp(small, "fan", map[string]any{"shards": 300, "milliseconds": 100}),
		"one large task":   ofChain(map[string]string{"chain.yaml": large, "large.py": largeTask}),
		"memory by input":  ofApp(small, "feast", map[string]any{"tasks": 120, "seed": 1, "most_rows": 5_000_000}),
	}
}

// large is a chain of one task that takes 800 MiB, as fast as it can, and uses them for a while.
const large = `name: large
stages:
  fit:
    run: python3 large.py
`

const largeTask = `import time
block = bytearray(800 << 20)
end, total = time.process_time() + 6, 0
while time.process_time() < end:
    total += sum(block[:: 1 << 12])
`

// TestFirstRuns runs pipelines of which nothing is known, each on an engine of its own that has seen nothing, and tells
// what part of the granted CPU and memory was used, and how often an attempt ran out of memory.
func TestFirstRuns(t *testing.T) {
	needMeasure(t)
	needPython(t)
	enforcetest.Need(t)
	var all used
	tasks, killed := 0, 0
	for name, begin := range firstRuns(t) {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			e := begin(t)
			took := time.Since(began)
			records := e.followRecords()
			var attempts []predictor.Record
			e.until("no further Record comes", func() bool {
				before := len(attempts)
				time.Sleep(time.Second)
				attempts = records(func(r predictor.Record) bool { return r.Venue == predictor.Pool })
				return before > 0 && before == len(attempts)
			})
			var mine used
			out := 0
			byStage, grants := map[string]*used{}, map[string]map[quantity.Size]int{}
			for _, a := range attempts {
				mine.add(a)
				all.add(a)
				if byStage[a.Stage.Name] == nil {
					byStage[a.Stage.Name], grants[a.Stage.Name] = &used{}, map[quantity.Size]int{}
				}
				grants[a.Stage.Name][a.Grant]++
				byStage[a.Stage.Name].add(a)
				tasks++
				if a.Outcome == predictor.OutOfMemory || a.Outcome == predictor.Lost {
					out++
					t.Logf("%s: %s %s at %s, peak %s of %s: %s", name, a.Task, a.Outcome, a.At.Format(time.TimeOnly),
						a.Usage.PeakMemory, a.Grant.Memory, a.Error)
				}
			}
			killed += out
			for stage, u := range byStage {
				t.Logf("%s/%s: %.1f core-seconds of %.1f, %.2f GiB-seconds of %.2f; attempts by grant: %v", name, stage, u.cpu,
					u.cpuGranted, u.memory/float64(quantity.GiB), u.memoryGranted/float64(quantity.GiB), grants[stage])
			}
			t.Logf("%-17s %5.1f s, %d attempts, %d killed, CPU used/granted %.1f%%, peak/granted memory %.1f%%", name,
				took.Seconds(), len(attempts), out, 100*mine.cpu/mine.cpuGranted, 100*mine.memory/mine.memoryGranted)
			e.stop()
		})
	}
	t.Logf("all: %d of %d attempts killed, CPU used/granted %.1f%%, peak/granted memory %.1f%%", killed, tasks,
		100*all.cpu/all.cpuGranted, 100*all.memory/all.memoryGranted)
}

// TestIdleStagesCostLittle serves an app of a hundred stages that have all run once, and tells what the engine takes
// while nothing happens.
func TestIdleStagesCostLittle(t *testing.T) {
	needMeasure(t)
	e := startEngine(t, t.TempDir(), buildApp(t, 100), "--no-burst", "--idle-after", "5s")
	if done := succeed[int](e, e.publish("wide", "wide", map[string]any{"shards": 100}), patience); done != 100 {
		t.Fatalf("%d stages ran, want 100", done)
	}
	time.Sleep(10 * time.Second) // with their slots idle children go
	before, memory := processUse(t, e.command.Process.Pid)
	const span = 20 * time.Second
	time.Sleep(span)
	after, _ := processUse(t, e.command.Process.Pid)
	t.Logf("engine with 100 idle stages: %.2f%% of a core over %s, %s resident; %d children",
		100*(after-before).Seconds()/span.Seconds(), span, memory, len(children(e.state)))
}

// processUse is the processor time and the resident memory of a process.
func processUse(t *testing.T, pid int) (cpu time.Duration, resident quantity.Bytes) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("needs /proc to see what the engine takes")
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	pages, _ := strconv.ParseInt(fields[21], 10, 64)
	return time.Duration(user+system) * time.Second / 100, quantity.Bytes(pages) * quantity.Bytes(os.Getpagesize())
}
