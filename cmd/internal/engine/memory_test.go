package engine_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

// followRecords collects the Records of an engine until the test ends; the function returns those that match so far.
func (e *testEngine) followRecords() func(match func(predictor.Record) bool) []predictor.Record {
	e.t.Helper()
	connection := e.dialNATS()
	stream, err := jetstream.New(connection)
	if err != nil {
		e.t.Fatal(err)
	}
	var mu sync.Mutex
	var all []predictor.Record
	ctx, stop := context.WithCancel(context.WithoutCancel(e.t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- loop.Follow(ctx, stream, 0, nil, func(line loop.Line) error {
			if record, ok := line.Message.Event.(predictor.Record); ok {
				mu.Lock()
				all = append(all, record)
				mu.Unlock()
			}
			return nil
		})
	}()
	e.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			e.t.Errorf("follow the Records: %v", err)
		}
		connection.Close()
	})
	return func(match func(predictor.Record) bool) []predictor.Record {
		mu.Lock()
		defer mu.Unlock()
		var found []predictor.Record
		for _, record := range all {
			if match(record) {
				found = append(found, record)
			}
		}
		return found
	}
}

// TestRunningOutOfMemoryIsHealed maps over tasks whose memory depends on their input in a pool too small to give each
// plenty, with no declared size and some failures that have nothing to do with memory. What is killed for memory must
// succeed with more, what fails otherwise must not grow, and what is learned must be close to what is needed.
func TestRunningOutOfMemoryIsHealed(t *testing.T) {
	enforcetest.Need(t)
	// A short run is mostly its beginning, when little is known and head-room is large; which tasks come first is chance.
	// In it a limit that was too high for a moment is held to the end, so it is judged by what is expected of attempts, a
	// half of which would be spare if all were given the same. The long run measures how close the limits are once they
	// have settled, in its second half: they are lowered when less has been enough for two minutes, and 200 tasks take
	// one.
	tasks, mostSpare, measured := 60, 0.50, os.Getenv("SPILLWAY_MEASURE") != ""
	if measured {
		tasks, mostSpare = 1000, 0.25
	}
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst", "--pool-memory", "500MiB")
	records := e.followRecords()
	// 20 MiB and 40 bytes for each of up to 10 million rows: up to 420 MiB, where the first attempts begin with about 40.
	run := e.publish("feast", "feast", map[string]any{"tasks": tasks, "seed": 11, "most_rows": 10_000_000})
	result := succeed[struct{ Done int }](e, run, 15*time.Minute)
	if result.Done != tasks {
		t.Errorf("%d tasks are done, want %d", result.Done, tasks)
	}
	tries := map[string][]predictor.Record{}
	deadline := time.Now().Add(patience)
	for len(tries) < tasks && time.Now().Before(deadline) {
		clear(tries)
		for _, record := range records(func(r predictor.Record) bool { return r.Run == run }) {
			tries[record.Task] = append(tries[record.Task], record)
		}
	}
	killed, healed, worst, grown := 0, 0, 0, 0
	var ends []time.Time
	for _, attempts := range tries {
		ends = append(ends, attempts[len(attempts)-1].At)
	}
	if len(ends) == 0 {
		t.Fatal("no attempt is known")
	}
	slices.SortFunc(ends, time.Time.Compare)
	half := ends[len(ends)/2]
	var spare []float64
	for task, attempts := range tries {
		slices.SortFunc(attempts, func(a, b predictor.Record) int { return a.Attempt - b.Attempt })
		kills := 0
		for i, attempt := range attempts {
			if attempt.Outcome == predictor.OutOfMemory {
				kills++
			}
			if i == 0 {
				continue
			}
			before := attempts[i-1]
			if before.Outcome == predictor.OutOfMemory {
				if kills == 1 || kills == 2 && attempt.Outcome == predictor.OutOfMemory {
					killed++
					if attempt.Outcome == predictor.Succeeded {
						healed++
					} else {
						t.Logf("%s: killed at %s, then %s at %s (%s)", task, before.Grant.Memory, attempt.Outcome, attempt.Grant.Memory,
							attempt.Error)
					}
				}
				// What passed a limit as well tells how much that takes; else it is twice as much.
				if attempt.Grant.Memory <= before.Grant.Memory && attempt.Grant.Memory < 500*quantity.MiB {
					t.Errorf("%s: after a kill at %s it has %s, want more", task, before.Grant.Memory,
						attempt.Grant.Memory)
				}
			}
			// What was learned meanwhile may be more or less; a failure of another kind must raise nothing by itself.
			if before.Outcome == predictor.Failed && kills == 0 && strings.Contains(attempt.Predicted.Source, "out of memory") {
				grown++
			}
		}
		worst = max(worst, kills)
		last := attempts[len(attempts)-1]
		if last.Outcome == predictor.Succeeded && !last.Predicted.Guess &&
			strings.Contains(last.Predicted.Source, "attempts") && (!measured || last.At.After(half)) {
			given := last.Predicted.Memory.High
			if measured {
				given = float64(last.Grant.Memory)
			}
			spare = append(spare, 1-float64(last.Usage.PeakMemory)/given)
		}
	}
	slices.Sort(spare)
	if len(spare) == 0 {
		t.Fatal("no attempt was sized by what was learned")
	}
	settled := spare[len(spare)/2]
	mean := 0.0
	for _, s := range spare {
		mean += s / float64(len(spare))
	}
	t.Logf("%d tasks, %d killed for memory, %d healed by the next attempt, at most %d kills of one task; of %d learned "+
		"sizes %.1f%% is spare on average, %.1f%% at the median",
		tasks, killed, healed, worst, len(spare), 100*mean, 100*settled)
	if killed > 0 && float64(healed) < 0.95*float64(killed) {
		t.Errorf("%d of %d second attempts succeeded, want 95%%", healed, killed)
	}
	if worst > 2 {
		t.Errorf("a task was killed %d times, want at most twice", worst)
	}
	if grown > 0 {
		t.Errorf("%d failures that had nothing to do with memory made the next attempt larger", grown)
	}
	if mean > mostSpare {
		t.Errorf("%.1f%% of the learned sizes is spare, want at most %.0f%%", 100*mean, 100*mostSpare)
	}
}
