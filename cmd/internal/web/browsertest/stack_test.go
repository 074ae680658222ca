package browsertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	app   = "digits"
	build = "2ddeea7a933f"
	// hostile is what a user's program may print, and what must stay text.
	hostile = `loss is NaN <img src=x onerror="document.title='broken'"> {@html '<b>bold</b>'}`
)

// engine is the one in memory, with predictions of runs, which only a real forecast makes.
type engine struct {
	*webtest.Engine
	predicted map[string]ledger.RunPrediction
}

// Runs returns runs with what was predicted of them.
func (e engine) Runs(ctx context.Context, query web.RunQuery) (ledger.Page, error) {
	page, err := e.Engine.Runs(ctx, query)
	for i, view := range page.Runs {
		page.Runs[i].Predicted, page.Runs[i].Latest = e.predicted[view.Run], e.predicted[view.Run]
	}
	return page, err
}

// Run returns one run with what was predicted of it.
func (e engine) Run(ctx context.Context, run string) (ledger.RunView, error) {
	view, err := e.Engine.Run(ctx, run)
	view.Predicted, view.Latest = e.predicted[run], e.predicted[run]
	return view, err
}

func stage(name string) predictor.StageID {
	return predictor.StageID{App: app, Build: build, Name: name}
}

// newEngine returns an engine with three runs: digits-running goes on since 40 s before now, digits-done has succeeded,
// digits-failed has failed.
func newEngine(t *testing.T, now time.Time) engine {
	t.Helper()
	e := engine{Engine: webtest.New(stack(t, now)), predicted: map[string]ledger.RunPrediction{
		"digits-running": {
			FinishSeconds: predictor.Interval{Low: 58, Mid: 71, High: 95},
			Cost:          predictor.Interval{Low: 0.0011, Mid: 0.0014, High: 0.0021}, At: now,
			Runs: 4, Basis: "its own tasks and 4 earlier runs", Late: 0.83,
		},
		"digits-done": {
			FinishSeconds: predictor.Interval{Low: 20, Mid: 25, High: 31},
			Cost:          predictor.Interval{Low: 0.0002, Mid: 0.00031, High: 0.0004}, At: now,
		},
	}}
	e.SetListed(webtest.Listed{Hosts: listed(stack(t, now).Hosts)})
	e.finished(now.Add(-3 * time.Hour))
	e.failed(now.Add(-25 * time.Hour))
	e.running(now.Add(-40 * time.Second))
	return e
}

// listed are hosts that have a lease, and one that has none any more.
func listed(living []predictor.Host) []web.Host {
	hosts := []web.Host{{
		Name: "gone", State: web.HostLost, Version: "v1.2.2", Platform: "linux/arm64", Seen: time.Now().Add(-time.Hour),
		Capacity: quantity.Size{CPU: 2000, Memory: 4 * quantity.GiB},
	}}
	for _, host := range living {
		hosts = append(hosts, web.Host{
			Name: host.ID, State: web.HostUp, Version: "v1.2.3", Platform: "linux/amd64", Capacity: host.Capacity,
			Used: host.Capacity.Minus(host.Free), Stages: []string{"digits/train"}, Drained: host.ID == "gpu-2",
		})
	}
	return hosts
}

