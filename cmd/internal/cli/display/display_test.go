package display_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var (
	begin = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	both  = func(pool, function int) map[predictor.Venue]int {
		return map[predictor.Venue]int{predictor.Pool: pool, predictor.Function: function}
	}
	score = predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
	train = predictor.StageID{App: "digits", Build: "0123456789ab", Name: "train"}
)

// running is a run in the middle of its burst.
func running() display.Model {
	return display.Model{
		Now: begin.Add(14200 * time.Millisecond), Page: "http://127.0.0.1:7474", TemporalUI: "http://127.0.0.1:8233",
		HostPrice: 44_625_000_000,
		Run: ledger.RunView{
			Run: "digits-7f3a9c", Pipeline: "digits", App: "digits", Build: "0123456789ab", State: predictor.RunRunning,
			StartedAt: begin,
			Goal:      predictor.Goal{Deadline: time.Minute, Budget: quantity.USD / 2, Minimise: predictor.Cost},
			Actual:    ledger.RunActual{Seconds: 14},
			Predicted: ledger.RunPrediction{
				FinishSeconds: predictor.Interval{Low: 17.5, Mid: 22, High: 31},
				Cost:          predictor.Interval{Low: 0.0002, Mid: 0.00031, High: 0.0004},
			},
			Stages: []ledger.StageView{
				{
					Name: "load", Scheduled: 1, Done: 1, Tasks: both(1, 0), Slots: both(1, 0), QueueSeconds: 0.02, StartSeconds: 0.1,
					RunSeconds: 0.084, CPUSeconds: 0.08,
					PeakMemory: 24 * quantity.MiB, Grant: quantity.Size{CPU: 1000, Memory: 64 * quantity.MiB}, Cost: 2_310_000,
					Memory: map[predictor.Venue]ledger.Memory{predictor.Pool: {Peak: 24 * quantity.MiB, Grant: 64 * quantity.MiB}},
				},
				{
					Name: "train", Scheduled: 1, Running: 1, Tasks: both(0, 0), Slots: both(1, 0), QueueSeconds: 0.03,
					StartSeconds: 0.1,
					PeakMemory:   190 * quantity.MiB, Grant: quantity.Size{CPU: 1000, Memory: 256 * quantity.MiB}, Cost: 0,
					Memory: map[predictor.Venue]ledger.Memory{predictor.Pool: {Peak: 190 * quantity.MiB, Grant: 256 * quantity.MiB}},
					Step:   7, Metrics: map[string]float64{"loss": 0.13471, "accuracy": 0.9513}, Failed: 1,
				},
				{
					Name: "a-stage-with-a-long-name", Expected: 320, Scheduled: 64, Running: 3, Done: 47, Tasks: both(30, 17),
					Slots:        both(1, 2),
					QueueSeconds: 130, StartSeconds: 1.2, RunSeconds: 3.9, CPUSeconds: 3.8, PeakMemory: 11 * quantity.GiB,
					Grant: quantity.Size{CPU: 1000, Memory: 12 * quantity.GiB},
					Cost:  212_345_678,
					Memory: map[predictor.Venue]ledger.Memory{
						predictor.Pool:     {Peak: 23 * quantity.MiB, Grant: 26 * quantity.MiB},
						predictor.Function: {Peak: 11 * quantity.GiB, Grant: 12 * quantity.GiB},
					},
				},
			},
			Totals: ledger.Totals{
				Tasks: both(31, 17), Attempts: 49, Failures: 1, Cost: 214_655_678, QueueSeconds: 130.05,
				RunSeconds: 3.984, CPUSeconds: 3.88, StartSeconds: 1.4,
			},
		},
		Decisions: []predictor.Decision{
			{
				ID: "0", Stage: train, Venue: predictor.Pool, What: "slots", From: "0 slots", To: "1 slot", Reason: "1 task waits",
				At: begin.Add(-time.Second),
			},
			{
				ID: "1", Stage: score, Venue: predictor.Pool, What: "slots", From: "0 slots", To: "1 slot", Reason: "64 tasks wait",
				At: begin.Add(11 * time.Second),
			},
			{
				ID: "2", Stage: score, Venue: predictor.Function, What: "slots", From: "0 slots", To: "2 slots",
				At: begin.Add(12 * time.Second),
				Reason: "240 tasks wait 24 s at 1 pool slot; 2 function slots finish 16 s sooner for $0.00021,\nless than the " +
					"$0.0044 that 16 s are worth",
				Inputs: map[string]float64{"backlog_tasks": 240}, Predicted: predictor.Interval{Low: 6, Mid: 8, High: 11},
				PredictedUnit: "seconds",
			},
			{
				ID: "3", Stage: score, Venue: predictor.Pool, What: "size", From: "1 cores, 64 MiB", To: "1 cores, 96 MiB",
				Reason: "the 95th percentile of 12 peaks is 83 MiB", At: begin.Add(13 * time.Second),
			},
			{
				ID: "4", Stage: score, Run: "digits-7f3a9c", What: "window", From: "64 tasks", To: "128 tasks",
				Reason: "3 slots \x1b[31mask for more", At: begin.Add(14 * time.Second),
			},
			{
				ID: "5", Stage: score, Venue: predictor.Function, What: "slots", From: "2 slots", To: "1 slot",
				Reason: "the backlog is gone", At: begin.Add(14 * time.Second),
			},
		},
	}
}

