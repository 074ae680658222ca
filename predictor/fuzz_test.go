package predictor_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// reader takes numbers off fuzzed bytes; past their end it reads zeros.
type reader struct{ data []byte }

func (r *reader) int64() int64 {
	var word [8]byte
	r.data = r.data[copy(word[:], r.data):]
	return int64(binary.LittleEndian.Uint64(word[:]))
}

func (r *reader) float() float64 { return math.Float64frombits(uint64(r.int64())) }

func (r *reader) small(n int64) int64 { return ((r.int64() % n) + n) % n }

func (r *reader) time() time.Time { return time.Unix(r.int64(), r.int64()) }

func (r *reader) size() quantity.Size {
	return quantity.Size{CPU: quantity.Milli(r.int64()), Memory: quantity.Bytes(r.int64()), GPU: quantity.Milli(r.int64())}
}

func (r *reader) interval() predictor.Interval {
	return predictor.Interval{Low: r.float(), Mid: r.float(), High: r.float()}
}

func (r *reader) event() predictor.Event {
	run, stage := fmt.Sprint("r", r.small(3)), predictor.StageID{App: "app", Build: "b", Name: fmt.Sprint("s", r.small(3))}
	task, attempt := fmt.Sprint("t", r.small(10)), int(r.small(4))
	venue := []predictor.Venue{predictor.Pool, predictor.Function, "", "moon"}[r.small(4)]
	switch r.small(9) {
	case 8:
		return predictor.HostStarted{Host: "h", Venue: venue, Instance: strconv.FormatInt(r.small(3), 10), At: r.time()}
	case 0:
		goal := predictor.Goal{
			Deadline: time.Duration(r.int64()), Budget: quantity.Money(r.int64()),
			Minimise: predictor.Cost,
		}
		return predictor.RunStarted{Run: run, Goal: goal, At: r.time()}
	case 1:
		return predictor.GoalChanged{Run: run, Goal: predictor.Goal{Deadline: time.Duration(r.int64())}, At: r.time()}
	case 2:
		return predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: r.time()}
	case 3:
		return predictor.Scheduled{
			Run: run, Stage: stage, Tasks: int(r.int64()), PoolOnly: r.small(2) == 0, Input: quantity.Bytes(r.int64()),
			Declared: r.size(), Expected: int(r.int64()), At: r.time(),
		}
	case 4:
		return predictor.BacklogObserved{Stage: stage, PoolOnly: r.small(2) == 0, Tasks: int(r.int64()), At: r.time()}
	case 5:
		return predictor.AttemptStarted{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Host: "h",
			At: r.time(),
		}
	case 6:
		return predictor.Sampled{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Memory: quantity.Bytes(r.int64()),
			CPU:       quantity.Milli(r.int64()),
			Throttled: r.float(), Grant: r.size(), At: r.time(),
		}
	default:
		return predictor.Record{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, At: r.time(),
			Outcome: []predictor.Outcome{
				predictor.Succeeded, predictor.Succeeded, predictor.OutOfMemory,
				predictor.Failed,
			}[r.small(4)],
			Cause: []predictor.Cause{"", predictor.CauseDeviceMemory}[r.small(2)],
			Features: map[string]float64{
				"rows": r.float(), fmt.Sprint("f", r.small(20)): r.float(), fmt.Sprint("c", r.small(9), "="): float64(r.small(5)),
			},
			Queue: time.Duration(r.int64()), Start: time.Duration(r.int64()), Cold: true, Grant: r.size(),
			Cost:      quantity.Money(r.int64()),
			Predicted: predictor.Prediction{Memory: r.interval(), Wall: r.interval()},
			Training: &predictor.Training{
				StepSeconds: r.float(), Bubble: r.float(), Parts: make([]predictor.TrainingPart, r.small(80)),
				Alternatives: []predictor.TrainingAlternative{{StepSeconds: r.float(), PeakBytes: quantity.Bytes(r.int64())}},
			},
			Usage: quantity.Usage{
				CPU: time.Duration(r.int64()), Wall: time.Duration(r.int64()), PeakMemory: quantity.Bytes(r.int64()),
				Input:         quantity.Bytes(r.int64()),
				GPUPeakMemory: quantity.Bytes(r.int64()), Throttled: time.Duration(r.int64()),
			},
		}
	}
}

func (r *reader) snapshot() predictor.Snapshot {
	snap := laptop(float64(r.small(1000)), 2)
	if r.small(4) == 0 {
		snap.Now = r.time()
	}
	if r.small(2) == 0 {
		snap.Hosts = append(snap.Hosts, predictor.Host{ID: "h", Capacity: r.size(), Free: r.size()})
	}
	if r.small(4) == 0 {
		f := &snap.Functions
		f.Concurrency, f.MaxMemory, f.MaxDuration = int(r.small(2000))-1, quantity.Bytes(r.int64()), time.Duration(r.int64())
		f.PerGiBSecond, f.PerRequest, f.Cores, f.ColdStart = quantity.Money(r.int64()), quantity.Money(r.int64()),
			quantity.Milli(r.int64()), time.Duration(r.int64())
		f.Classes = append(f.Classes, quantity.Bytes(r.int64()))
		snap.Policy = predictor.Policy{
			ValueOfTime: quantity.Money(r.int64()), IdleAfter: time.Duration(r.int64()), Window: int(r.int64()),
			MaxWindow: int(r.int64()),
			Margin:    r.float(), MinMemory: quantity.Bytes(r.int64()), ErrorBound: r.float(), Shadow: r.small(2) == 0,
		}
	}
	return snap
}

// FuzzFoldAndDecide feeds events and snapshots of any content: nothing panics, a plan always encodes (so no number in
// it is NaN or infinite), no amount is negative, and the state always survives a checkpoint.
func FuzzFoldAndDecide(f *testing.F) {
	f.Add([]byte("a few bytes that mean little"))
	seed := make([]byte, 4096)
	for i := range seed {
		seed[i] = byte(i * 37 >> 3)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		from := &reader{data: data}
		var state predictor.State
		for ticks := 0; len(from.data) > 0 && ticks < 200; ticks++ {
			for range from.small(6) {
				state = predictor.Fold(state, from.event())
			}
			var plan predictor.Plan
			plan, state = predictor.Decide(state, from.snapshot())
			plan.At = epoch
			for i := range plan.Decisions {
				plan.Decisions[i].At = epoch // a clock of the year 300,000 is the snapshot's fault
			}
			if _, err := json.Marshal(plan); err != nil {
				t.Fatalf("encode the plan: %v\n%+v", err, plan)
			}
			for _, grant := range plan.Grants {
				if grant.Slots <= 0 || grant.Size.CPU < 0 || grant.Size.Memory < 0 {
					t.Fatalf("a grant of nothing: %+v", grant)
				}
			}
			for _, sizing := range plan.Sizings {
				if sizing.Base.CPU < 0 || sizing.Base.Memory < 0 || sizing.Floor < 0 || sizing.Term.PerUnit < 0 ||
					sizing.Live.CPU < 0 || sizing.Live.Memory < 0 {
					t.Fatalf("a negative sizing: %+v", sizing)
				}
			}
			state.Forecast("r0", plan.At)
		}
		var twin predictor.State
		if err := json.Unmarshal(encode(t, state), &twin); err != nil {
			t.Fatalf("decode the state: %v", err)
		}
	})
}
