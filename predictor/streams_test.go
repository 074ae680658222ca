package predictor_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// stream is what leaders took in and when they decided, as a real stack had it: see testdata/streams/README.md.
type stream struct {
	name  string
	lines []line
}

// line is one step of a stream: an event, or one of the others.
type line struct {
	event   predictor.Event
	tick    *predictor.Snapshot
	inForce *predictor.Plan // a term began, and this plan was in force
	save    *uint64         // a checkpoint of this sequence was written
	load    *uint64         // a term began with the checkpoint of this sequence; 0 with none
}

// streams reads all recorded streams.
func streams(tb testing.TB) []stream {
	tb.Helper()
	paths, err := filepath.Glob("testdata/streams/*.jsonl.gz")
	if err != nil || len(paths) == 0 {
		tb.Fatalf("there is no recorded stream: %v", err)
	}
	var found []stream
	for _, path := range paths {
		found = append(found, stream{strings.TrimSuffix(filepath.Base(path), ".jsonl.gz"), readStream(tb, path)})
	}
	return found
}

func readStream(tb testing.TB, path string) []line {
	tb.Helper()
	file, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	expanded, err := gzip.NewReader(file)
	if err != nil {
		tb.Fatalf("read %s: %v", path, err)
	}
	var lines []line
	var last predictor.Snapshot
	scanner := bufio.NewScanner(expanded)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		next, err := readLine(scanner.Bytes(), &last)
		if err != nil {
			tb.Fatalf("read %s, line %d: %v", path, len(lines)+1, err)
		}
		lines = append(lines, next)
	}
	if err := scanner.Err(); err != nil {
		tb.Fatalf("read %s: %v", path, err)
	}
	return lines
}

// readLine reads one step. A tick has what differs from the last one.
func readLine(data []byte, last *predictor.Snapshot) (line, error) {
	var step map[string]json.RawMessage
	if err := json.Unmarshal(data, &step); err != nil {
		return line{}, err
	}
	for kind, body := range step {
		switch kind {
		case "tick":
			snapshot := *last
			snapshot.Hosts = nil // its elements would be shared with the snapshot before
			if err := json.Unmarshal(body, &snapshot); err != nil {
				return line{}, err
			}
			if snapshot.Hosts == nil && !strings.Contains(string(body), `"Hosts"`) {
				snapshot.Hosts = last.Hosts
			}
			*last = snapshot
			return line{tick: &snapshot}, nil
		case "in_force":
			return decoded(body, func(plan predictor.Plan) line { return line{inForce: &plan} })
		case "save":
			return decoded(body, func(sequence uint64) line { return line{save: &sequence} })
		case "load":
			return decoded(body, func(sequence uint64) line { return line{load: &sequence} })
		case "run_started":
			return decoded(body, func(e predictor.RunStarted) line { return line{event: e} })
		case "run_ended":
			return decoded(body, func(e predictor.RunEnded) line { return line{event: e} })
		case "goal_changed":
			return decoded(body, func(e predictor.GoalChanged) line { return line{event: e} })
		case "scheduled":
			return decoded(body, func(e predictor.Scheduled) line { return line{event: e} })
		case "backlog":
			return decoded(body, func(e predictor.BacklogObserved) line { return line{event: e} })
		case "reused":
			return decoded(body, func(e predictor.Reused) line { return line{event: e} })
		case "host_held":
			return decoded(body, func(e predictor.HostHeld) line { return line{event: e} })
		case "host_started":
			return decoded(body, func(e predictor.HostStarted) line { return line{event: e} })
		case "attempt_started":
			return decoded(body, func(e predictor.AttemptStarted) line { return line{event: e} })
		case "sampled":
			return decoded(body, func(e predictor.Sampled) line { return line{event: e} })
		case "record":
			return decoded(body, func(e predictor.Record) line { return line{event: e} })
		}
		return line{}, fmt.Errorf("there is no step %q", kind)
	}
	return line{}, errors.New("it is empty")
}

func decoded[V any](body json.RawMessage, step func(V) line) (line, error) {
	var value V
	err := json.Unmarshal(body, &value)
	return step(value), err
}

// replay does what the leaders of the stream did, and hands on every plan and every checkpoint.
func (s stream) replay(
	tb testing.TB, decided func(predictor.Snapshot, predictor.Plan), saved func(sequence uint64, state []byte),
) (end predictor.State) {
	tb.Helper()
	var state predictor.State
	kept := map[uint64][]byte{}
	for _, step := range s.lines {
		switch {
		case step.event != nil:
			state = predictor.Fold(state, step.event)
		case step.tick != nil:
			var plan predictor.Plan
			plan, state = predictor.Decide(state, *step.tick)
			decided(*step.tick, plan)
		case step.inForce != nil:
			state = predictor.Resume(state, *step.inForce)
		case step.save != nil:
			kept[*step.save] = encode(tb, state)
			saved(*step.save, kept[*step.save])
		case step.load != nil:
			state = predictor.State{}
			if *step.load == 0 {
				continue
			}
			if err := json.Unmarshal(kept[*step.load], &state); err != nil {
				tb.Fatalf("%s: begin a term with the checkpoint of message %d: %v", s.name, *step.load, err)
			}
		}
	}
	return state
}