func stack(t *testing.T, now time.Time) web.Stack {
	t.Helper()
	policy := predictor.DefaultPolicy()
	return web.Stack{
		Version: "v1.2.3", PID: 4711, StateDir: t.TempDir(), StartedAt: now.Add(-26 * time.Hour), Policy: policy,
		PoolCPUs: []int{0, 1, 2, 3}, FunctionCPUs: []int{4, 5},
		Addresses: web.Addresses{
			HTTP: "http://127.0.0.1:7474", Temporal: "127.0.0.1:7233",
			TemporalUI: "http://127.0.0.1:8233", NATS: "nats://127.0.0.1:4222",
		},
		Servers: []web.StackServer{
			{Name: "workstation", Own: true, Version: "v1.2.3", StartedAt: now.Add(-26 * time.Hour), SeenAt: now},
			{
				Name: "server-2", Address: "https://10.0.0.7:7475", Leads: true, Term: 7, LeadsSince: now.Add(-2 * time.Hour),
				Version: "v1.2.3", StartedAt: now.Add(-50 * time.Hour), SeenAt: now,
			},
			{
				Name: "server-3", Gone: true, Version: "v1.2.2", StartedAt: now.Add(-70 * time.Hour),
				SeenAt: now.Add(-9 * time.Minute),
			},
		},
		Hosts: []predictor.Host{{
			ID: "workstation", Capacity: quantity.Size{CPU: 4000, Memory: 16 * quantity.GiB},
			Free:         quantity.Size{CPU: 1500, Memory: 11 * quantity.GiB},
			PricePerHour: 178_500_000_000, CPUs: []int{0, 1, 2, 3}, Enforcement: "cgroup v2", At: now,
		}, {
			ID: "gpu-1", Capacity: quantity.Size{
				CPU: 16_000, Memory: 128 * quantity.GiB, GPU: 3000,
				GPUMemory: 180 * quantity.GiB, DeviceClass: "h100",
			},
			Free:         quantity.Size{CPU: 12_000, Memory: 96 * quantity.GiB, GPU: 2000, GPUMemory: 100 * quantity.GiB},
			GPUs:         gpus(),
			PricePerHour: 3_900_000_000_000, CPUs: []int{0, 1, 2, 3, 8, 10, 11}, Enforcement: "cgroup v1", At: now,
		}, {
			ID: "gpu-2", Capacity: quantity.Size{CPU: 8000, Memory: 64 * quantity.GiB}, GPUsUnknown: true,
			Free:         quantity.Size{CPU: 8000, Memory: 64 * quantity.GiB},
			PricePerHour: 3_900_000_000_000, Enforcement: "cgroup v2", At: now,
		}},
		Functions: predictor.FunctionVenue{
			Enabled: true, Concurrency: 1000, MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute,
			PerGiBSecond: 16_666_700, PerRequest: 200_000,
			Classes: []quantity.Bytes{128 * quantity.MiB, 512 * quantity.MiB, 1769 * quantity.MiB, 10 * quantity.GiB},
			Cores:   2000, ColdStart: 200 * time.Millisecond,
		},
		Apps: []web.App{{
			App: wire.App{
				Name: app, SIMD: true, Pipelines: []wire.Pipeline{{
					Name: "digits",
					Goal: predictor.Goal{Deadline: 90 * time.Second},
				}},
				Stages: []wire.Stage{{Name: "load"}, {
					Name:     "train",
					Declared: quantity.Size{CPU: 2000, Memory: 512 * quantity.MiB},
				}, {Name: "score-with-a-long-name"}},
			},
			Build: build, Path: "/builds/digits", Current: true,
		}},
	}
}

// gpus are the GPUs of a host: one that an attempt has, one that another program fills, a part of one, and one that is
// lost.
func gpus() []predictor.GPU {
	h100 := func(index int) predictor.GPU {
		return predictor.GPU{
			UUID: fmt.Sprintf("GPU-%d04ac76c-d9cf-fef3-62e9-d92044ab6e52", index), Index: index, Instance: -1,
			Name: "NVIDIA H100 80GB HBM3", Class: "h100", Memory: 80 * quantity.GiB, Watts: 71,
		}
	}
	held, filled, part, lost := h100(0), h100(1), h100(2), h100(3)
	held.Used, held.Busy, held.Watts, held.Uncorrected = 61*quantity.GiB, .93, 688.4, 2
	held.Holder = &predictor.GPUHolder{Run: "digits-running", Stage: "train", Task: "train-0", Attempt: 2}
	held.Others = []predictor.GPUProcess{{PID: 990, Memory: 412 * quantity.MiB}}
	filled.Used, filled.Busy = 70*quantity.GiB, .4
	filled.Others = []predictor.GPUProcess{{PID: 4242, Memory: 70 * quantity.GiB}, {PID: 4243, Memory: -1}}
	part.UUID, part.Instance, part.Memory = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", 1, 20*quantity.GiB
	part.Name, part.Busy, part.Watts, part.Uncorrected = "NVIDIA H100 80GB HBM3 MIG 2g.20gb", -1, -1, -1
	lost.Wrong = "has fallen off the bus: see dmesg, and restart the machine"
	return []predictor.GPU{held, filled, part, lost}
}