// ended is the same run at its end.
func ended() display.Model {
	m := running()
	m.Run.State, m.Run.EndedAt = predictor.RunSucceeded, begin.Add(23400*time.Millisecond)
	m.Run.Result = json.RawMessage(`{"accuracy":0.9778,"shards":320}`)
	m.Run.Stages[1].Running, m.Run.Stages[1].Done, m.Run.Stages[1].Tasks = 0, 1, both(1, 0)
	m.Run.Stages[1].RunSeconds, m.Run.Stages[1].CPUSeconds, m.Run.Stages[1].ActualWall = 9.8, 9.7, 9.8
	m.Run.Stages[1].PredictedWall = predictor.Interval{Low: 8, Mid: 9, High: 12}
	m.Run.Stages[2].Done, m.Run.Stages[2].Tasks, m.Run.Stages[2].Running = 320, both(201, 119), 0
	m.Run.Totals.Tasks = both(203, 119)
	m.Run.Actual.Seconds = 23.4
	m.Run.Static = ledger.Static{Known: true, Actual: 214_655_678, Cost: 127_500_000, Seconds: 51.5}
	for i, wait := range []ledger.Wait{
		{MedianSeconds: 0.02, LongestSeconds: 0.02, Attempts: 1},
		{MedianSeconds: 0.03, LongestSeconds: 0.03, Attempts: 1},
		{MedianSeconds: 0.31, LongestSeconds: 8.4, Attempts: 320},
	} {
		m.Run.Stages[i].Wait = wait
	}
	return m
}

// missed is the run at its end when it was late, dear, and the second of its pipeline.
func missed() display.Model {
	m := ended()
	m.Run.Goal = predictor.Goal{Deadline: 20 * time.Second, Budget: 200_000_000}
	m.Run.Static.Cost, m.Run.Static.Seconds = 642_000_000, 23.39
	m.Run.Predicted = ledger.RunPrediction{
		FinishSeconds: predictor.Interval{Low: 11, Mid: 22, High: 44},
		Cost:          predictor.Interval{Low: 0.0001, Mid: 0.0002, High: 0.0004}, Runs: 1,
		Basis: "its input and one earlier run, so it is wide",
	}
	return m
}

func failed() display.Model {
	m := running()
	m.Run.State, m.Run.EndedAt, m.Run.Error = predictor.RunFailed, begin.Add(15*time.Second),
		"stage train: attempt 3: loss is NaN\nat epoch 7"
	m.Run.Predicted, m.Decisions = ledger.RunPrediction{}, nil
	return m
}

// starting is a run of which nothing is known yet.
func starting() display.Model {
	return display.Model{Now: begin, Run: ledger.RunView{
		Run: "digits-1", Pipeline: "digits", State: predictor.RunRunning,
		StartedAt: begin,
	}}
}

