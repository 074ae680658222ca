package browsertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// sized adds attempt number i of digits-sized, whose peaks and times follow its rows.
func (e engine) sized(now time.Time, i int) {
	rows := float64(1 + i*7%40)
	peak, wall := (100+10*rows)*float64(quantity.MiB), 2*rows
	record := predictor.Record{
		Run: "digits-sized", Stage: stage("score"), Task: fmt.Sprint("t", i), Attempt: 1, Venue: predictor.Pool,
		Outcome: predictor.Succeeded, At: now.Add(time.Duration(i-60) * time.Second),
		Grant:    quantity.Size{CPU: 1000, Memory: quantity.Bytes(1.2 * peak)},
		Features: map[string]float64{"rows": rows},
		Usage: quantity.Usage{
			PeakMemory: quantity.Bytes(peak * (1 + 0.05*float64(i%5-2))), Wall: time.Duration(wall * float64(time.Second)),
		},
		Predicted: predictor.Prediction{
			Memory: predictor.Interval{Low: 0.93 * peak, Mid: peak, High: 1.07 * peak},
			Wall:   predictor.Interval{Low: 0.8 * wall, Mid: wall, High: 1.3 * wall},
		},
	}
	switch {
	case i%11 == 3:
		record.Outcome, record.Cause, record.Grant.Memory = predictor.OutOfMemory, predictor.CauseMemoryLimit,
			quantity.Bytes(0.9*peak)
	case i%4 == 1:
		record.Venue = predictor.Function
	}
	e.Apply("digits-sized", record)
}

func TestWhatWasPredictedIsDrawnBesideWhatCame(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	e.OnOutlook = outlookOf
	begin := now.Add(-2 * time.Minute)
	e.Apply("digits-sized",
		predictor.RunStarted{Run: "digits-sized", Pipeline: "digits", App: app, Build: build, At: begin})
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/runs/digits-sized")
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`)
	if evaluate[bool](b, `document.querySelector('img.predicted') !== null`) {
		t.Error("a run without attempts has a picture of them")
	}
	for i := range 40 {
		e.sized(now, i)
	}
	b.Until(`document.querySelector('img.predicted') !== null`)
	evaluate[bool](b, `(document.querySelector('img.predicted').scrollIntoView(), true)`)
	const drawn = `(() => { const i = document.querySelector('img.predicted');
		return i.complete && i.naturalWidth > 0 })()`
	b.Until(drawn)
	first := evaluate[string](b, `document.querySelector('img.predicted').src`)
	for i := range 20 {
		e.sized(now, 40+i)
	}
	b.Until(fmt.Sprintf(`document.querySelector('img.predicted').src !== %q`, first)) // more attempts are another picture
	b.Until(drawn)
	for _, width := range []int64{1280, 700, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(width, scheme)
			b.Until(`(() => { const i = document.querySelector('img.predicted');
				const room = i.parentElement.parentElement.clientWidth;
				return i.complete && i.naturalWidth > 0 && Math.abs(i.naturalWidth - room) < 20 })()`)
			b.readable(fmt.Sprintf("run-sized-%d-%s", width, scheme))
		}
	}
	b.heardNothingBad(listener.Addr().String())
}
