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
func playWorker(
	t *testing.T, checks *inputChecks, id buildID, reply func(wire.InputQuestion) *wire.InputAnswer,
) (end func()) {
	t.Helper()
	questions, ask := io.Pipe()
	answers, answer := io.Pipe()
	served, played := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		if err := checks.serve(id, ask, answers); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	go func() {
		defer close(played)
		decoder, encoder := json.NewDecoder(questions), json.NewEncoder(answer)
		if encoder.Encode(wire.InputAnswer{}) != nil {
			return
		}
		for {
			var question wire.InputQuestion
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
		end := playWorker(t, checks, buildID{"app", "b1"}, func(q wire.InputQuestion) *wire.InputAnswer {
			switch string(q.Input) {
			case `"bad"`:
				return &wire.InputAnswer{ID: q.ID, Refusal: "it is bad: give a good one"}
			case `"hangs"`:
				return nil
			default:
				return &wire.InputAnswer{ID: q.ID}
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
		if err := <-hung; !errors.Is(err, errNoAnswer) || errors.Is(err, trigger.ErrRefused) {
			t.Errorf("without an answer: %v, want to be asked again", err)
		}
		go func() { hung <- checks.check(t.Context(), start("b1", `"hangs"`)) }()
		synctest.Wait()
		end()
		if err := <-hung; !errors.Is(err, errWorkerGone) || errors.Is(err, trigger.ErrRefused) {
			t.Errorf("of a worker that ended: %v, want to be asked again", err)
		}
	})
}

// TestAWorkerThatStartsIsNotAsked plays a worker that is slow to start: events wait for it, and are not refused.
func TestAWorkerThatStartsIsNotAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks, id := &inputChecks{}, buildID{"app", "b"}
		questions, ask := io.Pipe()
		answers, answer := io.Pipe()
		served := make(chan error, 1)
		go func() { served <- checks.serve(id, ask, answers) }()
		asked := make(chan error, 1)
		go func() { asked <- checks.check(t.Context(), trigger.Start{App: "app", Build: "b", Pipeline: "p"}) }()
		time.Sleep(2 * answerLimit)
		synctest.Wait()
		select {
		case err := <-asked:
			t.Fatalf("while the worker starts: %v, want nothing yet", err)
		default:
		}
		go func() {
			encoder, decoder := json.NewEncoder(answer), json.NewDecoder(questions)
			var question wire.InputQuestion
			if encoder.Encode(wire.InputAnswer{}) == nil && decoder.Decode(&question) == nil {
				_ = encoder.Encode(wire.InputAnswer{ID: question.ID})
			}
		}()
		if err := <-asked; err != nil {
			t.Errorf("once it has started: %v", err)
		}
		if err := answer.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

func TestAttackAWorkerThatCannotBeAskedIsEnded(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"nonsense":        "what?\n",
		"a line for ever": `{"refusal":"` + strings.Repeat("a", 2*wire.InputAnswerMax),
		"later":           "{}\n[1]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := &inputChecks{}
			answers, answer := io.Pipe()
			go func() { _, _ = io.WriteString(answer, says) }()
			if err := checks.serve(buildID{"app", "b"}, io.Discard, answers); err == nil {
				t.Error("want an error, so that it is ended and started again")
			}
			if err := answers.Close(); err != nil {
				t.Fatal(err)
			}
			if len(checks.workers) > 0 {
				t.Error("it is asked still")
			}
		})
	}
	answers, answer := io.Pipe()
	questions, ask := io.Pipe()
	if err := questions.Close(); err != nil { // it does not read, and goes on
		t.Fatal(err)
	}
	checks, served := &inputChecks{}, make(chan error, 1)
	go func() { served <- checks.serve(buildID{"app", "b"}, ask, answers) }()
	if _, err := io.WriteString(answer, "{}\n"); err != nil {
		t.Fatal(err)
	}
	err := checks.check(t.Context(), trigger.Start{App: "app", Build: "b", Pipeline: "p"})
	if err == nil || errors.Is(err, trigger.ErrRefused) || <-served == nil {
		t.Errorf("of one that does not read: %v, want an error that says nothing of the input, and its end", err)
	}
	if err := answer.Close(); err != nil {
		t.Fatal(err)
	}
}
