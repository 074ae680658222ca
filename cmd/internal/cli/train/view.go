package train

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/training"
)

// How a caller shows what a training prints.
const (
	followedByTerminal = "terminal"
	followedByLines    = "lines"
	followedByJSON     = "json"
)

// toldEvery is how often a line about the progress is written where lines are not redrawn.
const toldEvery = 10 * time.Second

// lineWidth is what a line about the progress may take where lines are not redrawn: nothing is left out.
const lineWidth = 160

// lookedEvery is how often there is a line about the progress because the validation data were looked at.
const lookedEvery = time.Second

// trainView shows a training while it goes on. It may be used concurrently.
type trainView struct {
	out, err io.Writer
	style    display.Style
	kind     string // as --followed
	followed bool   // the caller tells the end
	quiet    bool
	prefix   string // goes before a line that is redrawn, suffix after it
	suffix   string

	mutex      sync.Mutex
	open       bool // a line that is redrawn has no end yet
	toldAt     time.Time
	now        predictor.Training
	checkpoint string
	step       int64
}

func newTrainView(t *tool.Tool, flags *trainFlags) *trainView {
	v := &trainView{
		out: t.Out, err: t.Err, kind: followedByLines, quiet: t.Quiet, followed: flags.followed != "",
		prefix: "\r\x1b[K",
	}
	v.style, _ = t.StyleOf(t.Out)
	switch {
	case v.followed:
		v.kind, v.prefix, v.suffix = flags.followed, "", "\r" // a log keeps the last state of such a line
	case flags.json:
		v.kind = followedByJSON
	case tool.IsTerminal(t.Out):
		v.kind = followedByTerminal
	}
	return v
}

// observer returns what tells the view.
func (v *trainView) observer() training.Observer {
	return training.Observer{Planned: v.planned, Progressed: v.progressed, Checkpointed: v.checkpointed}
}

// planning says that the plan is being made, which takes a while.
func (v *trainView) planning() {
	if v.quiet || v.kind == followedByJSON {
		return
	}
	v.mutex.Lock()
	defer v.mutex.Unlock()
	display.Printf(v.out, "planning: the model is measured, and how it is divided is tried\n")
}

func (v *trainView) planned(plan predictor.Training) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.now = plan
	if v.kind == followedByJSON {
		v.line(map[string]any{"plan": plan})
		return
	}
	if v.quiet {
		return
	}
	for _, line := range append(display.TrainingPlan(plan, v.style), "") {
		display.Printf(v.out, "%s\n", display.Own(line))
	}
}

// trainingProgress is how far a training is, as JSON.
type trainingProgress struct {
	Step             int64   `json:"step"`
	TotalSteps       int64   `json:"total_steps"`
	Loss             float64 `json:"loss"`
	SamplesPerSecond float64 `json:"samples_per_second"`
	StepSeconds      float64 `json:"step_seconds"`
	Bubble           float64 `json:"bubble"`
	// DataShare is the part of the time in which batches were waited for, from 0 to 1.
	DataShare float64 `json:"data_share"`
	// TokensPerSecond, the part of the devices' products of matrices that the model takes, and how long the rest takes; 0
	// where they are not known.
	TokensPerSecond float64 `json:"tokens_per_second,omitempty"`
	Utilization     float64 `json:"mfu,omitempty"`
	SecondsLeft     float64 `json:"seconds_left,omitempty"`
	// Validation is the newest look at the validation data.
	Validation *display.Validation `json:"validation,omitempty"`
}

// validationOf is an evaluation for people and for JSON; nil of none.
func validationOf(e *training.Evaluated) *display.Validation {
	if e == nil {
		return nil
	}
	return &display.Validation{Step: e.Step, Numbers: e.Numbers()}
}

