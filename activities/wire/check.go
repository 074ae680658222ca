package wire

import "encoding/json"

// ChecksEnvironment is "1" when a workflow worker is asked for checks of inputs on file descriptor QuestionsFD, and
// answers on AnswersFD: one JSON message per line. Only a worker is asked of which some Pipeline Validates, and only
// once it has sent InputAnswer{}, which says that it reads questions now.
const ChecksEnvironment = "SPILLWAY_CHECKS"

// File descriptors of a workflow worker that checks inputs.
const (
	QuestionsFD = 3
	AnswersFD   = 4
)

// InputAnswerMax is how long the line of an InputAnswer may be, in bytes; RefusalMax is how much of that its Refusal
// may take before it is encoded.
const (
	InputAnswerMax = 64 << 10
	RefusalMax     = 8 << 10
)

// InputQuestion asks whether the code of a pipeline takes an input, before a run is started with it.
type InputQuestion struct {
	// ID names the question in its answer; at least 1.
	ID       uint64          `json:"id"`
	Pipeline string          `json:"pipeline"`
	Input    json.RawMessage `json:"input"`
}

// InputAnswer answers an InputQuestion. Answers may come in another order than the questions.
type InputAnswer struct {
	ID uint64 `json:"id"`
	// Refusal says why the pipeline does not take the input; empty when it does.
	Refusal string `json:"refusal,omitempty"`
}
