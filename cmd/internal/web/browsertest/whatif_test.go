package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// alone adds a run that has ended, whose 60 tasks of two seconds ran one after the other on a host of eight cores.
func (e engine) alone(now time.Time) (run string) {
	run = "digits-alone"
	size := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
	whole := quantity.Size{CPU: 8 * quantity.Core, Memory: 32 * quantity.GiB}
	e.SetHosts(predictor.Host{ID: "rack", Capacity: whole, Free: whole, PricePerHour: quantity.USD / 3})
	begin := now.Add(-time.Hour)
	e.Apply(run, predictor.RunStarted{Run: run, Pipeline: "digits", App: app, Build: build, At: begin})
	e.Apply(run, predictor.Scheduled{Run: run, Stage: stage("score"), Tasks: 60, At: begin})
	for i := range 60 {
		at := begin.Add(time.Duration(2*i) * time.Second)
		task := fmt.Sprint("score-", i)
		e.Apply(run, predictor.AttemptStarted{
			Run: run, Stage: stage("score"), Task: task, Attempt: 1, Venue: predictor.Pool, Host: "rack", At: at, Grant: size,
		})
		e.Apply(run, predictor.Record{
			Run: run, Pipeline: "digits", Stage: stage("score"), Task: task, Attempt: 1, Venue: predictor.Pool, Host: "rack",
			Outcome: predictor.Succeeded, ScheduledAt: at, At: at.Add(2 * time.Second), Grant: size, Cost: quantity.USD / 10_000,
			Usage: quantity.Usage{CPU: 2 * time.Second, Wall: 2 * time.Second, PeakMemory: 100 * quantity.MiB},
		})
	}
	e.Apply(run, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: begin.Add(2 * time.Minute)})
	return run
}

func TestThePageOfARunDrawsWhatItCouldHaveComeTo(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	run := e.alone(now)
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/runs/" + run)
	const section = `[...document.querySelectorAll('section')].find((s) => ` +
		`s.querySelector('h2')?.textContent.startsWith('What if'))`
	b.Until(section + ` !== undefined`)
	b.Until(section + `.querySelectorAll('circle.alternative, g.present rect').length > 1`)
	said := evaluate[string](b, section+`.textContent`)
	for _, want := range []string{"wice as fast (", "alf the money ("} {
		if !strings.Contains(said, want) {
			t.Errorf("the page says %q, without %q", said, want)
		}
	}
	evaluate[bool](b, `(`+section+`.scrollIntoView(), true)`)
	for _, width := range []int64{1280, 390} {
		b.look(width, "light")
		b.readable(fmt.Sprintf("run-whatif-%d", width))
	}
	b.heardNothingBad(listener.Addr().String())
}
