package memory

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// TestATextThatExplainsRunTimesAloneIsKept has seven texts tell of attempts, of which one explains their run times and
// none their peaks.
func TestATextThatExplainsRunTimesAloneIsKept(t *testing.T) {
	t.Parallel()
	var m Model
	found, lost := 0, 0
	seconds := []float64{10, 60, 300}
	for i := range 400 {
		kind := i * 7 % 3
		features := map[string]float64{usage.CategoryName("model"): usage.Category(string(rune('a' + kind)))}
		for other := range 6 {
			name := usage.CategoryName("other" + string(rune('a'+other)))
			features[name] = usage.Category(string(rune('a' + i*(other+3)%5)))
		}
		m.learn(fact.Record{
			Venue: fact.Pool, Outcome: fact.Succeeded, Features: features, Grant: quantity.Size{CPU: quantity.Core},
			Usage: quantity.Usage{
				Wall:       time.Duration(seconds[kind] * (1 + 0.01*float64(i%5)) * float64(time.Second)),
				PeakMemory: quantity.Bytes(100+i%4) * quantity.MiB,
			},
		}, false, fact.Instant(i)*fact.Instant(time.Minute))
		switch known := m.Duration().Levels.Name == usage.CategoryName("model"); {
		case known:
			found++
		case found > 20:
			lost++
		}
	}
	if found < 100 || lost > 0 {
		t.Errorf("the text explained the times of %d attempts, and of %d after it had of 20 no more", found, lost)
	}
}

func TestAnAttemptThatRanOutOfMemoryIsCountedOnce(t *testing.T) {
	t.Parallel()
	var m Model
	m.learn(fact.Record{
		Venue: fact.Pool, Outcome: fact.OutOfMemory, Cause: fact.CauseMemoryLimit, Grant: quantity.Size{CPU: quantity.Core},
	}, false, 0)
	if m.OutOfMemory != 1 || m.Attempts != 1 {
		t.Errorf("got %d of %d attempts out of memory, want 1 of 1", m.OutOfMemory, m.Attempts)
	}
	// The checkpoints of all versions are of the same events.
	paths, err := filepath.Glob("../testdata/states/v*.json.gz")
	if err != nil || len(paths) < 4 {
		t.Fatalf("got the states %v of earlier versions: %v", paths, err)
	}
	counts := map[int]string{}
	for _, path := range paths {
		count := 0
		for _, known := range readState(t, path).models {
			count += known.OutOfMemory
		}
		counts[count] = path
	}
	if len(counts) != 1 || counts[0] != "" {
		t.Errorf("attempts out of memory by checkpoint: %v, want the same number, above 0, of each", counts)
	}
}

func readState(t *testing.T, path string) *State {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	expanded, err := gzip.NewReader(file)
	if err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	var state State
	if err := json.NewDecoder(expanded).Decode(&state); err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return &state
}

func TestAQueueKnowsTheMeanInputOfItsTasks(t *testing.T) {
	t.Parallel()
	var line Backlog
	for _, hint := range []struct {
		tasks int
		input quantity.Bytes
		want  float64
	}{{1, 0, 0}, {1, 100, 100}, {2, 400, 250}, {0, 900, 250}, {4, -1, 250}} {
		line.hinted(hint.tasks, hint.input)
		if line.Tasks += hint.tasks; line.Input != hint.want {
			t.Errorf("after %d more of %d bytes: a mean of %v, want %v", hint.tasks, hint.input, line.Input, hint.want)
		}
	}
	line.Tasks = 0
	if line.hinted(3, 7); line.Input != 7 {
		t.Errorf("after the queue was empty: a mean of %v, want that of the tasks since", line.Input)
	}
}

func TestWhatHeldAttemptsBackIsReadOfEarlierVersions(t *testing.T) {
	t.Parallel()
	state := readState(t, "../testdata/states/v7.json.gz")
	if got := state.models["grow/second"].HeldBack(); got != 150 {
		t.Errorf("a state that knows that 0.15 cores held attempts back says %s", got)
	}
	if got := state.models["grow/first"].HeldBack(); got != 0 {
		t.Errorf("a state that knows nothing that held attempts back says %s", got)
	}
}

