package slot

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// BenchmarkJournal writes an attempt down, marks it and takes it off again.
func BenchmarkJournal(b *testing.B) {
	j, err := OpenJournal(b.TempDir(), predictor.Pool, "h", "instance", slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	a := &Attempt{
		Task: wire.Task{Version: wire.Version, Run: "run", ID: "score-17", Pipeline: "digits"}, Number: 1,
		ScheduledAt: time.Now(),
	}
	token := bytes.Repeat([]byte("t"), 200)
	for b.Loop() {
		entry := j.take(a, token)
		j.recorded(entry)
		j.leave(entry)
		j.ended[0].due = time.Time{}
	}
	if err := j.Close(true); err != nil {
		b.Error(err)
	}
}
