package logs_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestMeasureThroughputAndDelay prints how fast lines are taken, made durable and read again, and how long a line takes
// to its reader.
func TestMeasureThroughputAndDelay(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("SPILLWAY_MEASURE is not 1")
	}
	js := stream(t)
	w := logs.NewWriter(js, logs.WriterOptions{
		Rate: quantity.GiB, Burst: quantity.GiB, PerAttempt: quantity.GiB,
		Memory: quantity.GiB,
	})
	const lines, width = 300_000, 100
	text := []byte(strings.Repeat("x", width-1) + "\n")
	flood := attempt(t, w, source("train", "train-1", 1))
	began := time.Now()
	for range lines {
		_, _ = flood.Stdout().Write(text)
	}
	taken := time.Since(began)
	closeLines(t, flood)
	stored := time.Since(began)
	if w.Dropped() != 0 {
		t.Errorf("%d lines were dropped", w.Dropped())
	}
	began = time.Now()
	if got := len(read(t, js, logs.Query{})); got != lines {
		t.Errorf("%d lines were read, want %d", got, lines)
	}
	t.Logf("%d lines of %d bytes: taken in %s (%d ns a line), durable after %s, read in %s", lines, width,
		taken, taken.Nanoseconds()/lines, stored, time.Since(began))

	live, end := follow(t, js, logs.Query{Stage: "score"})
	one := attempt(t, logs.NewWriter(js, logs.WriterOptions{}), source("score", "score-1", 1))
	var delays []time.Duration
	for range 20 {
		printed := time.Now()
		say(one, "now\n")
		natstest.Receive(t, live, "line")
		delays = append(delays, time.Since(printed))
	}
	slices.Sort(delays)
	t.Logf("from printing to its reader, with nothing else going on: median %s, most %s", delays[len(delays)/2],
		delays[len(delays)-1])
	if err := end(); err != nil {
		t.Error(err)
	}
}
