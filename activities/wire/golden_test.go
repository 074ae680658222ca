package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Values of the messages below. Every field of every message is set, so that a field that is renamed or lost shows in a
// golden file; TestEveryFieldOfAMessageIsInItsGoldenFile holds this up.
var (
	at    = time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)
	stage = predictor.StageID{App: "digits", Build: "f9310f35b488", Name: "score", Team: "vision"}
	size  = quantity.Size{
		CPU: 1500, Memory: 96 * quantity.MiB, GPU: 250, GPUMemory: 2 * quantity.GiB,
		DeviceClass: "h200",
	}
	goal = predictor.Goal{
		Deadline: time.Minute, Confidence: 0.95, Budget: quantity.USD / 2, Minimise: predictor.Latency,
	}
	ref         = activities.Ref{Digest: strings.Repeat("ab", 32), Bytes: 4096}
	traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	guess       = predictor.Interval{Low: 1, Mid: 2.5, High: 4}
	task        = wire.Task{
		Version: wire.Version, Run: "digits-1", Pipeline: "digits", Stage: stage, ID: "score-17", Input: 350_356,
		Declared: size, MaxAttempts: 3,
		Timeout: time.Minute, PoolOnly: true, Command: true, Recommends: true, Traceparent: traceparent, Budgeted: true,
		Reserved: 7, Batches: true, Asks: true,
		CacheVersion: "2", Resume: ref, Tells: true,
		Stretch: &predictor.Stretch{From: 1, Before: 1, To: 3, Most: 27}, Secrets: true,
	}
	training = predictor.Training{
		Model: "3b2a", ModelBytes: 4 * quantity.MiB,
		Executor: "torch", Schedule: "1f1b", Batch: 64, MicroBatches: 8, Replicas: 2, Sharding: "optimizer",
		Steps: 40, TotalSteps: 100,
		PredictedStepSeconds: 0.5, StepSeconds: 0.55, FLOPs: 6e12, Bubble: 0.2,
		Workers: 2, ExchangeSeconds: 0.05, Computed: 0.5, Hosts: []predictor.TrainingHost{{Name: "host-1", Ranks: 2}},
		Parts: []predictor.TrainingPart{{
			Device: "cuda:0", Kind: "cuda", Class: "h100", Threads: 2, Ops: 31, First: "embed", Last: "block.3.mlp",
			Recompute:          true,
			PredictedPeakBytes: quantity.GiB, PeakBytes: quantity.GiB + quantity.MiB, CapacityBytes: 2 * quantity.GiB,
			PredictedBusySeconds: 0.4, BusySeconds: 0.44, PeakFLOPS: 6e13,
		}},
		Alternatives: []predictor.TrainingAlternative{{
			Replicas: 2, Partitions: 1, MicroBatches: 1, StepSeconds: 0.9,
			PeakBytes: 3 * quantity.GiB, Reason: "it does not fit",
		}},
		Reason: "the fastest that fits",
	}
	start = wire.StartAttempt{
		Task: task, Attempt: 2, Input: json.RawMessage(`{"shard":17}`), Grant: size, Resume: ref,
		Past: []predictor.Training{training}, TimeToLoss: 36 * time.Hour, Bound: time.Minute,
		Secrets: map[string]string{"openai-api-key": "sk-1"},
	}
	progress = wire.Progress{
		Step: 3, Of: 50, Metrics: map[string]float64{"loss": 0.25}, NotFinite: []string{"val_loss"},
	}
	curve = predictor.Curve{
		Metric: "loss", Steps: []int64{1, 2}, Values: []float64{0.5, 0.25}, NotFinite: []int64{3},
	}
	answer = wire.Answer{
		Curve:  &curve,
		Output: json.RawMessage(`{"labels":[1,2]}`), Read: 4096, Written: 512, Wall: 2 * time.Second, CPU: time.Second,
		PeakMemory: 64 * quantity.MiB,
		BeganAt:    at, Fetch: time.Millisecond, Publish: 2 * time.Millisecond,
		Error: &wire.StageFailure{
			Message: "out of room", Stack: "goroutine 1", Permanent: true, OutOfMemory: true,
			Bounded: true, TimedOut: true, Unfit: predictor.CauseDisk, Crowded: true,
		},
		Squeezed:   true,
		Printed:    []wire.Printed{{Error: true, Text: []byte("no such file\n")}},
		Checkpoint: &ref, Progress: &progress,
	}
	command = wire.Command{
		Arguments: []string{"python", "train.py", "--epochs", "3"}, Code: ref, InPlace: "/home/ada/model", Directory: "src",
		Environment: map[string]string{"PYTHONHASHSEED": "0"}, Requirements: ref, Image: "python:3.12",
		Files:   []wire.CommandFile{{Path: "data/clean.csv", Artifact: ref, Tree: true}},
		Outputs: []wire.CommandOutput{{Name: "model", Path: "model.pt", Optional: true}}, KeepChanged: true,
		Program: "python3", Imports: []string{"numpy", "torch"},
		Parameters: map[string]float64{"epochs": 3}, Hosts: 2, LeastHosts: 1, Grace: 10 * time.Second,
	}
	commandResult = wire.CommandResult{
		Exit: 3, Outputs: map[string]wire.CommandFile{"model": {Path: "model.pt", Artifact: ref, Tree: true}}, Changed: ref,
		Values: map[string]any{"accuracy": 0.97}, NotFinite: []string{"loss"},
	}
	bound = wire.Binding{
		Pipeline: "digits", Subject: "images.>", Filter: map[string]any{"kind": "scan", "meta.size": float64(8)}, MaxRuns: 2,
		Schedule: "0 3 * * *",
		Input:    json.RawMessage(`{"shards":6}`), Goal: goal,
	}
)

