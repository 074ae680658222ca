package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows"
)

// checkedPipeline is a pipeline whose input has a method Validate.
type checkedPipeline interface {
	// CheckInput returns why the pipeline does not take an encoded input.
	CheckInput(input json.RawMessage) error
}

// openChecks returns the ends of the engine's pipes on which it asks for checks of inputs.
func openChecks() (questions, answers *os.File, err error) {
	if !isPipe(wire.ChecksInput) || !isPipe(wire.ChecksOutput) {
		return nil, nil, fmt.Errorf("%s is set, but file descriptors %d and %d are no pipes: only the engine sets it",
			wire.ChecksEnvironment, wire.ChecksInput, wire.ChecksOutput)
	}
	syscall.CloseOnExec(wire.ChecksInput)
	syscall.CloseOnExec(wire.ChecksOutput)
	return os.NewFile(wire.ChecksInput, "checks-in"), os.NewFile(wire.ChecksOutput, "checks-out"), nil
}

// answerChecks answers questions until there are no more, each on its own, so that a Validate which hangs holds up no
// other.
func answerChecks(questions io.Reader, answers io.Writer, pipelines []workflows.AnyPipeline) error {
	var writing sync.Mutex
	encoder := json.NewEncoder(answers)
	decoder := json.NewDecoder(questions)
	for {
		var question wire.CheckInput
		if err := decoder.Decode(&question); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("read which input to check: %w", err)
		}
		go func() {
			answer := wire.CheckedInput{ID: question.ID, Refusal: refusal(pipelines, question)}
			writing.Lock()
			defer writing.Unlock()
			_ = encoder.Encode(answer) // the engine that asked is gone, and so will this process be
		}()
	}
}

// refusal is why the pipeline does not take the input; empty when it does.
func refusal(pipelines []workflows.AnyPipeline, question wire.CheckInput) string {
	for _, pipeline := range pipelines {
		if pipeline.Name() != question.Pipeline {
			continue
		}
		if checked, ok := pipeline.(checkedPipeline); ok {
			if err := checked.CheckInput(question.Input); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}
