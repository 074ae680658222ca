package gpucheck

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// Names of the steps.
const (
	stepMachine      = "machine"
	stepInventory    = "inventory"
	stepConformance  = "conformance"
	stepLarger       = "larger"
	stepPlain        = "plain"
	stepShared       = "shared"
	stepPeaks        = "peaks"
	stepVariants     = "variants"
	stepPrecisions   = "precisions"
	stepFloat16      = "conformance-float16"
	stepBFloat16     = "conformance-bfloat16"
	stepTransformers = "transformers"
	stepAssigned     = "assigned"
)

// Limits of a whole check.
const (
	// DefaultLimit leaves a quarter of a minute of eight for starting and writing.
	DefaultLimit = 7*time.Minute + 45*time.Second
	// worthStarting is the least time that must be left for a step to be started.
	worthStarting = 10 * time.Second
)

// step is one thing that is checked.
type step struct {
	name, title string
	// limit is how long it may take; what runs then is killed with all that it started.
	limit time.Duration
	// needs says what the step cannot do without; empty is nothing.
	needs need
	// body runs in the step's own process; nil for the steps that the check does itself or by another program.
	body func(ctx context.Context, s Setup, r *Recorder) error
}

// need is what a step cannot do without.
type need int

const (
	nothing   need = iota
	aDevice        // a device that torch computes on: a GPU, or CPUs where they were asked for
	aGPU           // a GPU
	aBFloat16      // a GPU that computes in bfloat16
	aCompiler      // a device, and a torch that compiles models
)

// steps are all, those first whose outcome matters most. Their limits add up to more than a check may take: few steps
// need theirs, and the last ones are left out where they do.
func steps() []step {
	return []step{
		{name: stepInventory, title: "the GPUs that the driver names are those of nvidia-smi", limit: 30 * time.Second},
		{name: stepMachine, title: "Python, torch and the device that was assigned", limit: 75 * time.Second},
		{
			name: stepConformance, title: "the executor keeps its contract in float32", limit: 150 * time.Second,
			needs: aDevice,
		},
		{
			name: stepLarger, title: "a model that is larger than a part's memory trains in two parts",
			limit: 90 * time.Second, needs: aDevice, body: larger,
		},
		{
			name: stepPlain, title: "a step of the unsplit model beside one of plain PyTorch", limit: 75 * time.Second,
			needs: aDevice, body: plain,
		},
		{
			name: stepShared, title: "two and four parts that share one device beside the unsplit model",
			limit: 75 * time.Second, needs: aDevice, body: shared,
		},
		{
			name: stepPeaks, title: "predicted peaks of memory beside measured ones", limit: 90 * time.Second,
			needs: aDevice, body: peaks,
		},
		{
			name: stepBFloat16, title: "the executor keeps its contract in bfloat16", limit: 90 * time.Second,
			needs: aBFloat16,
		},
		{
			name: stepTransformers, title: "models of the transformers library train in two parts",
			limit: 90 * time.Second, needs: aDevice, body: library,
		},
		{
			name: stepVariants, title: "steps in micro-batches and with dropout beside those of plain PyTorch",
			limit: 75 * time.Second, needs: aDevice, body: variants,
		},
		{
			name: stepPrecisions, title: "steps in bfloat16 and float16, compiled and not, beside those of plain PyTorch",
			limit: 150 * time.Second, needs: aCompiler, body: precisions,
		},
		{
			name: stepFloat16, title: "the executor keeps its contract in float16", limit: 90 * time.Second, needs: aGPU,
		},
		{
			name: stepAssigned, title: "nothing but the assigned device was touched", limit: 10 * time.Second,
			needs: aGPU,
		},
	}
}

// StepNames are the names of all steps, in their order.
func StepNames() []string {
	var names []string
	for _, s := range steps() {
		names = append(names, s.name)
	}
	return names
}

// chosen are the steps of these names; all where there are none.
func chosen(names []string) ([]step, error) {
	if len(names) == 0 {
		return steps(), nil
	}
	var some []step
	for _, s := range steps() {
		if slices.Contains(names, s.name) {
			some = append(some, s)
		}
	}
	for _, name := range names {
		if !slices.Contains(StepNames(), name) {
			return nil, fmt.Errorf("there is no step %q; choose among %s", name, strings.Join(StepNames(), ", "))
		}
	}
	return some, nil
}

// lacking says what of its needs a machine lacks; empty when it has all.
func (s step) lacking(m Machine) string {
	switch {
	case s.needs == nothing:
		return ""
	case m.Torch == "":
		return "no Python with torch was found"
	case m.Device == "":
		return "torch finds no GPU: " + m.Why
	case s.needs == aDevice:
		return ""
	case s.needs == aCompiler && compiles(m.Torch):
		return ""
	case s.needs == aCompiler:
		return "torch " + m.Torch + " does not compile models; 2.4 and later do"
	case m.Device != exec.CUDA:
		return "it needs a GPU"
	case s.needs == aBFloat16 && !m.BFloat16:
		return "this GPU does not compute in bfloat16"
	default:
		return ""
	}
}

// Setup is what a step's process is told.
type Setup struct {
	// Step is its name, and Result the file for what it finds.
	Step   string `json:"step"`
	Result string `json:"result"`
	// Device is executor.CUDA or executor.CPU; Python the interpreter, Directory where the step may write.
	Device    string `json:"device"`
	Python    string `json:"python"`
	Directory string `json:"directory"`
	// Memory is what is free of the GPU; 0 on CPUs.
	Memory quantity.Bytes `json:"memory_bytes"`
	// BFloat16 says that the device computes in it.
	BFloat16 bool `json:"bfloat16"`
	// Report is the file of what earlier steps found.
	Report string `json:"report"`
}

// RunStep runs in this process the step of a Setup in a file, as the check starts it, and records what comes of it.
func RunStep(ctx context.Context, file string) error {
	var s Setup
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return fmt.Errorf("read what the step is told: %w", err)
	}
	for _, one := range steps() {
		if one.name != s.Step || one.body == nil {
			continue
		}
		r := &Recorder{path: s.Result, judge: s.Device == exec.CUDA}
		if err := r.save(); err != nil {
			return err
		}
		if err := one.body(ctx, s, r); err != nil {
			return err
		}
		r.result.Complete = true
		return r.save()
	}
	return fmt.Errorf("no step %q runs in a process of its own", s.Step)
}