func TestALimitThatHeldAttemptsBackIsTheOneThatTheyHad(t *testing.T) {
	t.Parallel()
	for cpu := quantity.Milli(10); cpu < 20_000; cpu += 7 {
		var m Model
		m.heldBack(fact.Sampled{Grant: quantity.Size{CPU: cpu}, CPU: cpu, Throttled: 0.5})
		if got := m.HeldBack(); got != cpu {
			t.Fatalf("%d thousandths of a core held an attempt back, got %d", cpu, got)
		}
	}
}

func TestTheNameOfAProgramIsCutBetweenLetters(t *testing.T) {
	t.Parallel()
	state := New()
	state.Fold(fact.Scheduled{
		Run: "r", Stage: fact.StageID{App: "app", Build: "b", Name: "s"}, At: time.Unix(1, 0),
		Program: strings.Repeat("x€", 50), Tasks: 1,
	})
	for _, known := range state.models {
		if !utf8.ValidString(known.Program) || len(known.Program) < maxProgram-utf8.UTFMax {
			t.Errorf("got %q", known.Program)
		}
	}
	if len(state.models) != 1 {
		t.Errorf("%d stages are known, want 1", len(state.models))
	}
}

// Run times that were brought to a size are kept until a Record comes, and no longer.
func TestRunTimesThatAreKeptForASizeHaveEveryRecord(t *testing.T) {
	t.Parallel()
	var m Model
	ended := func(cpu quantity.Milli, wall time.Duration) {
		m.learn(fact.Record{
			Venue: fact.Pool, Outcome: fact.Succeeded, Grant: quantity.Size{CPU: cpu},
			Usage: quantity.Usage{Wall: wall, CPU: wall},
		}, false, 0)
	}
	ended(quantity.Core, time.Second)
	ended(2*quantity.Core, time.Second)
	for n := 2; n < 10; n++ {
		for _, cores := range []float64{1, 2} {
			if got := m.Times(fact.Pool, cores); len(got.Values) != n {
				t.Fatalf("with %v cores: got %d run times, want those of %d Records", cores, len(got.Values), n)
			}
		}
		if len(m.brought) == 0 {
			t.Fatal("no run times are kept, so the test shows nothing")
		}
		ended(quantity.Core, time.Duration(n)*time.Second)
	}
}

// A stage whose code has other parameters now is explained by these, once nothing that is remembered has the earlier
// ones.
func TestRunTimesAreExplainedByWhatAttemptsHaveNow(t *testing.T) {
	t.Parallel()
	var m Model
	learn := func(seconds float64, features map[string]float64) {
		m.learn(fact.Record{
			Venue: fact.Pool, Outcome: fact.Succeeded, Features: features, Grant: quantity.Size{CPU: quantity.Core},
			Usage: quantity.Usage{Wall: time.Duration(seconds * float64(time.Second)), CPU: time.Second},
		}, false, 0)
	}
	for i := range 3 * usage.MaxTimes {
		features := map[string]float64{}
		for n := range usage.MaxFeatures {
			features["earlier "+string(rune('a'+n))] = float64(1 + (i*7+n)%5)
		}
		learn(10, features)
	}
	for i := range usage.MaxTimes + 8 {
		learn(float64(1+i%9), map[string]float64{"rows": float64(1 + i%9)})
	}
	if wall := m.Needs(0.1, func() float64 { return usage.MostExcess }).Wall; wall.Feature != "rows" {
		t.Errorf("run times that are proportional to the rows are %+v, want them by rows", wall)
	}
	if names := m.Tries.Sizes[0].Times.Names; !slices.Contains(names, "rows") {
		t.Errorf("speeds are compared by %q, want rows among them", names)
	}
}