// loopMessages holds one message of each kind.
func loopMessages() map[wire.Kind]wire.Message {
	return map[wire.Kind]wire.Message{
		wire.KindRunStarted: {Event: predictor.RunStarted{
			Run: "digits-1", Pipeline: "digits", App: "digits", Build: "f9310f35b488", Goal: goal, Input: []byte(`{"shards":6}`),
			InputBytes: 12, Features: map[string]float64{"shards": 6}, Stages: []string{"load", "score"},
			Event: "1", At: at,
			EventAt: at.Add(-time.Second), RetryOf: "digits-0", Traceparent: traceparent, Team: "vision",
		}},
		wire.KindReused: {Event: predictor.Reused{
			Run: "digits-1", Stage: stage, Tasks: 2, From: "digits-0", Saved: 5_542_794, Wall: 2 * time.Second, At: at,
		}},
		wire.KindHostHeld: {Event: predictor.HostHeld{
			Host: "host-1", Capacity: size, PricePerHour: quantity.USD,
			From: at.Add(-time.Minute), At: at,
		}},
		wire.KindHostStarted: {Event: predictor.HostStarted{
			Host: "host-1", Venue: predictor.Function, Instance: "8f0e2b6c",
			At: at,
		}},
		wire.KindRunEnded: {Event: predictor.RunEnded{
			Run: "digits-1", State: predictor.RunFailed, Error: "stage score failed", Result: []byte(`{"accuracy":0.97}`),
			At: at,
		}},
		wire.KindGoalChanged: {Event: predictor.GoalChanged{Run: "digits-1", Goal: goal, At: at}},
		wire.KindScheduled: {Event: predictor.Scheduled{
			Run: "digits-1", Stage: stage, Tasks: 1, PoolOnly: true, Input: 350_356, Declared: size, Program: "python3",
			Imports: []string{"numpy", "torch"}, Kind: "csv", Fixed: true, Unfit: "it imports numpy", Batches: true,
			Expected: 6, Withdrawn: 2, Tuning: true, Hosts: 2, At: at,
		}},
		wire.KindBacklog: {Event: predictor.BacklogObserved{Stage: stage, PoolOnly: true, Tasks: 5, At: at}},
		wire.KindAttemptStarted: {Event: predictor.AttemptStarted{
			Run: "digits-1", Stage: stage, Task: "score-17", Attempt: 2, Venue: predictor.Function, Host: "digits-1769",
			PoolOnly: true, Queue: 3 * time.Millisecond,
			Supervisor: "host-1", Instance: "8f0e2b6c", Grant: size, GPUs: []string{"GPU-604ac76c"}, At: at,
			Input: 4096, Features: map[string]float64{"epochs": 3},
			Members: []predictor.HostShare{{Host: "host-2", PerHour: 40_000_000_000, Cost: 1, Held: 1}},
		}},
		wire.KindSampled: {Event: predictor.Sampled{
			Run: "digits-1", Stage: stage, Task: "score-17", Attempt: 2, Venue: predictor.Pool, Host: "host-1", CPU: 900,
			Memory: 60 * quantity.MiB, Throttled: 0.25, Grant: size, GPU: &predictor.GPUSample{Memory: quantity.GiB, Busy: .5},
			Step: 3, Of: 50, Metrics: map[string]float64{"loss": 0.25}, NotFinite: []string{"val_loss"},
			Training: &training, At: at,
		}},
		wire.KindRecord: {Event: predictor.Record{
			Run: "digits-1", Pipeline: "digits", Stage: stage, Task: "score-17", Attempt: 2, Venue: predictor.Pool,
			Host: "host-1", PoolOnly: true,
			Members: []predictor.HostShare{{Host: "host-2", Cost: 2_000_000, PerHour: 1, Held: time.Second}},
			Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit, Error: "killed at its limit",
			ScheduledAt: at.Add(-time.Minute), Queue: 3 * time.Millisecond,
			Start: 4 * time.Millisecond, Settle: time.Millisecond, Cold: true, Init: 3 * time.Millisecond,
			Billed: 2 * time.Second, Batch: 16, At: at, Grant: size,
			GPUs:      []string{"GPU-604ac76c"},
			Predicted: predictor.Prediction{Memory: guess, Wall: guess, Source: "23 attempts", Guess: true},
			Usage: quantity.Usage{
				CPU: time.Second, PeakMemory: 64 * quantity.MiB, GPUPeakMemory: quantity.GiB, GPUPeakAccounted: true,
				GPUBusy: time.Second,
				Wall:    2 * time.Second, Input: 4096, Output: 512,
				Fetch: time.Millisecond, Publish: 2 * time.Millisecond, Squeezed: true, Throttled: time.Second / 4,
				Active: 3 * time.Second / 2, Stalled: time.Second / 8, DiskRead: 8192, DiskWritten: 2048,
			},
			Next: predictor.NextPool, Features: map[string]float64{"epochs": 3},
			Step: 3, Of: 50, Metrics: map[string]float64{"loss": 0.25}, NotFinite: []string{"val_loss"}, Checkpoints: 2,
			Training: &training, Curve: &curve,
			Cost: 5_542_794,
		}},
		wire.KindDecision: {Decision: &predictor.Decision{
			ID: "1-2-score-pool", At: at, Stage: stage, Venue: predictor.Pool, Run: "digits-1", What: "slots", From: "1 slot",
			To:     "3 slots",
			Reason: "12 tasks wait",
			Rejected: []predictor.Rejected{{
				What: "1 slot", Venue: predictor.Pool, Price: 1_000, Seconds: 2.5, Chance: 0.75,
			}},
			Inputs: map[string]float64{"backlog_tasks": 12}, Predicted: guess, PredictedUnit: "seconds",
		}},
	}
}