func (v *trainView) progressed(p training.Progress) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.now = p.Training
	switch {
	case v.kind == followedByJSON:
		v.line(map[string]any{"progress": trainingProgress{
			Step: p.Training.Steps, TotalSteps: p.Training.TotalSteps, Loss: p.Loss, SamplesPerSecond: p.SamplesPerSecond,
			StepSeconds: p.Training.StepSeconds, Bubble: p.Training.Bubble, DataShare: p.Data,
			Validation: validationOf(p.Validation), TokensPerSecond: p.TokensPerSecond, Utilization: p.Utilization,
			SecondsLeft: p.Left.Seconds(),
		}})
	case v.quiet:
	case v.kind == followedByTerminal:
		display.Printf(v.out, "%s", display.Own(v.prefix+
			display.TrainingLine(nowOf(p), v.style)+v.suffix))
		v.open = true
	case time.Since(v.toldAt) >= toldEvery || p.Training.Steps >= p.Training.TotalSteps ||
		p.Validation != nil && p.Validation.Step == p.Training.Steps && time.Since(v.toldAt) >= lookedEvery:
		v.toldAt = time.Now()
		style := v.style
		style.Width = max(style.Width, lineWidth)
		display.Printf(v.out, "%s\n", display.Own(display.TrainingLine(nowOf(p), style)))
	}
}

// bestOf is the best evaluation of a training; nil where none was finite.
func bestOf(result training.Result) *display.Best {
	if result.Best == nil || result.Best.BestStep == 0 {
		return nil
	}
	return &display.Best{Metric: result.Best.Goal, Value: result.Best.Best, Step: result.Best.BestStep}
}

// nowOf is what a line about the progress says.
func nowOf(p training.Progress) display.TrainingNow {
	return display.TrainingNow{
		Training: p.Training, Loss: p.Loss, SamplesPerSecond: p.SamplesPerSecond, Validation: validationOf(p.Validation),
		TokensPerSecond: p.TokensPerSecond, Utilization: p.Utilization, Left: p.Left,
	}
}

func (v *trainView) checkpointed(directory string, step int64) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.checkpoint, v.step = directory, step
	if v.kind == followedByJSON && !v.followed { // of an attempt, the directory is gone with it
		v.line(map[string]any{"checkpoint": map[string]any{"directory": directory, "step": step}})
	}
}

// last returns the last checkpoint and how far the training is.
func (v *trainView) last() (checkpoint string, step int64, now predictor.Training) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	return v.checkpoint, v.step, v.now
}

// end shows the result, unless the caller does.
func (v *trainView) end(end display.Trained) error {
	v.finish()
	if v.followed {
		return nil
	}
	return tellTrained(v.out, end, v.style, v.kind == followedByJSON)
}

// tellTrained writes the result of a training.
func tellTrained(out io.Writer, end display.Trained, style display.Style, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(display.CleanWriter{To: out}).Encode(map[string]any{"result": end})
	}
	return display.TryPrintf(out, "%s\n", display.Own(strings.Join(display.TrainingEnd(end, style), "\n")))
}

// line writes one JSON object. The mutex is held.
func (v *trainView) line(object map[string]any) {
	// a display that is gone stops no training; numbers that JSON has not stop it earlier
	_ = json.NewEncoder(display.CleanWriter{To: v.out}).Encode(object)
}

// note writes a line about the training to standard error.
func (v *trainView) note(format string, args ...any) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.endLine()
	if !v.quiet {
		display.Printf(v.err, "spillway: "+format+"\n", args...)
	}
}

// finish ends a line that is redrawn.
func (v *trainView) finish() {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.endLine()
}

func (v *trainView) endLine() {
	if v.open {
		display.Printf(v.out, "\n")
		v.open = false
	}
}

// logger returns a logger of what is done and what the model prints.
func (v *trainView) logger() *slog.Logger { return slog.New(trainLog{v}) }

// trainLog writes what a model prints to standard error as it is, and what is done as notes.
type trainLog struct{ view *trainView }

// Enabled takes what models print, too, which is logged at debug level.
func (trainLog) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs leaves the attributes out.
func (l trainLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup leaves the group out.
func (l trainLog) WithGroup(string) slog.Handler { return l }

// Handle writes one line.
func (l trainLog) Handle(_ context.Context, record slog.Record) error {
	printed, isPrinted := "", false
	text := record.Message
	record.Attrs(func(attr slog.Attr) bool {
		if attr.Key == "line" {
			printed, isPrinted = attr.Value.String(), true
		}
		text += " " + attr.String()
		return true
	})
	switch {
	case isPrinted:
		l.view.mutex.Lock()
		defer l.view.mutex.Unlock()
		l.view.endLine()
		return display.TryPrintf(l.view.err, "%s\n", display.Own(display.CleanLine(printed)))
	case record.Level >= slog.LevelInfo:
		l.view.note("%s", display.CleanLine(text))
	}
	return nil
}
