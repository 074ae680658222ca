package exec

import (
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/workers/schedule"
)

// StageError says which stage failed, and at what.
type StageError struct {
	// Instruction has the stage, the micro-batch and what was to be done.
	Instruction schedule.Instruction
	// Err is why.
	Err error
}

// Error names the instruction and the reason.
func (e *StageError) Error() string { return fmt.Sprintf("%v: %v", e.Instruction, e.Err) }

// Unwrap returns the reason.
func (e *StageError) Unwrap() error { return e.Err }

// ErrRequest is matched by errors about what was asked for, such as a model whose code fails, or a batch of more
// samples than there are: they come again until somebody changes it.
var ErrRequest = errors.New("what was asked for cannot be done")

// ErrMemory is matched by errors about a device that has too little memory for what was to be done there.
var ErrMemory = errors.New("out of memory")

// ErrMissing is wrapped by the error of a step for which somebody gave no answer.
var ErrMissing = errors.New("no answer comes from")

// ErrNoValidation is wrapped by the error of an evaluation without validation data.
var ErrNoValidation = errors.New("there are no validation data")

// ErrLoss is matched by the error of a step whose loss or gradients are infinite or not numbers. The last stage's
// Backward may return one that does: then no stage has updated anything.
var ErrLoss = errors.New("the loss is not finite")

// ErrLossBefore is matched by what an [Examiner] finds where a parameter was not finite when the step began: the step
// that made it so was an earlier one, whose loss was finite.
var ErrLossBefore = errors.New("a parameter was not finite when the step began")

// LossError says how a step diverged.
type LossError struct {
	// Step is which one, from 0.
	Step int64
	// Loss is that of the step; 0 where it is not known, as the gradients were looked at first.
	Loss float64
	// GradientNorm is the norm of all gradients; 0 where it is not known, as nothing is clipped.
	GradientNorm float64
	// Updated says that the parameters were updated before the loss was known. Where gradients are clipped and not finite,
	// they were not.
	Updated bool
	// Cause is what a stage said of a loss; nil where the engine saw it.
	Cause error
	// Found is the first tensor of the step that was not finite, where the pipeline is an [Examiner]; nil where nobody
	// looked or nothing was found.
	Found error
}

// Error tells the value that is not finite, and the tensor that was the first one; who returns it says in which step.
func (e *LossError) Error() string {
	text := fmt.Sprintf("%v: it is %v", ErrLoss, e.Loss)
	switch {
	case e.Cause != nil:
		text = fmt.Sprintf("%v: %v; the parameters are those before it", ErrLoss, e.Cause)
	case !e.Updated:
		text = fmt.Sprintf("%v: the norm of the gradients is %v, and the parameters are those before it", ErrLoss,
			e.GradientNorm)
	}
	if e.Found != nil {
		return text + "; " + e.Found.Error()
	}
	if e.Updated || e.Cause != nil {
		text += "; go on from a checkpoint with a lower learning rate or with clipped gradients"
	}
	return text
}

// Unwrap returns [ErrLoss], and what was found.
func (e *LossError) Unwrap() []error {
	if e.Found == nil {
		return []error{ErrLoss}
	}
	return []error{ErrLoss, e.Found}
}
