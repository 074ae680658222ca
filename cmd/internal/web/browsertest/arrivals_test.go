package browsertest

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

func TestWhatComesAtAStageIsDrawnBesideWhatWasPredicted(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	e.OnOutlook = outlookOf
	const run = "digits-arriving"
	begin := now.Add(-4 * time.Hour).Truncate(time.Minute)
	e.Apply(run, predictor.RunStarted{Run: run, Pipeline: "digits", App: app, Build: build, At: begin})
	for i := range 240 {
		tasks := int(20 + 12*math.Sin(float64(i)/6) + float64(i*7%5))
		e.Apply(run, predictor.Scheduled{
			Run: run, Stage: stage("score"), Tasks: tasks, At: begin.Add(time.Duration(i) * time.Minute),
		})
		if i > 215 {
			e.Apply(run, predictor.Scheduled{
				Run: run, Stage: stage("features"), Tasks: 1 + i%2, At: begin.Add(time.Duration(i) * time.Minute),
			})
		}
	}
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/runs/" + run)
	b.Until(`document.querySelectorAll('.arrivals svg').length === 2`)
	told := evaluate[string](b, `document.querySelectorAll('.arrivals')[0].textContent`)
	if !strings.Contains(told, "score") || !strings.Contains(told, "minutes as predicted; until ") ||
		strings.Contains(told, "NaN") {
		t.Errorf("the picture says %q", told)
	}
	told = evaluate[string](b, `document.querySelectorAll('.arrivals')[1].textContent`)
	if !strings.Contains(told, "By so little nothing is decided: 30 minutes have to be known") {
		t.Errorf("of a stage that is hardly known, the picture says %q", told)
	}
	const bars = `document.querySelectorAll('.arrivals')[0].querySelectorAll('rect.pool').length`
	if got := evaluate[int](b, bars); got != 61 {
		t.Errorf("%d minutes are drawn, want an hour and the one that goes on", got)
	}
	evaluate[bool](b, `(document.querySelector('.arrivals').scrollIntoView(), true)`)
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(width, scheme)
			b.readable(fmt.Sprintf("run-arriving-%d-%s", width, scheme))
		}
	}
	b.heardNothingBad(listener.Addr().String())
}