// plainMessages holds the messages that travel outside the loop's stream, by the name of their golden file.
func plainMessages() map[string]any {
	before := 0.5
	return map[string]any{
		"task": &task,
		"result": &wire.Result{
			Output: json.RawMessage(`{"labels":[1,2]}`), Venue: predictor.Function, Cost: 5_542_794, Checkpoint: ref,
			Metrics: map[string]float64{"loss": 0.25}, NotFinite: []string{"val_loss"}, Took: time.Minute,
			Prospect: &predictor.Prospect{Metric: "loss", Value: 0.25, Low: 0.125, High: 0.1875, Before: &before},
		},
		"heartbeat": &wire.Heartbeat{
			Failures: 2, OutOfMemory: 1, LargestFailed: 64 * quantity.MiB, LargestFailedGPU: quantity.GiB, HostWait: time.Minute,
			Spent: 77_664, Running: 512, Reserved: 200_000, Budgeted: true, Checkpoint: ref, Step: 3, Of: 50,
			Metrics: map[string]float64{"loss": 0.25}, NotFinite: []string{"val_loss"},
		},
		"to_child_start":  &wire.ToChild{Start: &start, Server: "http://artifacts:token@127.0.0.1:9000"},
		"to_child_limit":  &wire.ToChild{Limit: &size},
		"to_child_cancel": &wire.ToChild{Cancel: true},
		"to_child_propose": &wire.ToChild{Propose: &wire.ProposeSize{
			Task: task, Input: json.RawMessage(`{"shard":17}`),
			Proposal: wire.Proposal{
				Size: size, Expected: guess, Source: "23 attempts", Input: 4096, Attempt: 2, OutOfMemory: 1,
				LargestFailed: quantity.GiB, Capacity: size,
			},
		}},
		"from_child_recommended": &wire.FromChild{Recommended: &wire.Recommended{Size: size, Error: "no model"}},
		"from_child_ready":       &wire.FromChild{Ready: true},
		"from_child_progress":    &wire.FromChild{Progress: &progress},
		"from_child_checkpoint":  &wire.FromChild{Checkpoint: &ref, CheckpointParts: []activities.Ref{ref}},
		"from_child_training":    &wire.FromChild{Training: &training},
		"from_child_done":        &wire.FromChild{Done: &answer},
		"invoke":                 &wire.Invoke{Version: wire.Version, Start: start, More: []wire.StartAttempt{start}},
		"answers":                &wire.Answers{Version: wire.Version, Answers: []wire.Answer{answer}},
		"answer":                 &answer,
		"app": &wire.App{
			Version: wire.Version, Name: "digits", SIMD: true, WorkflowVersion: 1,
			Pipelines: []wire.Pipeline{{
				Name: "digits", Input: json.RawMessage(`{"type":"object"}`), Validates: true, Goal: goal,
				Bindings: []wire.Binding{bound},
			}},
			Stages: []wire.Stage{{
				Name: "score", Declared: size, MaxAttempts: 3, Timeout: time.Minute, PoolOnly: true, Command: true,
				Recommends: true,
				Cache:      true, CacheVersion: "2", CacheFor: time.Hour, NoCache: true,
				Secrets: []string{"openai-api-key"},
			}},
		},
		"command": &command,
		"options": &wire.RunOptions{
			Version: wire.WorkflowVersion, Window: 64, Cache: true, NoCache: true, RetryOf: "digits-0", Only: []string{"score"},
			Resumes: []wire.Resumption{{
				Stage: "train", Content: strings.Repeat("c", 64),
				Checkpoint: activities.Ref{Digest: strings.Repeat("d", 64), Bytes: 2048},
			}},
			EventAt: at, Traceparent: traceparent,
			Prices: &wire.Prices{
				HostPerHour: quantity.USD / 5, HostCapacity: size, FunctionPerGiBSecond: 16_666_667,
				FunctionPerRequest: 200_000,
			},
			Attributes: true, Team: "vision",
		},
		"reserve":  &wire.Reserve{Task: "score-17", Least: 1_000, Want: 2_000, Waits: true, Unlimited: true},
		"reserved": &wire.Reserved{Unlimited: true, Amount: 2_000, Budget: quantity.USD, Spent: 77_664},
		"kept": &wire.Kept{
			Version: wire.Version, Key: wire.ResultKey{Content: ref.Digest, Code: "f9310f35b488"}, Run: "digits-0",
			Stage: "score", Task: "score-17",
			Output: json.RawMessage(`{"labels":[1,2]}`), Stored: ref, Cost: 5_542_794, Wall: 2 * time.Second, At: at,
			Told: &wire.Told{
				Checkpoint: ref, Metrics: map[string]float64{"loss": 0.25}, NotFinite: []string{"val_loss"},
				Prospect: &predictor.Prospect{Metric: "loss", Value: 0.25, Low: 0.125, High: 0.1875, Before: &before},
				Stretch:  &predictor.Stretch{From: 1, Before: 1, To: 3, Most: 27},
			},
		},
		"lookup": &wire.Lookup{
			Run: "digits-0", Shared: true, NotBefore: at, Keys: []wire.ResultKey{{Content: ref.Digest, Code: "f9310f35b488"}},
			For: "digits-1",
		},
		"command_result": &commandResult,
		"done": &wire.Done{
			Version: wire.Version, Run: "digits-1", Pipeline: "digits", Event: "1", State: predictor.RunSucceeded, Error: "none",
			Result: json.RawMessage(`{"accuracy":0.97}`), Started: at, Ended: at.Add(time.Minute),
		},
		"binding": &bound,
		"logs": &wire.Logs{
			Version: wire.Version,
			Source: wire.LogSource{
				Run: "digits-1", Stage: "score", Task: "score-17", Attempt: 2, Venue: predictor.Pool,
				Host: "host-1",
			},
			Lines: []wire.LogLine{
				{At: at, Origin: wire.LogErr, Text: "epoch 3: 40%|####      |", Cut: true, Redrawn: true},
			},
		},
	}
}

