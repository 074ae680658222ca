package browsertest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

const tunedRun = "digits-tuned"

// tuning is how a search of 27 trials stands after so many of its jobs, one at a time; the fifth trial diverges and the
// seventh fails.
func tuning(t *testing.T, begin time.Time, jobs int) runs.Tuning {
	t.Helper()
	var space search.Space
	for _, text := range []string{
		"lr=log:1e-4..1e-1", "layers=2..8", "optimizer=adam|sgd", "momentum=0.5..0.99 if optimizer=sgd",
	} {
		p, err := search.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		space = append(space, p)
	}
	options := search.Options{Trials: 27, Most: 27, Seed: 5}.WithDefaults()
	s, err := search.New(space, options)
	if err != nil {
		t.Fatal(err)
	}
	noise := rand.New(rand.NewPCG(1, 2))
	of := runs.Tuning{
		Stage: "train", Name: "train", Space: space, Options: options, Objective: "loss", StartedAt: begin,
		Counts: map[runs.TrialState]int{},
	}
	at := begin
	for n := range jobs {
		job, found := s.Next()
		if !found {
			of.Ended, of.EndedAt = runs.EndedDone, at
			break
		}
		if job.Trial == len(of.Trials) {
			of.Trials = append(of.Trials, runs.Trial{Number: job.Trial, Configuration: job.Configuration})
		}
		trial := &of.Trials[job.Trial]
		told := runs.TrialJob{
			Rung: job.Rung, From: job.From, To: job.To, Task: fmt.Sprintf("train-%d", n), StartedAt: at,
			Spent: quantity.Money(20_000_000 * (job.To - job.From)),
		}
		at = at.Add(time.Duration(job.To-job.From) * time.Second)
		told.EndedAt = at
		loss := math.Pow(math.Log10(job.Configuration["lr"].Number)+2, 2)/3 + 1/(1+job.To) + noise.Float64()/20
		switch job.Trial {
		case 5:
			loss, trial.State, trial.Why = math.NaN(), runs.TrialDiverged, "its loss is no finite number"
		case 7:
			loss, trial.State, trial.Why = math.NaN(), runs.TrialFailed, "exit code 1: ValueError: <b>layers</b>"
		default:
			told.Objective = &loss
			trial.State, trial.Why = runs.TrialStopped, fmt.Sprintf("rung %d: 7th of 9, 3 went on", job.Rung)
			if job.To == options.Most {
				trial.State, trial.Why = runs.TrialFinished, ""
			}
		}
		trial.Jobs = append(trial.Jobs, told)
		of.Spent += told.Spent
		if err := s.Report(job.Trial, loss); err != nil {
			t.Fatal(err)
		}
	}
	if best, _, found := s.Best(); found {
		of.Best = &best
	}
	of.Begun = len(of.Trials)
	for _, trial := range of.Trials {
		of.Counts[trial.State]++
	}
	return of
}

func TestATuningIsShownWithItsTrials(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	begin := now.Add(-2 * time.Minute)
	e := newEngine(t, now)
	e.OnOutlook = outlookOf
	e.Apply(tunedRun, predictor.RunStarted{Run: tunedRun, Pipeline: "digits", App: app, Build: build, At: begin},
		predictor.Scheduled{Run: tunedRun, Stage: stage("train"), Tasks: 27, At: begin})
	e.SetTunings(tunedRun, tuning(t, begin, 12))
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/runs/" + tunedRun)
	shows := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			b.Until(fmt.Sprintf("document.querySelector('.tuning')?.textContent.includes(%q)", text))
		}
	}
	shows("going on", "Best loss", "asha, loss minimised", "4 parameters", "its loss is no finite number")
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`)

	// What comes shows without a reload.
	whole := tuning(t, begin, math.MaxInt)
	e.SetTunings(tunedRun, whole)
	shows("27/27", "done", "exit code 1: ValueError: <b>layers</b>", "7th of 9, 3 went on",
		fmt.Sprintf("trial %d, which has had 27 of 27", *whole.Best), "1 diverged", "1 failed")
	lines := len(whole.Trials)
	told := lines - 2
	b.Until(fmt.Sprintf(`(() => {
	  const [curves, parallel] = document.querySelectorAll('.tuning svg');
	  return curves.querySelectorAll('.trial path').length === %d &&
	    parallel.querySelectorAll('.trial path').length === %d })()`,
		told, lines))
	label := func(i int) string {
		return fmt.Sprintf(`document.querySelectorAll('.tuning svg')[%d].getAttribute('aria-label')`, i)
	}
	for expression, want := range map[string]string{
		label(0): fmt.Sprintf("loss of %d trials by what they had", told),
		label(1): "over lr, layers, optimizer, momentum and loss",
		`document.querySelector('.tuning .trials tbody tr th').textContent`:   strconv.Itoa(*whole.Best),
		`document.querySelectorAll('.tuning .trial.shade-none').length + ' '`: "3", // two lines, and one in the legend
		`document.querySelectorAll('.tuning table')[0].textContent`:           "Cost beside the others",
	} {
		b.Until(fmt.Sprintf(`(%s ?? '').includes(%q)`, expression, want))
	}
	if n := evaluate[int](b, `document.querySelectorAll('.tuning b').length`); n != 0 {
		t.Error("what a program printed is markup")
	}

	// A trial that is chosen stands out in both pictures and in the table.
	evaluate[bool](b, fmt.Sprintf(`(() => {
	  const select = document.querySelector('.tuning .chooser select');
	  select.value = '%d';
	  select.dispatchEvent(new Event('change', { bubbles: true }));
	  return true })()`, *whole.Best))
	b.Until(`document.querySelectorAll('.tuning .trial.picked').length === 2 && ` +
		`document.querySelectorAll('.tuning tr.picked').length === 1`)
	for _, width := range []int64{1440, 1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(width, scheme)
			b.readable(fmt.Sprintf("run-tuned-%d-%s", width, scheme))
		}
	}
	b.heardNothingBad(listener.Addr().String())
}
