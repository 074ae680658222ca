package wire

import "encoding/json"

// ChecksEnvironment is "1" when a workflow worker is asked for checks of inputs on file descriptor ChecksInput, and
// answers on ChecksOutput: one JSON message per line. Only a worker is asked of which some Pipeline Validates.
const ChecksEnvironment = "SPILLWAY_CHECKS"

// File descriptors of a workflow worker that checks inputs.
const (
	ChecksInput  = 3
	ChecksOutput = 4
)

// CheckInput asks whether the code of a pipeline takes an input, before a run is started with it.
type CheckInput struct {
	// ID names the question in its answer.
	ID       uint64          `json:"id"`
	Pipeline string          `json:"pipeline"`
	Input    json.RawMessage `json:"input"`
}

// CheckedInput answers a CheckInput. Answers may come in another order than the questions.
type CheckedInput struct {
	ID uint64 `json:"id"`
	// Refusal says why the pipeline does not take the input; empty when it does.
	Refusal string `json:"refusal,omitempty"`
}
