package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
)

// openChecks returns the ends of the engine's pipes on which it asks for checks of inputs.
func openChecks() (questions, answers *os.File, err error) {
	if !isPipe(wire.QuestionsFD) || !isPipe(wire.AnswersFD) {
		return nil, nil, fmt.Errorf("%s is set, but file descriptors %d and %d are no pipes: only the engine sets it",
			wire.ChecksEnvironment, wire.QuestionsFD, wire.AnswersFD)
	}
	syscall.CloseOnExec(wire.QuestionsFD)
	syscall.CloseOnExec(wire.AnswersFD)
	return os.NewFile(wire.QuestionsFD, "checks-in"), os.NewFile(wire.AnswersFD, "checks-out"), nil
}

const (
	// validateLimit is how long a Validate may take: it looks at a value, which takes microseconds.
	validateLimit = 10 * time.Second
	// validateGrace is how long one is waited for yet that is late because this process stood still: it is judged
	// by what it does, not by when it was let do it.
	validateGrace = time.Second
)

// answerChecks says that it reads, and answers questions until there are no more, each on its own, so that a Validate
// which hangs holds up no other.
func answerChecks(questions io.Reader, answers io.Writer, pipelines []Pipeline) error {
	var writing sync.Mutex
	encoder := json.NewEncoder(answers)
	decoder := json.NewDecoder(questions)
	if err := encoder.Encode(wire.InputAnswer{}); err != nil {
		return fmt.Errorf("say that inputs can be checked: %w", err)
	}
	for {
		var question wire.InputQuestion
		if err := decoder.Decode(&question); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read which input to check: %w", err)
		}
		go func() {
			answer := wire.InputAnswer{ID: question.ID, Refusal: refusalInTime(pipelines, question)}
			writing.Lock()
			defer writing.Unlock()
			_ = encoder.Encode(answer) // the engine that asked is gone, and so will this process be
		}()
	}
}

// refusalInTime is refusal, or that the pipeline does not say in time whether it takes the input.
func refusalInTime(pipelines []Pipeline, question wire.InputQuestion) string {
	said := make(chan string, 1)
	go func() { said <- refusal(pipelines, question) }()
	for _, limit := range []time.Duration{validateLimit, validateGrace} {
		select {
		case why := <-said:
			if len(why) > wire.RefusalMax {
				why = strings.ToValidUTF8(why[:wire.RefusalMax], "") + " ..."
			}
			return why
		case <-time.After(limit):
		}
	}
	return fmt.Sprintf("its Validate has not returned within %s", validateLimit)
}

// refusal is why the pipeline does not take the input; empty when it does.
func refusal(pipelines []Pipeline, question wire.InputQuestion) string {
	for _, pipeline := range pipelines {
		if pipeline.Name() != question.Pipeline {
			continue
		}
		if err := pipeline.CheckInput(question.Input); err != nil {
			return err.Error()
		}
	}
	return ""
}