// hopeless is a run that will probably miss its goal.
func hopeless() display.Model {
	m := running()
	m.Run.Stages, m.Decisions = nil, nil
	m.Run.Predicted = ledger.RunPrediction{
		FinishSeconds: predictor.Interval{Low: 58, Mid: 73, High: 91.2},
		Cost:          predictor.Interval{Low: 0.4, Mid: 0.61, High: 0.812}, Runs: 4,
		Basis: "its own tasks and 4 earlier runs", Late: 0.83, Dear: 0.7109,
	}
	m.Run.Latest = m.Run.Predicted
	return m
}

func TestWhatIsExpectedIsSaidWithAWarningWhereTheGoalWillProbablyBeMissed(t *testing.T) {
	t.Parallel()
	const expected = "expected to end after 73.0 s (58.0 s to 91.2 s) for $0.6100 ($0.4000 to $0.8120); " +
		"rests on its own tasks and 4 earlier runs"
	const late = "its deadline of 1m (83%)"
	for _, c := range []struct {
		name    string
		change  func(*ledger.RunView)
		warning string
	}{
		{"both", func(*ledger.RunView) {}, "warning: it will probably miss " + late + " and its budget of $0.5000 (71%); " +
			"`spillway goal digits-7f3a9c` shows what else could be had, and --deadline 1m50s --budget 0.90 there gives enough"},
		{"late", func(run *ledger.RunView) { run.Predicted.Dear = 0.5 }, "warning: it will probably miss " + late +
			"; `spillway goal digits-7f3a9c` shows what else could be had, and --deadline 1m50s there gives enough"},
		{"neither", func(run *ledger.RunView) { run.Predicted.Late, run.Predicted.Dear = 0.5, 0 }, ""},
		{"another goal", func(run *ledger.RunView) { run.Goal = predictor.Goal{} }, ""},
	} {
		run := hopeless().Run
		c.change(&run)
		want := []string{expected}
		if c.warning != "" {
			want = append(want, c.warning)
		}
		if diff := cmp.Diff(want, display.Expected(run)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if got := display.Expected(starting().Run); got != nil {
		t.Errorf("of a run of which nothing is known it says %q", got)
	}
	log := display.NewRunLog()
	if lines := log.Run(hopeless().Run); len(lines) != 3 || !strings.HasSuffix(lines[1], expected) {
		t.Errorf("the log of a run says %q, want its start, what is expected, and a warning", lines)
	}
	if lines := log.Run(hopeless().Run); len(lines) != 0 {
		t.Errorf("and then %q, want it once", lines)
	}
}

func TestRenderingsAreAsTheGoldenFilesHaveThem(t *testing.T) {
	t.Parallel()
	narrow := display.Style{Width: 80, ASCII: true}
	for name, lines := range map[string][]string{
		"live":           display.Live(running(), narrow),
		"live-unicode":   display.Live(running(), display.Style{Width: 120}),
		"live-color":     display.Live(running(), display.Style{Width: 80, Color: true}),
		"live-starting":  display.Live(starting(), narrow),
		"live-hopeless":  display.Live(hopeless(), narrow),
		"summary":        display.Summary(ended(), narrow),
		"summary-missed": display.Summary(missed(), narrow),
		"summary-failed": display.Summary(failed(), narrow),
		"decisions":      display.Decisions(ended()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, name+".golden", []byte(strings.Join(lines, "\n")+"\n"))
		})
	}
}