// finished makes a run of 320 tasks that spilled.
func (e engine) finished(begin time.Time) {
	const run = "digits-done"
	e.Apply(run, predictor.RunStarted{
		Run: run, Pipeline: "digits", App: app, Build: build, At: begin,
		Event: "nightly-17",
	})
	e.attempts(run, "load", predictor.Pool, 1, begin, 84*time.Millisecond, 24*quantity.MiB)
	e.attempts(run, "score-with-a-long-name", predictor.Pool, 201, begin.Add(2*time.Second), 90*time.Millisecond,
		61*quantity.MiB)
	e.attempts(run, "score-with-a-long-name", predictor.Function, 119, begin.Add(3*time.Second), 110*time.Millisecond,
		58*quantity.MiB)
	e.decide(1, begin,
		change{"load", predictor.Pool, 0, 0, 1}, change{"load", predictor.Pool, 2, 1, 0},
		change{"score-with-a-long-name", predictor.Pool, 2, 0, 4},
		change{"score-with-a-long-name", predictor.Function, 5, 0, 2},
		change{"score-with-a-long-name", predictor.Function, 9, 2, 6},
		change{"score-with-a-long-name", predictor.Function, 20, 6, 0},
		change{"score-with-a-long-name", predictor.Pool, 22, 4, 0})
	e.Apply(run, predictor.RunEnded{
		Run: run, State: predictor.RunSucceeded,
		Result: []byte(`{"accuracy":0.9778,"shards":320}`), At: begin.Add(23400 * time.Millisecond),
	})
}

// failed makes a run whose error is hostile.
func (e engine) failed(begin time.Time) {
	const run = "digits-failed"
	e.Apply(run, predictor.RunStarted{
		Run: run, Pipeline: "digits", App: app, Build: "000000000000", At: begin,
		Goal: predictor.Goal{Budget: quantity.USD / 2},
	},
		predictor.RunEnded{
			Run: run, State: predictor.RunFailed, Error: "stage train: attempt 3: " + hostile,
			At: begin.Add(4 * time.Second),
		})
}

