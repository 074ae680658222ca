package gpucheck

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
)

// Machine is what the check found to work with.
type Machine struct {
	System string `json:"system"`
	Cores  int    `json:"cores"`
	// GPUs are those that the driver names, Driver and CUDA its versions; none where NoGPUs says why.
	GPUs   []device.Device `json:"gpus,omitempty"`
	Driver string          `json:"driver,omitempty"`
	CUDA   string          `json:"cuda,omitempty"`
	NoGPUs string          `json:"no_gpus,omitempty"`
	// Executable is the Python that runs the steps, Python, Torch, TorchCUDA and Transformers are versions, empty where
	// there is none.
	Executable   string `json:"executable,omitempty"`
	Python       string `json:"python,omitempty"`
	Torch        string `json:"torch,omitempty"`
	TorchCUDA    string `json:"torch_cuda,omitempty"`
	Transformers string `json:"transformers,omitempty"`
	// Unfit says of other Pythons why they were not taken.
	Unfit []string `json:"unfit,omitempty"`
	// Device is exec.CUDA or exec.CPU, empty where there is nothing to compute on, and Why says so; Name is that of the
	// GPU, Memory what was free of it at the start, Assigned its UUID, which is all that the steps see.
	Device   string         `json:"device,omitempty"`
	Why      string         `json:"why,omitempty"`
	Name     string         `json:"name,omitempty"`
	Memory   quantity.Bytes `json:"memory_bytes,omitempty"`
	Assigned string         `json:"assigned,omitempty"`
	BFloat16 bool           `json:"bfloat16,omitempty"`
	// Seen is how many devices torch sees with Assigned as CUDA_VISIBLE_DEVICES, UUID that of the first, where it tells.
	Seen int    `json:"seen,omitempty"`
	UUID string `json:"uuid,omitempty"`
}

// Report is all that is known so far.
type Report struct {
	// Version is what was checked.
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Complete says that no step is left; Interrupted that somebody ended the check, which did what it had time for.
	Complete    bool     `json:"complete"`
	Interrupted bool     `json:"interrupted,omitempty"`
	Machine     Machine  `json:"machine"`
	Steps       []Result `json:"steps"`
}

// Failures are the names of the steps that failed.
func (r Report) Failures() []string { return r.named(Failed) }

// LeftOut are the names of the steps that a GPU could have done, had there been time.
func (r Report) LeftOut() []string {
	var names []string
	for _, s := range r.Steps {
		if s.LeftOut {
			names = append(names, s.Name)
		}
	}
	return names
}

func (r Report) named(outcome Outcome) []string {
	var names []string
	for _, s := range r.Steps {
		if s.Outcome == outcome {
			names = append(names, s.Name)
		}
	}
	return names
}

// Verdict is the report in a line.
func (r Report) Verdict() string {
	list := func(outcome Outcome) string {
		names := r.named(outcome)
		if len(names) == 0 {
			return "none " + string(outcome)
		}
		return fmt.Sprintf("%d %s (%s)", len(names), outcome, strings.Join(names, ", "))
	}
	text := list(Failed) + "; " + list(Passed) + "; " + list(Skipped)
	switch {
	case r.Interrupted:
		text += "; it was interrupted"
	case !r.Complete:
		text += "; it is going on, or the machine was lost"
	}
	return text
}

// Markdown is the report for people.
func (r Report) Markdown() string {
	var b strings.Builder
	line := func(format string, arguments ...any) { fmt.Fprintf(&b, format+"\n", arguments...) }
	line("# What works on this GPU machine\n")
	line("%s\n", r.Verdict())
	line("Spillway %s, %s, %.0f s.\n", r.Version, r.Started.UTC().Format("2006-01-02 15:04 MST"), r.Seconds)
	r.Machine.write(line)
	line("\n| step | outcome | seconds | what |\n|---|---|---|---|")
	for _, s := range r.Steps {
		outcome := s.Outcome
		if outcome == "" {
			outcome = "not known yet"
		}
		line("| %s | %s | %.0f | %s |", s.Name, outcome, s.Seconds, s.Title)
	}
	for _, s := range r.Steps {
		s.write(line)
	}
	return b.String()
}

func (m Machine) write(line func(format string, arguments ...any)) {
	line("- %s, %d cores", m.System, m.Cores)
	if m.NoGPUs != "" {
		line("- GPUs: none is seen (%s)", m.NoGPUs)
	} else if len(m.GPUs) > 0 {
		line("- driver %s, CUDA up to %s", m.Driver, m.CUDA)
	}
	for _, g := range m.GPUs {
		used := ""
		if g.UUID == m.Assigned {
			used = ", the one that is used"
		}
		line("- %s: %s, %s, %s%s", g.Label(), g.Name, g.Memory, g.UUID, used)
	}
	if m.Torch == "" {
		line("- no Python with torch")
	} else {
		cuda := "without CUDA"
		if m.TorchCUDA != "" {
			cuda = "with CUDA " + m.TorchCUDA
		}
		line("- %s: Python %s, torch %s %s", m.Executable, m.Python, m.Torch, cuda)
	}
	switch {
	case m.Device != "":
		line("- the steps compute on %s %s", m.Device, m.Name)
	case m.Why != "":
		line("- the steps have nothing to compute on: %s", m.Why)
	}
}

func (r Result) write(line func(format string, arguments ...any)) {
	if len(r.Why)+len(r.Figures)+len(r.Notes)+len(r.Trainings) == 0 {
		return
	}
	line("\n## %s: %s\n", r.Name, r.Outcome)
	for _, why := range r.Why {
		line("- **%s**", strings.ReplaceAll(strings.TrimSpace(why), "\n", "\n  "))
	}
	for _, f := range r.Figures {
		bar := ""
		if f.Bar > 0 {
			bar = fmt.Sprintf(" (at most %s)", Figure{Value: f.Bar, Unit: f.Unit})
		}
		line("- %s: %s%s", f.Name, f, bar)
	}
	for _, note := range r.Notes {
		line("- %s", strings.ReplaceAll(strings.TrimSpace(note), "\n", "\n  "))
	}
	for _, t := range r.Trainings {
		line("- %s: a step of %.1f ms (predicted %.1f), %d micro-batches, bubble %.2f", t.Name, t.StepSeconds*1e3,
			t.PredictedStepSeconds*1e3, t.MicroBatches, t.Bubble)
		for i, p := range t.Parts {
			line("  - part %d on %s, %d operations: peak %s (predicted %s)", i, p.Device, p.Ops, p.PeakBytes,
				p.PredictedPeakBytes)
		}
	}
	if r.Log != "" {
		line("\nThe end of %s:\n\n```\n%s\n```", r.LogFile, strings.ReplaceAll(r.Log, "```", "'''"))
	}
}

// String is the value with its unit.
func (f Figure) String() string {
	switch f.Unit {
	case "bytes":
		return quantity.Bytes(f.Value).String()
	case "s":
		return time.Duration(f.Value * float64(time.Second)).Round(10 * time.Microsecond).String()
	default:
		return fmt.Sprintf("%.4g %s", f.Value, f.Unit)
	}
}