func TestTheReportIsAsTheGoldenFileHasIt(t *testing.T) {
	t.Parallel()
	for name, model := range map[string]display.Model{"report": ended(), "report-running": starting()} {
		text, err := json.MarshalIndent(display.NewReport(model, []int{0}, []int{1}), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".golden", append(text, '\n'))
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; SPILLWAY_UPDATE=1 go test writes it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestLiveLinesFitTheTerminal(t *testing.T) {
	t.Parallel()
	large := running()
	large.Run.Stages[2].Failed, large.Run.Stages[2].Step = 3, 12
	large.Run.Stages[2].Cost = 313_700 // $0.0000003137
	large.Run.Stages[2].Memory = map[predictor.Venue]ledger.Memory{
		predictor.Pool: {Peak: 10_200 * quantity.MiB, Grant: 10_239 * quantity.MiB},
	}
	for _, width := range []int{40, 60, 80, 100, 200} {
		for _, model := range []display.Model{running(), ended(), failed(), starting(), large} {
			for _, line := range display.Live(model, display.Style{Width: width}) {
				if n := utf8.RuneCountInString(line); n >= width {
					t.Errorf("%d columns in a terminal of %d: %s", n, width, line)
				}
			}
		}
	}
}

func TestTablesFitANarrowTerminalAndLeaveOutSpareColumns(t *testing.T) {
	t.Parallel()
	page := slices.Concat(pages(display.Style{Width: 60})["why"], display.Summary(ended(), display.Style{Width: 60}))
	for _, line := range page {
		if n := utf8.RuneCountInString(line); n >= 60 && strings.Contains(line, "   ") {
			t.Errorf("%d columns of a table in a terminal of 60: %s", n, line)
		}
	}
	text := strings.Join(page, "\n")
	if !strings.Contains(text, "  stage         pool+fn      run  memory pool") ||
		!strings.Contains(text, "a wider terminal also shows longest, CPU, wait, functions") {
		t.Errorf("not the spare columns are left out:\n%s", text)
	}
}

// What a summary advises to ask for later needs a stack, and that of a command ends with it.
func TestARunWithAStackOfItsOwnSaysThatAnotherIsNeeded(t *testing.T) {
	t.Parallel()
	model := ended()
	const want = "first start one with `spillway dev`"
	if text := strings.Join(display.Summary(model, display.Style{Width: 100}), "\n"); strings.Contains(text, want) {
		t.Errorf("a stack that goes on: got\n%s", text)
	}
	model.Own = true
	if text := strings.Join(display.Summary(model, display.Style{Width: 100}), "\n"); !strings.Contains(text, want) {
		t.Errorf("got\n%s\nwant %q", text, want)
	}
}

func TestARunThatItsBudgetEndedSaysWithWhatToTryAgain(t *testing.T) {
	t.Parallel()
	run := ledger.RunView{
		Run: "mid-1", State: predictor.RunFailed, Goal: predictor.Goal{Budget: 30_000_000},
		Error:  "stage mid, task mid-0, attempt 2: the run's budget of $0.00003000 has no more" + wire.RaiseBudget,
		Totals: ledger.Totals{Cost: 51_830_000},
	}
	if got, want := display.CommandAdvice(run), "run it again with more money: --budget 0.00012"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	summary := strings.Join(display.Summary(display.Model{Run: run}, display.Style{Width: 100}), "\n")
	if want := "`spillway retry mid-1 --budget 0.00012` runs only what is left"; !strings.Contains(summary, want) ||
		strings.Contains(summary, "after a fix") {
		t.Errorf("the summary does not say %q:\n%s", want, summary)
	}
	run.Latest.Cost = predictor.Interval{Low: 0.1, Mid: 0.2, High: 0.3}
	if got, want := display.CommandAdvice(run), "run it again with more money: --budget 0.33"; got != want {
		t.Errorf("with a forecast: got %q, want %q", got, want)
	}
	run.Error = "stage mid, task mid-0, attempt 2: no such column"
	if got := display.CommandAdvice(run); got != "" {
		t.Errorf("another failure is told to be one of money: %q", got)
	}
}

func TestTheListOfRunsFitsTheTerminalAndSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	run := missed().Run
	run.Run = "digits-7qsebaqvem2e"
	for width, hidden := range map[int]string{
		60:  "a wider terminal also shows PREDICTED, POOL+FN, PIPELINE, STARTED, GOAL",
		100: "a wider terminal also shows PREDICTED, POOL+FN, PIPELINE, STARTED",
		200: "",
	} {
		lines := display.Runs([]ledger.RunView{run}, run.EndedAt, display.Style{Width: width})
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n >= width {
				t.Errorf("%d columns in a terminal of %d: %s", n, width, line)
			}
		}
		text := strings.Join(lines, " ")
		if !strings.Contains(text, "digits-7qsebaqvem2e") || !strings.HasSuffix(text, hidden) ||
			(hidden == "") != (len(lines) == 2) {
			t.Errorf("in %d columns it does not end with %q:\n%s", width, hidden, strings.Join(lines, "\n"))
		}
	}
	piped := display.Runs([]ledger.RunView{run}, run.EndedAt, display.Style{Width: 80, Whole: true})
	if len(piped) != 2 || !strings.HasSuffix(piped[0], "POOL+FN") {
		t.Errorf("a pipe is told less:\n%s", strings.Join(piped, "\n"))
	}
}

