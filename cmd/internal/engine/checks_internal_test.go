package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// playWorker plays a workflow worker that answers what reply says; a nil answer is none.
func playWorker(t *testing.T, checks *inputChecks, id buildID, reply func(wire.CheckInput) *wire.CheckedInput) (end func()) {
	t.Helper()
	questions, ask := io.Pipe()
	answers, answer := io.Pipe()
	served, played := make(chan struct{}), make(chan struct{})
	go func() { defer close(served); checks.serve(id, ask, answers) }()
	go func() {
		defer close(played)
		decoder, encoder := json.NewDecoder(questions), json.NewEncoder(answer)
		for {
			var question wire.CheckInput
			if decoder.Decode(&question) != nil {
				return
			}
			if told := reply(question); told != nil && encoder.Encode(told) != nil {
				return
			}
		}
	}()
	return func() {
		_, _ = answer.Close(), ask.Close()
		<-served
		<-played
	}
}

func TestAnInputIsCheckedByTheWorkerOfItsBuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks := &inputChecks{}
		start := func(build, input string) trigger.Start {
			return trigger.Start{App: "app", Build: build, Pipeline: "p", Input: json.RawMessage(input), Validates: true}
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := checks.check(impatient, start("b1", `1`)); err == nil || errors.Is(err, trigger.ErrRefused) {
			t.Errorf("without a worker: %v, want an error that says nothing of the input", err)
		}
		early := make(chan error, 1)
		go func() { early <- checks.check(t.Context(), start("b1", `1`)) }()
		synctest.Wait()
		end := playWorker(t, checks, buildID{"app", "b1"}, func(q wire.CheckInput) *wire.CheckedInput {
			switch string(q.Input) {
			case `"bad"`:
				return &wire.CheckedInput{ID: q.ID, Refusal: "it is bad: give a good one"}
			case `"hangs"`:
				return nil
			default:
				return &wire.CheckedInput{ID: q.ID}
			}
		})
		if err := <-early; err != nil {
			t.Errorf("asked before there was a worker: %v, want the answer of the one that came", err)
		}
		err := checks.check(t.Context(), start("b1", `"bad"`))
		if !errors.Is(err, trigger.ErrRefused) || err.Error() != "input of pipeline p: it is bad: give a good one" {
			t.Errorf("a bad input: %v", err)
		}
		hung := make(chan error, 1)
		go func() { hung <- checks.check(t.Context(), start("b1", `"hangs"`)) }()
		synctest.Wait()
		if err := checks.check(t.Context(), start("b1", `2`)); err != nil {
			t.Errorf("beside one that hangs: %v", err)
		}
		if err := <-hung; !errors.Is(err, trigger.ErrRefused) || !strings.Contains(err.Error(), "has not returned within 10s") {
			t.Errorf("one that hangs: %v", err)
		}
		go func() { hung <- checks.check(t.Context(), start("b1", `"hangs"`)) }()
		synctest.Wait()
		end()
		if err := <-hung; !errors.Is(err, errWorkerGone) || errors.Is(err, trigger.ErrRefused) {
			t.Errorf("of a worker that ended: %v, want to be asked again", err)
		}
	})
}
