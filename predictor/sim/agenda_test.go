package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
)

// pool has so many cores.
func pool(cores int) *sim.Agenda {
	room := quantity.Size{CPU: quantity.Milli(cores) * quantity.Core, Memory: quantity.Bytes(cores) * 4 * quantity.GiB}
	return sim.NewAgenda(sim.Options{
		Start: epoch, Hosts: []predictor.Host{{ID: "host", Capacity: room, Free: room}},
	})
}

// taking are n tasks of a run that take so long on a core each.
func taking(run string, n int, took time.Duration, ended func(task int) error) []sim.Task {
	tasks := make([]sim.Task, n)
	for i := range tasks {
		tasks[i] = sim.Task{
			Run: run, Pipeline: "p", Stage: stage, Name: fmt.Sprintf("score-%d", i),
			Declared: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB},
			Usage:    quantity.Usage{CPU: took, Wall: took, PeakMemory: quantity.GiB / 2},
			Ended:    func(predictor.Record) error { return ended(i) },
		}
	}
	return tasks
}

// Ten tasks of a minute on four cores: four, four and two, on the slots that are decided.
func TestTasksStartOnTheSlotsOfThePlan(t *testing.T) {
	t.Parallel()
	agenda := pool(4)
	var ends []time.Duration
	agenda.At(epoch, func(ctx context.Context) error {
		if err := agenda.Tell(ctx, predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", At: epoch}); err != nil {
			return err
		}
		return agenda.Arrive(ctx, taking("r", 10, time.Minute, func(int) error {
			ends = append(ends, agenda.Now().Sub(epoch).Round(time.Second))
			return nil
		})...)
	})
	if err := agenda.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, end := range ends {
		if want := time.Duration(i/4+1) * time.Minute; end != want {
			t.Errorf("task %d ends after %s, want %s: all ends %v", i, end, want, ends)
		}
	}
	if len(ends) != 10 {
		t.Errorf("%d tasks ended, want 10", len(ends))
	}
}

// What a task's end brings about happens at that time, so that stages follow each other.
func TestWhatFollowsATaskBeginsWhenItEnds(t *testing.T) {
	t.Parallel()
	agenda := pool(1)
	var second time.Time
	agenda.At(epoch, func(ctx context.Context) error {
		return agenda.Arrive(ctx, taking("one", 1, time.Minute, func(int) error {
			agenda.At(agenda.Now(), func(ctx context.Context) error {
				return agenda.Arrive(ctx, taking("two", 1, time.Second, func(int) error {
					second = agenda.Now()
					return nil
				})...)
			})
			return nil
		})...)
	})
	if err := agenda.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := epoch.Add(61 * time.Second); !second.Equal(want) {
		t.Errorf("the second ends at %s, want %s", second, want)
	}
}

func TestAnAgendaEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	agenda := pool(1)
	agenda.At(epoch, func(context.Context) error {
		cancel()
		return nil
	})
	agenda.At(epoch.Add(time.Hour), func(context.Context) error { return errors.New("it goes on") })
	if err := agenda.Run(ctx); !errors.Is(err, context.Canceled) || agenda.Now().After(epoch.Add(time.Minute)) {
		t.Errorf("got %v at %s, want that it is cancelled at once", err, agenda.Now())
	}
}

// Ten tasks of a minute on one core are late; functions start cold, take as much longer as their tasks say, and cost.
func TestTasksStartAtFunctionsToo(t *testing.T) {
	t.Parallel()
	room := quantity.Size{CPU: quantity.Core, Memory: 4 * quantity.GiB}
	agenda := sim.NewAgenda(sim.Options{
		Start: epoch, Hosts: []predictor.Host{{ID: "host", Capacity: room, Free: room}}, Tick: time.Second,
		Functions: predictor.FunctionVenue{
			Enabled: true, Concurrency: 100, MaxMemory: 4 * quantity.GiB, MaxDuration: time.Hour,
			Classes: []quantity.Bytes{1769 * quantity.MiB}, PerGiBSecond: 16_666_700, ColdStart: 2 * time.Second,
		},
	})
	var records []predictor.Record
	agenda.At(epoch, func(ctx context.Context) error {
		goal := predictor.Goal{Deadline: 4 * time.Minute}
		start := predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Goal: goal, At: epoch}
		if err := agenda.Tell(ctx, start); err != nil {
			return err
		}
		tasks := taking("r", 10, time.Minute, nil)
		for i := range tasks {
			tasks[i].Slower = 1.5
			tasks[i].Ended = func(record predictor.Record) error {
				records = append(records, record)
				return nil
			}
		}
		return agenda.Arrive(ctx, tasks...)
	})
	if err := agenda.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	cold := 0
	for _, r := range records {
		if r.Venue != predictor.Function {
			continue
		}
		if r.Cold {
			cold++
		}
		if r.Cold != (r.Start == 2*time.Second) || r.Usage.Wall != 90*time.Second || r.Cost <= 0 {
			t.Errorf("%s at a function: cold %v, start %s, %s for %s", r.Task, r.Cold, r.Start, r.Usage.Wall, r.Cost)
		}
	}
	if took := agenda.Now().Sub(epoch); len(records) != 10 || cold == 0 || took > 4*time.Minute {
		t.Errorf("%d tasks ended after %s, %d of them on cold functions", len(records), took, cold)
	}
}

// A second backlog finds the environments of the first where it comes while they are kept, and none afterwards.
func TestEnvironmentsStayWarmForAsLongAsTheyAreKept(t *testing.T) {
	t.Parallel()
	for keep, wantCold := range map[time.Duration]bool{0: false, time.Hour: false, 5 * time.Minute: true} {
		room := quantity.Size{CPU: quantity.Core, Memory: 4 * quantity.GiB}
		agenda := sim.NewAgenda(sim.Options{
			Start: epoch, Hosts: []predictor.Host{{ID: "host", Capacity: room, Free: room}}, Tick: time.Second, KeepWarm: keep,
			Functions: predictor.FunctionVenue{
				Enabled: true, Concurrency: 100, MaxMemory: 4 * quantity.GiB, MaxDuration: time.Hour,
				Classes: []quantity.Bytes{1769 * quantity.MiB}, PerGiBSecond: 16_666_700, ColdStart: 2 * time.Second,
			},
		})
		spilled, cold := map[string]int{}, map[string]int{}
		for run, at := range map[string]time.Time{"first": epoch, "second": epoch.Add(20 * time.Minute)} {
			agenda.At(at, func(ctx context.Context) error {
				goal := predictor.Goal{Deadline: 4 * time.Minute}
				start := predictor.RunStarted{Run: run, Pipeline: "p", App: "app", Goal: goal, At: at}
				if err := agenda.Tell(ctx, start); err != nil {
					return err
				}
				tasks := taking(run, 10, time.Minute, nil)
				for i := range tasks {
					tasks[i].Ended = func(record predictor.Record) error {
						if record.Venue == predictor.Function {
							spilled[run]++
						}
						if record.Cold {
							cold[run]++
						}
						return nil
					}
				}
				return agenda.Arrive(ctx, tasks...)
			})
		}
		if err := agenda.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		few := spilled["second"] > spilled["first"] // those of the first are not enough
		if spilled["second"] == 0 || few || cold["second"] > 0 != wantCold {
			t.Errorf("kept for %s: spilled %v, of those cold %v", keep, spilled, cold)
		}
	}
}
