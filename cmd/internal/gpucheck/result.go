package gpucheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/predictor"
)

// Outcome is what came of a step.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Figure is something that was measured.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Unit is that of Value: "s", "bytes", "times", "%".
	Unit string `json:"unit"`
	// Bar is what Value may not be above; 0 where it is only told.
	Bar float64 `json:"bar,omitempty"`
}

// missed reports whether a figure is above its bar.
func (f Figure) missed() bool { return f.Bar > 0 && !(f.Value <= f.Bar) }

// Trained is a training that a step ran: what was planned of it, and what came.
type Trained struct {
	Name string `json:"name"`
	predictor.Training
}

// Result is what came of a step.
type Result struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Outcome is empty while it is not known.
	Outcome Outcome `json:"outcome"`
	// Why says what is missing of a step that was skipped, and what is wrong with one that failed.
	Why     []string `json:"why,omitempty"`
	Figures []Figure `json:"figures,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	// Trainings are what the step trained.
	Trainings []Trained `json:"trainings,omitempty"`
	// LeftOut says of a skipped step that the machine could have done it: there was no time for it.
	LeftOut bool `json:"left_out,omitempty"`
	// Complete says that the step's process came to its end.
	Complete bool    `json:"complete,omitempty"`
	Seconds  float64 `json:"seconds"`
	// Log is the end of what a failed step printed, LogFile all of it, relative to the report.
	Log     string `json:"log,omitempty"`
	LogFile string `json:"log_file,omitempty"`
}

// settle decides the outcome of a step that ran, from what it recorded and how its process ended: nil is well.
func (r *Result) settle(ended error) {
	for _, f := range r.Figures {
		if f.missed() {
			r.Why = append(r.Why, fmt.Sprintf("%s is %s; at most %s was wanted", f.Name, f, Figure{
				Value: f.Bar, Unit: f.Unit,
			}))
		}
	}
	switch {
	case ended != nil:
		r.Why = append(r.Why, ended.Error())
	case !r.Complete:
		r.Why = append(r.Why, "it ended before it was through")
	}
	if len(r.Why) > 0 {
		r.Outcome = Failed
		return
	}
	if r.Outcome == "" {
		r.Outcome = Passed
	}
}

// Recorder keeps what a step finds out in a file, which is whole at every moment.
type Recorder struct {
	path   string
	judge  bool // bars count
	result Result
}

// Figure records a figure; a bar above 0 counts on GPUs, the small models on CPUs are not judged.
// One that is no number is an error: nothing was compared.
func (r *Recorder) Figure(name string, value float64, unit string, bar float64) error {
	if math.IsInf(value, 0) || math.IsNaN(value) {
		return fmt.Errorf("%s: it is %v, so that there was nothing to compare", name, value)
	}
	if !r.judge {
		bar = 0
	}
	r.result.Figures = append(r.result.Figures, Figure{Name: name, Value: value, Unit: unit, Bar: bar})
	return r.save()
}

// Note records a sentence.
func (r *Recorder) Note(format string, arguments ...any) error {
	r.result.Notes = append(r.result.Notes, fmt.Sprintf(format, arguments...))
	return r.save()
}

// Trained records a training.
func (r *Recorder) Trained(name string, t predictor.Training) error {
	r.result.Trainings = append(r.result.Trainings, Trained{name, t})
	return r.save()
}

// Skip says that the step cannot be done on this machine, and why.
func (r *Recorder) Skip(why string) {
	r.result.Outcome, r.result.Notes = Skipped, append(r.result.Notes, why)
}

func (r *Recorder) save() error { return writeJSON(r.path, r.result) }

// writeJSON replaces a file by the JSON of a value, at once.
func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return replace(path, append(text, '\n'))
}

// replace writes a file at once and brings it to the disk.
func replace(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