// running makes a run that goes on, with a log.
func (e engine) running(begin time.Time) {
	const run = "digits-running"
	e.Apply(run, predictor.RunStarted{
		Run: run, Pipeline: "digits", App: app, Build: build, At: begin,
		Goal: predictor.Goal{Deadline: 90 * time.Second, Budget: quantity.USD / 2, Minimise: predictor.Cost},
	})
	e.attempts(run, "load", predictor.Pool, 1, begin, 84*time.Millisecond, 24*quantity.MiB)
	e.hadGPUs(run, begin)
	e.Apply(run, predictor.Scheduled{Run: run, Stage: stage("train"), Tasks: 1, At: begin.Add(time.Second)},
		predictor.AttemptStarted{
			Run: run, Stage: stage("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "workstation",
			Grant: quantity.Size{CPU: 2000, Memory: 256 * quantity.MiB}, At: begin.Add(2 * time.Second),
		},
		predictor.Sampled{
			Run: run, Stage: stage("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "workstation", CPU: 1900,
			Memory: 190 * quantity.MiB,
			Grant:  quantity.Size{CPU: 2000, Memory: 256 * quantity.MiB}, Step: 7,
			Metrics: map[string]float64{"accuracy": 0.9513, "loss": 0.1347}, At: begin.Add(9 * time.Second),
		},
		predictor.Scheduled{Run: run, Stage: stage("score-with-a-long-name"), Tasks: 320, At: begin.Add(3 * time.Second)})
	e.attempts(run, "score-with-a-long-name", predictor.Function, 40, begin.Add(5*time.Second), 110*time.Millisecond,
		58*quantity.MiB)
	e.decide(2, begin,
		change{"load", predictor.Pool, 0, 0, 1}, change{"load", predictor.Pool, 1, 1, 0},
		change{"train", predictor.Pool, 1, 0, 1},
		change{"score-with-a-long-name", predictor.Pool, 3, 0, 2},
		change{"score-with-a-long-name", predictor.Function, 4, 0, 1},
		change{"score-with-a-long-name", predictor.Function, 12, 1, 8},
		change{"score-with-a-long-name", predictor.Pool, 20, 2, 3})
	for i := range 60 {
		e.Print(line(run, "train", begin.Add(time.Duration(i)*500*time.Millisecond),
			fmt.Sprintf("epoch %d: loss %.4f", i/4, 1/float64(i+1))))
	}
	e.Print(line(run, "score-with-a-long-name", begin.Add(31*time.Second), hostile))
}

// hadGPUs makes attempts that had GPUs: of one it is known what it took of them.
func (e engine) hadGPUs(run string, begin time.Time) {
	for i, peak := range []quantity.Bytes{61 * quantity.GiB, 0} {
		e.Apply(run, predictor.Record{
			Run: run, Stage: stage("fit"), Task: fmt.Sprintf("fit-%d", i), Attempt: 1, Venue: predictor.Pool,
			Host: "gpu-1", Outcome: predictor.Succeeded, ScheduledAt: begin, At: begin.Add(9 * time.Second),
			Grant: quantity.Size{
				CPU: 4000, Memory: 2 * quantity.GiB, GPU: 2000, GPUMemory: 160 * quantity.GiB, DeviceClass: "h100",
			},
			GPUs: []string{
				"GPU-004ac76c-d9cf-fef3-62e9-d92044ab6e52", "GPU-104ac76c-d9cf-fef3-62e9-d92044ab6e52",
			},
			Usage: quantity.Usage{Wall: 8 * time.Second, PeakMemory: quantity.GiB, GPUPeakMemory: peak},
		})
	}
}

func line(run, name string, at time.Time, text string) logs.Line {
	return logs.Line{
		LogSource: wire.LogSource{
			Run: run, Stage: name, Task: name + "-0", Attempt: 1, Venue: predictor.Pool,
			Host: "workstation",
		},
		LogLine: wire.LogLine{At: at, Origin: wire.LogOut, Text: text},
	}
}

// attempts schedules tasks of a stage and lets each succeed at the first attempt.
func (e engine) attempts(
	run, name string, venue predictor.Venue, tasks int, begin time.Time, wall time.Duration, peak quantity.Bytes,
) {
	e.Apply(run, predictor.Scheduled{Run: run, Stage: stage(name), Tasks: tasks, At: begin})
	for i := range tasks {
		e.Apply(run, predictor.Record{
			Run: run, Pipeline: "digits", Stage: stage(name), Task: fmt.Sprintf("%s-%s-%d", name, venue, i), Attempt: 1,
			Venue: venue, Host: "workstation", Outcome: predictor.Succeeded,
			ScheduledAt: begin, Queue: 20 * time.Millisecond, Start: time.Millisecond, At: begin.Add(time.Duration(i+1) * wall),
			Grant: quantity.Size{CPU: 1000, Memory: 96 * quantity.MiB},
			Predicted: predictor.Prediction{
				Memory: predictor.Interval{Low: 50e6, Mid: 60e6, High: 80e6},
				Wall:   predictor.Interval{Low: 0.05, Mid: 0.08, High: 0.2}, Source: "23 attempts",
			},
			Usage: quantity.Usage{CPU: wall * 9 / 10, PeakMemory: peak, Wall: wall}, Cost: 2_310_000,
		})
	}
}

// change is a change of slots, in seconds since the run's start.
type change struct {
	stage    string
	venue    predictor.Venue
	at       int
	from, to int
}

func (e engine) decide(term uint64, begin time.Time, changes ...change) {
	held := map[predictor.StageID]map[predictor.Venue]int{}
	for tick, c := range changes {
		decision := predictor.Decision{
			ID: fmt.Sprintf("%d.%d.0", term, tick+1), At: begin.Add(time.Duration(c.at)*time.Second + 10*time.Millisecond),
			Stage: stage(c.stage), Venue: c.venue, What: "slots",
			From: fmt.Sprintf("%d slots", c.from), To: fmt.Sprintf("%d slots", c.to),
			Reason: "240 tasks wait 24 s at 1 pool slot; 2 function slots finish 16 s sooner for $0.00021, less than the " +
				"$0.0044 that 16 s are worth",
			Inputs: map[string]float64{
				"backlog_tasks": 240, "pool_wait_seconds": 24, "value_picodollars": 4.4e9,
				"largest_peak_bytes": 24 << 20, "wall_error_ratio": 0.179,
			},
		}
		if c.to > c.from {
			decision.Predicted, decision.PredictedUnit = predictor.Interval{Low: 6, Mid: 8, High: 11}, "seconds"
		}
		if held[decision.Stage] == nil {
			held[decision.Stage] = map[predictor.Venue]int{}
		}
		held[decision.Stage][c.venue] = c.to
		plan := predictor.Plan{Term: term, Tick: uint64(tick + 1), At: decision.At, Decisions: []predictor.Decision{decision}}
		for id, venues := range held {
			for venue, slots := range venues {
				if slots > 0 {
					plan.Grants = append(plan.Grants, predictor.Grant{
						Stage: id, Venue: venue, Slots: slots,
						Size: quantity.Size{CPU: 1000, Memory: 96 * quantity.MiB},
					})
				}
			}
		}
		e.Decide(plan)
	}
}