// What was told of inputs when tasks were scheduled, and what hosts found, differs by a little: of a thousand tasks
// together, by more than the last of them has.
func TestWhatIsLeftOfInputsIsNoDifferenceOfLargeSums(t *testing.T) {
	t.Parallel()
	of := func(tasks int, bytes, off float64) Inputs {
		n, log := float64(tasks), math.Log(bytes)
		return Inputs{Tasks: tasks, Bytes: n * bytes * off, Logs: n * (log + off - 1), Squares: n * log * log * off}
	}
	for _, off := range []float64{0.999, 1, 1.001} {
		for _, done := range []int{0, 500, 900, 990, 999, 1000, 1001} {
			left := of(1000, 1e9, 1).Less(of(done, 1e9, off))
			if want := max(0, 1000-done); left.Tasks != want {
				t.Errorf("%d tasks are left of 1,000 once %d are done, want %d", left.Tasks, done, want)
			}
			if done >= 1000 {
				continue
			}
			if mean := left.Mean(); mean < 0.9e9 || mean > 1.1e9 {
				t.Errorf("the mean of %d inputs of a GB that are left is %g, where those that are done were off by %g",
					left.Tasks, mean, off)
			}
			if spread := math.Sqrt(left.Variance()); !(spread < 0.5) && off <= 1.0001 && off >= 0.9999 {
				t.Errorf("%d equal inputs that are left differ by %g", left.Tasks, spread)
			}
		}
	}
	small, large := of(900, 1e6, 1), of(100, 1e9, 1)
	all := Inputs{
		Tasks: 1000, Bytes: small.Bytes + large.Bytes, Logs: small.Logs + large.Logs, Squares: small.Squares + large.Squares,
	}
	if mean := all.Less(small).Mean(); mean < 0.99e9 || mean > 1.01e9 {
		t.Errorf("the mean of 100 inputs of a GB that are left after 900 of a MB is %g", mean)
	}
	over := Inputs{Tasks: 900, Bytes: all.Bytes, Logs: small.Logs, Squares: small.Squares}
	if mean := all.Less(over).Mean(); mean < 0.9e9 {
		t.Errorf("inputs whose logarithms say a GB have a mean of %g where too many bytes were done", mean)
	}
}

// Of 40 numbers, the one that explains run times comes last by name, and explains no peak.
func TestRunTimesAreExplainedByWhatExplainsThemAmongManyNumbers(t *testing.T) {
	t.Parallel()
	const rows = "rows"
	found := 0
	const seeds = 10
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 81))
		var m Model
		learned := 0
		for i := range 400 {
			features := map[string]float64{rows: 1 + 9*r.Float64()}
			for n := range 40 {
				features[fmt.Sprintf("p%02d", n)] = 1 + 9*r.Float64()
			}
			cores := quantity.Core * quantity.Milli(1+i/200)
			record := fact.Record{
				Venue: fact.Pool, Outcome: fact.Succeeded, Features: features, Grant: quantity.Size{CPU: cores},
				Usage: quantity.Usage{
					Wall: time.Duration(10 * features[rows] * math.Exp(0.05*r.NormFloat64()) * float64(time.Second)),
					CPU:  time.Second, PeakMemory: quantity.Bytes(100+r.IntN(3)) * quantity.MiB,
				},
			}
			record.Predicted.Wall, _ = m.Duration().At(featuresOf(record))
			m.learn(record, false, fact.Instant(i))
			if learned == 0 && m.Duration().Feature == rows {
				learned = i
			}
		}
		if m.Duration().Feature == rows {
			found++
		}
		if names := len(m.Walls[fact.Pool].Names); names > usage.MaxFeatures {
			t.Errorf("run times follow %d names, want %d at most", names, usage.MaxFeatures)
		}
		if learned > 0 && !slices.Contains(m.Tries.Sizes[1].Times.Names, rows) {
			t.Errorf("speeds are compared by %q, want rows among them", m.Tries.Sizes[1].Times.Names)
		}
	}
	if found < seeds-1 {
		t.Errorf("rows explain the run times of %d stages of %d after 400 attempts, want all but one", found, seeds)
	}
}

// TestAColdStartIsWhatItsEnvironmentTook: before that the build may have been deployed, or the venue been full.
func TestAColdStartIsWhatItsEnvironmentTook(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		record fact.Record
		want   float64
	}{
		{fact.Record{Venue: fact.Function, Cold: true, Start: 4 * time.Second, Init: 250 * time.Millisecond}, 0.25},
		{fact.Record{Venue: fact.Function, Cold: true, Start: 4 * time.Second}, 4}, // of an engine that did not tell
		{fact.Record{Venue: fact.Pool, Cold: true, Start: time.Second}, 1},
	} {
		var m Model
		m.learn(tt.record, false, 0)
		colds := m.Colds[tt.record.Venue]
		if got, _ := colds.Mean(); got != tt.want {
			t.Errorf("%s after %s with an init of %s: got %v s, want %v s", tt.record.Venue, tt.record.Start, tt.record.Init,
				got, tt.want)
		}
	}
}