// The report of a run and the page tell what was predicted when it started, and so does the list.
func TestTheListOfRunsTellsWhatWasPredictedAtFirst(t *testing.T) {
	t.Parallel()
	run := missed().Run
	run.Predicted.FinishSeconds = predictor.Interval{Low: 30, Mid: 35.8, High: 40}
	run.Latest.FinishSeconds = predictor.Interval{Low: 40, Mid: 41.9, High: 44}
	lines := display.Runs([]ledger.RunView{run}, run.EndedAt, display.Style{Whole: true})
	if text := strings.Join(lines, "\n"); !strings.Contains(text, "35.8 s") || strings.Contains(text, "41.9 s") {
		t.Errorf("35.8 s was predicted at first:\n%s", text)
	}
}

func TestAccuracyIsFoundWhereAResultHasIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result string
		want   float64
		found  bool
	}{
		"at the top":                    {`{"accuracy":0.5}`, 0.5, true},
		"by another case":               {`{"Accuracy":0.5}`, 0.5, true},
		"deeper":                        {`{"test":[{"accuracy":0.7}]}`, 0.7, true},
		"the outermost wins":            {`{"a":{"accuracy":0.1},"accuracy":0.9}`, 0.9, true},
		"a word is no accuracy":         {`{"accuracy":"high"}`, 0, false},
		"a number alone is none":        {`0.5`, 0, false},
		"nothing has none":              {``, 0, false},
		"what was cut is not looked at": {`{"accuracy":0.`, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, found := display.Accuracy(json.RawMessage(test.result)); got != test.want || found != test.found {
				t.Errorf("Accuracy(%s) = %v, %v; want %v, %v", test.result, got, found, test.want, test.found)
			}
		})
	}
}