func TestMessagesOfTheLoopKeepTheirEncoding(t *testing.T) {
	t.Parallel()
	for kind, message := range loopMessages() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			encoded, got := encode(t, message)
			if got != kind {
				t.Errorf("kind: got %s, want %s", got, kind)
			}
			compareGolden(t, "loop_"+string(kind), encoded)
			decoded, err := wire.DecodeMessage(readGolden(t, "loop_"+string(kind)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(message, decoded); diff != "" {
				t.Errorf("decoded golden file (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMessagesOutsideTheLoopKeepTheirEncoding(t *testing.T) {
	t.Parallel()
	for name, message := range plainMessages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encoded, err := json.Marshal(message)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, name, encoded)
			decoded := reflect.New(reflect.TypeOf(message).Elem()).Interface()
			if err := json.Unmarshal(readGolden(t, name), decoded); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(message, decoded, rawJSON); diff != "" {
				t.Errorf("decoded golden file (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryFieldOfAMessageIsInItsGoldenFile(t *testing.T) {
	t.Parallel()
	for kind, message := range loopMessages() {
		value := reflect.ValueOf(message.Event)
		if message.Decision != nil {
			value = reflect.ValueOf(*message.Decision)
		}
		requireFilled(t, string(kind), value)
	}
	for name, message := range plainMessages() {
		if strings.HasPrefix(name, "to_child") || strings.HasPrefix(name, "from_child") {
			continue // exactly one field of these is set; their parts are other messages
		}
		requireFilled(t, name, reflect.ValueOf(message).Elem())
	}
}

func TestAMessageThatIsNotUnderstoodIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		data    string
		version bool
		want    string
	}{
		"a version of the future":           {`{"v":2,"kind":"run_ended","body":{}}`, true, "2, this build reads 1"},
		"no version":                        {`{"kind":"run_ended","body":{}}`, true, "0, this build reads 1"},
		"a kind of the future":              {`{"v":1,"kind":"run_paused","body":{}}`, false, `unknown kind "run_paused"`},
		"no kind":                           {`{"v":1,"body":{}}`, false, `unknown kind ""`},
		"an event without a body":           {`{"v":1,"kind":"run_ended"}`, false, "decode run_ended"},
		"a decision without a body":         {`{"v":1,"kind":"decision"}`, false, "decode decision"},
		"a body of another shape":           {`{"v":1,"kind":"backlog","body":{"tasks":"many"}}`, false, "decode backlog"},
		"a decision of another shape":       {`{"v":1,"kind":"decision","body":[]}`, false, "decode decision"},
		"text":                              {`hello`, false, "decode loop message"},
		"nothing":                           {``, false, "decode loop message"},
		"the beginning of a message":        {`{"v":1,"kind":"run_ended","body":{"run":`, false, "decode loop message"},
		"a future version of another shape": {`{"v":2,"kind":"run_ended","body":"packed"}`, true, "unknown message version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			message, err := wire.DecodeMessage([]byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, wire.ErrVersion) != c.version {
				t.Errorf("%s: got %+v, %v; want an error that says %q (ErrVersion: %t)", c.data, message, err, c.want, c.version)
			}
			if message != (wire.Message{}) {
				t.Errorf("%s: got %+v beside the error, want nothing", c.data, message)
			}
		})
	}
}

func TestAnEventWithoutAKindIsNotEncoded(t *testing.T) {
	t.Parallel()
	if kind, data, err := wire.EncodeEvent(nil); err == nil || kind != "" || data != nil {
		t.Errorf("got %q, %q, %v; want an error", kind, data, err)
	}
}

func TestAFieldThatIsNotKnownIsIgnored(t *testing.T) {
	t.Parallel()
	for kind, message := range loopMessages() {
		encoded, _ := encode(t, message)
		var outer map[string]any
		if err := json.Unmarshal(encoded, &outer); err != nil {
			t.Fatal(err)
		}
		outer["added_later"] = true
		outer["body"].(map[string]any)["added_later"] = map[string]any{"deep": []int{1}}
		more, err := json.Marshal(outer)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := wire.DecodeMessage(more)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if diff := cmp.Diff(message, decoded); diff != "" {
			t.Errorf("%s with one more field (-want +got):\n%s", kind, diff)
		}
	}
}

// A message that an older build wrote says nothing of trainings.
func TestAMessageOfABuildThatKnewNoTrainingsIsRead(t *testing.T) {
	t.Parallel()
	for kind, message := range loopMessages() {
		encoded, _ := encode(t, message)
		var outer map[string]any
		if err := json.Unmarshal(encoded, &outer); err != nil {
			t.Fatal(err)
		}
		delete(outer["body"].(map[string]any), "training")
		older, err := json.Marshal(outer)
		if err != nil {
			t.Fatal(err)
		}
		switch want := message.Event.(type) {
		case predictor.Sampled:
			want.Training = nil
			message.Event = want
		case predictor.Record:
			want.Training = nil
			message.Event = want
		}
		decoded, err := wire.DecodeMessage(older)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if diff := cmp.Diff(message, decoded); diff != "" {
			t.Errorf("%s without a training (-want +got):\n%s", kind, diff)
		}
	}
}

func FuzzDecodeMessage(f *testing.F) {
	for _, message := range loopMessages() {
		encoded, _ := encode(f, message)
		f.Add(encoded)
	}
	f.Add([]byte(`{"v":2,"kind":"run_ended","body":{}}`))
	f.Add([]byte(`{"v":1,"kind":"scheduled","body":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		message, err := wire.DecodeMessage(data)
		if err != nil {
			if message != (wire.Message{}) {
				t.Fatalf("%q: %+v beside the error %v", data, message, err)
			}
			return
		}
		if (message.Event == nil) == (message.Decision == nil) {
			t.Fatalf("%q: exactly one of event and decision must be set: %+v", data, message)
		}
		encoded, _ := encode(t, message)
		again, err := wire.DecodeMessage(encoded)
		if err != nil {
			t.Fatalf("%q encodes to %q, which does not decode: %v", data, encoded, err)
		}
		twice, _ := encode(t, again)
		if !bytes.Equal(encoded, twice) {
			t.Fatalf("%q encodes to %q and then to %q", data, encoded, twice)
		}
	})
}

// encode returns the bytes and the kind of message.
func encode(tb testing.TB, message wire.Message) ([]byte, wire.Kind) {
	tb.Helper()
	var (
		kind wire.Kind
		data []byte
		err  error
	)
	if message.Decision != nil {
		kind, data, err = wire.EncodeDecision(*message.Decision)
	} else {
		kind, data, err = wire.EncodeEvent(message.Event)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return data, kind
}

// rawJSON compares raw messages by what they say: golden files are indented.
var rawJSON = cmp.Transformer("compact", func(raw json.RawMessage) string {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return string(raw)
	}
	return compact.String()
})

func goldenPath(name string) string { return filepath.Join("testdata", name+".json") }

func readGolden(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(goldenPath(name))
	if err != nil {
		tb.Fatalf("%v\n  hint: SPILLWAY_UPDATE=1 go test ./activities/wire writes it", err)
	}
	return data
}

// compareGolden compares encoded with the golden file of this name, byte for byte after indentation; SPILLWAY_UPDATE=1
// rewrites the file.
func compareGolden(t *testing.T, name string, encoded []byte) {
	t.Helper()
	var indented bytes.Buffer
	if err := json.Indent(&indented, encoded, "", "  "); err != nil {
		t.Fatal(err)
	}
	indented.WriteByte('\n')
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		if err := os.WriteFile(goldenPath(name), indented.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(readGolden(t, name)), indented.String()); diff != "" {
		t.Errorf("the encoding of %s changed (-golden +got): readers of other builds must still understand it\n%s", name,
			diff)
	}
}

// requireFilled fails the test when value, or anything in it, is zero.
func requireFilled(t *testing.T, path string, value reflect.Value) {
	t.Helper()
	if value.IsZero() {
		t.Errorf("%s is zero: set it, so that its golden file shows it", path)
		return
	}
	switch {
	case value.Kind() == reflect.Pointer:
		requireFilled(t, path, value.Elem())
	case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
		for i := range value.Len() {
			requireFilled(t, path, value.Index(i))
		}
	case value.Kind() == reflect.Struct && value.Type() != reflect.TypeFor[time.Time]():
		for i := range value.NumField() {
			requireFilled(t, path+"."+value.Type().Field(i).Name, value.Field(i))
		}
	}
}
