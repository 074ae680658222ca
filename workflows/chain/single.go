package chain

import (
	"errors"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Single returns a chain of one stage of the same name, whose command comes with each run: the runs of one name are
// runs of one app and one build, whatever they run, so that what was learnt of it stays. It fails when name is no name
// of a stage.
func Single(name string) (Chain, error) {
	if err := checkStage(name); err != nil {
		return Chain{}, fmt.Errorf("command: %w", err)
	}
	return Chain{definition{Name: name, Stages: []stage{{Name: name}}, Single: true}}, nil
}

// SingleInput is the input of the pipeline of a Single. All but Command may be left out.
type SingleInput struct {
	// Command is what to run.
	Command wire.Command `json:"command"`
	// CPU and Memory are what an attempt is given until its use is known; 0 leaves it to Spillway.
	CPU    quantity.Milli `json:"cpu_milli,omitempty"`
	Memory quantity.Bytes `json:"memory_bytes,omitempty"`
	// GPU is which GPUs an attempt gets for itself; the zero value is none.
	GPU quantity.GPUs `json:"gpu,omitzero"`
	// Timeout bounds one attempt; 0 means none.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// MaxAttempts is how often the command may fail; 0 means engine.DefaultMaxAttempts.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Tuning says how the command is tuned; nil runs it once.
	Tuning *Tuning `json:"tuning,omitempty"`
}

// Validate refuses what no host can run.
func (in SingleInput) Validate() error {
	switch {
	case len(in.Command.Arguments) == 0 || in.Command.Arguments[0] == "":
		return errors.New("command has no program: give it after --, such as -- python train.py")
	case in.CPU < 0 || in.CPU > maxCores*quantity.Core:
		return fmt.Errorf("cpu is %s cores: give 0 to %d", in.CPU, maxCores)
	case in.Memory < 0 || in.Memory > maxMemory:
		return fmt.Errorf("memory is %s: give 0 to %s", in.Memory, quantity.Bytes(maxMemory))
	case in.GPU.Check() != nil:
		return fmt.Errorf("gpu: %w", in.GPU.Check())
	case in.Timeout < 0 || in.Timeout > longest:
		return fmt.Errorf("timeout is %s: give 0 to %s", in.Timeout, longest)
	case in.MaxAttempts < 0 || in.MaxAttempts > maxAttempts:
		return fmt.Errorf("max_attempts is %d: give 0 to %d", in.MaxAttempts, maxAttempts)
	case in.Tuning != nil:
		return in.validateTuning()
	}
	return nil
}

// stage is the stage of this name that runs the command. It never takes a result of another run: whoever runs a command
// wants it to run, and one that runs in place depends on what lies there.
func (in SingleInput) stage(name string) *stage {
	return &stage{
		Name: name, CPU: in.CPU, Memory: in.Memory, GPU: in.GPU, Timeout: in.Timeout, MaxAttempts: in.MaxAttempts,
		NoCache: true,
	}
}