func TestTheListOfRunsSaysWhichLimitWasMissed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		goal  predictor.Goal
		state predictor.RunState
		after time.Duration // since the start
		want  string
	}{
		"kept": {
			predictor.Goal{Deadline: time.Minute, Budget: quantity.USD},
			predictor.RunSucceeded,
			time.Hour, "1m, $1.00",
		},
		"a missed deadline": {
			predictor.Goal{Deadline: 20 * time.Second},
			predictor.RunSucceeded, time.Hour,
			"20s missed by 3.4 s",
		},
		"a passed budget": {
			predictor.Goal{Budget: 200_000_000, Minimise: predictor.Latency},
			predictor.RunFailed,
			time.Hour, "$0.0002000 passed by $0.00001466, latency",
		},
		"a deadline that is past now": {
			predictor.Goal{Deadline: 20 * time.Second},
			predictor.RunRunning, 50 * time.Second,
			"20s missed by 30.0 s",
		},
		"one that is still to come": {
			predictor.Goal{Deadline: 20 * time.Second},
			predictor.RunRunning, 10 * time.Second,
			"20s",
		},
		"none": {predictor.Goal{}, predictor.RunSucceeded, time.Hour, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := ended().Run
			run.Goal, run.State = c.goal, c.state
			if c.state == predictor.RunRunning {
				run.EndedAt = time.Time{}
			}
			if got := display.GoalInShort(run, begin.Add(c.after)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestALogSaysEachThingOnce(t *testing.T) {
	t.Parallel()
	log := display.NewRunLog()
	var got []string
	first := running()
	first.Run.Stages = first.Run.Stages[:1]
	first.Run.Stages[0].Done, first.Run.Stages[0].Running = 0, 1
	for _, model := range []display.Model{first, first, running(), running(), ended(), ended()} {
		got = append(got, log.Run(model.Run)...)
	}
	got = append(got, log.Decision(running().Decisions[2]))
	golden(t, "log.golden", []byte(strings.Join(got, "\n")+"\n"))
}

func TestALogOfAllRunsTellsStartsAndEnds(t *testing.T) {
	t.Parallel()
	log := display.NewLog(begin)
	lines := append(log.Run(running().Run), log.Run(ended().Run)...)
	lines = append(lines, log.Run(ended().Run)...)
	if old := display.NewLog(begin.Add(time.Hour)).Run(ended().Run); old != nil {
		t.Errorf("a run that ended before: got %q", old)
	}
	if len(lines) != 2 || !strings.Contains(lines[0],
		"digits-7f3a9c of digits started, deadline 1m, budget $0.5000, minimise cost") ||
		!strings.Contains(lines[1], "digits-7f3a9c succeeded in 23.4 s for $0.0002147 (pool 203, function 119)") {
		t.Errorf("got %q", lines)
	}
}

// TestALogOfAllRunsKnowsTheLatestOnly tells of more runs than a log knows, one of them from the first to the last.
func TestALogOfAllRunsKnowsTheLatestOnly(t *testing.T) {
	t.Parallel()
	log := display.NewLog(begin)
	goesOn, over := running().Run, ended().Run
	told := len(log.Run(goesOn))
	for i := range 5000 {
		over.Run, over.EndedAt = fmt.Sprint("r", i), begin.Add(time.Duration(i+1)*time.Second)
		for range 2 { // as when the page's stream is read again
			told += len(log.Run(over))
		}
	}
	if want := 1 + 5000*2; told != want { // a start and an end of each
		t.Errorf("%d lines were told, want %d", told, want)
	}
	if known := display.Known(log); known > 1100 {
		t.Errorf("the log knows %d runs, want those of the latest 1,000 and what goes on", known)
	}
	over.Run, over.EndedAt = "r0", begin.Add(time.Second)
	if again := log.Run(over); again != nil {
		t.Errorf("a run that was forgotten is told again: %q", again)
	}
	goesOn.State, goesOn.EndedAt = over.State, begin.Add(2*time.Second) // by a clock that is behind
	if end := log.Run(goesOn); len(end) != 1 {
		t.Errorf("the end of a run that went on is told so: %q", end)
	}
}

func TestAnAlertOfTheEngineNamesNoRun(t *testing.T) {
	t.Parallel()
	line := strings.Join(display.NewLog(begin).Alert(alerting.LedgerFailing(errors.New("no space"), begin)), "\n")
	if !strings.Contains(line, "  alert: the ledger of costs could not be kept: no space") {
		t.Errorf("got %q", line)
	}
}

func TestAScreenRedrawsInPlaceAndFitsTheTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	screen := display.NewScreen(&out)
	for _, lines := range [][]string{{"a", "b"}, {"c"}} {
		if err := screen.Draw(lines, 24); err != nil {
			t.Fatal(err)
		}
	}
	if err := screen.Clear(); err != nil {
		t.Fatal(err)
	}
	want := "a\x1b[K\nb\x1b[K\n\x1b[J" + "\x1b[2A\rc\x1b[K\n\x1b[J" + "\x1b[1A\r\x1b[J"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out.Reset()
	var many []string
	for i := range 100 {
		many = append(many, strconv.Itoa(i))
	}
	if err := display.NewScreen(&out).Draw(many, 10); err != nil {
		t.Fatal(err)
	}
	if drawn := strings.Count(out.String(), "\n"); drawn != 9 {
		t.Errorf("%d lines were drawn on 10 rows, want 9", drawn)
	}
}

func TestABillSaysOfWhichTimeItIsNotComplete(t *testing.T) {
	t.Parallel()
	of := bill()
	of.Incomplete = []ledger.Gap{{Until: of.Since}, {Since: of.Since, Until: of.Until}}
	text := strings.Join(display.Bill(of, true, display.Style{}), "\n")
	for _, want := range []string{"\nnot complete before ", "\nnot complete from "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
}
