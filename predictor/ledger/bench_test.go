package ledger_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// story are the events of a run of n attempts on a host, 64 at a time, each of ten seconds.
func story(id string, n int) []predictor.Event {
	events := []predictor.Event{run(id)}
	for i := range n {
		from := float64(i/64) * 10
		if i%64 == 0 {
			events = append(events, held("h", from, from+10, 100*cent))
		}
		task := fmt.Sprint("task-", i)
		events = append(
			events,
			predictor.Scheduled{Run: id, Stage: score, Tasks: 1, At: after(from)},
			predictor.AttemptStarted{
				Run: id, Stage: score, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "h",
				Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB}, At: after(from + 1),
			},
			line(id, "score", task, predictor.Pool, "h", from, from+10, cent/10),
		)
	}
	return append(events, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(float64(n/64+1) * 10)})
}

func BenchmarkRunOf10000Attempts(b *testing.B) {
	const n = 10_000
	events := story("r", n)
	l := apply(events...)
	now := after(3600)
	if view, _ := l.Run("r"); view.Totals.Cost != n*cent/10 {
		b.Fatalf("the attempts cost %s", view.Totals.Cost)
	}
	detail, _ := l.Detail("r")
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"Apply", func() { apply(events...) }},
		{"Timeline", func() { detail.Timeline(now, 2000) }},
		{"Breakdown", func() { detail.Breakdown(now) }},
		{"Allocation", func() { detail.Allocation(now, 300) }},
		{"Attempts", func() { detail.Attempts(ledger.AttemptQuery{Limit: 1000}) }},
		{"Detail", func() { l.Detail("r") }},
		{"Run", func() { l.Run("r") }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.do()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/attempt")
		})
	}
}

func TestMemoryOfAThousandRunsIsMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	before := heap()
	l := ledger.New()
	const runs, tasks = 1000, 250
	for i := range runs {
		for _, event := range story(fmt.Sprint("r", i), tasks) {
			l.Apply(event)
		}
	}
	full := heap() - before
	t.Logf("%d runs of %d attempts: %d MiB, %d bytes for an attempt", runs, tasks, full>>20, full/(runs*tasks))
	runtime.KeepAlive(l)
}
