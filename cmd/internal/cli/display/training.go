package display

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/partition/appraisal"
)

// TrainingPlan returns the lines that tell how a training is divided, before it begins.
func TrainingPlan(plan predictor.Training, s Style) []string {
	text := fmt.Sprintf("a step of %s takes %s: %s, %s", Count(plan.Batch, "sample"), brief(plan.PredictedStepSeconds),
		replicasOf(plan)+Count(len(plan.Parts), "part"), batches(plan.MicroBatches))
	if len(plan.Parts) > 1 {
		text += ", schedule " + Clean(plan.Schedule)
	}
	if on := TrainingHosts(plan); on != "" {
		text += ", " + on
	}
	lines := append(wrapped("plan   ", text, tableWidth),
		wrapped("why    ", cmp.Or(plan.Reason, "it was asked for"), tableWidth)...)
	lines = append(append(lines, ""), partLines(plan, s)...)
	if len(plan.Alternatives) > 0 {
		lines = append(append(lines, ""), alternativeLines(plan, s)...)
	}
	return lines
}

// TrainingHosts says on which hosts the ranks of a training run; empty where they are all on the attempt's.
func TrainingHosts(plan predictor.Training) string {
	if len(plan.Hosts) < 2 {
		return ""
	}
	names := make([]string, len(plan.Hosts))
	for i, host := range plan.Hosts {
		names[i] = fmt.Sprintf("%s (%s)", Clean(host.Name), Count(host.Ranks, "rank"))
	}
	return "on " + strings.Join(names, " and ")
}

// replicasOf says how many replicas a plan has, before their parts; empty for one.
func replicasOf(plan predictor.Training) string {
	if plan.Replicas < 2 || plan.Sharding == "" || plan.Sharding == "none" {
		return copiesOf(plan.Replicas)
	}
	return fmt.Sprintf("%s that divide the %s, of ", Count(plan.Replicas, "replica"), Clean(plan.Sharding))
}

// copiesOf is a number of replicas before their parts; empty for one.
func copiesOf(replicas int) string {
	if replicas < 2 {
		return ""
	}
	return Count(replicas, "replica") + " of "
}

// partLines tell each part with its device, its operations and its memory.
func partLines(plan predictor.Training, s Style) []string {
	t := newTable("part", "device", ">ops", "first .. last operation", ">busy in a step", "peak memory", ">")
	again := false
	for i, part := range plan.Parts {
		device := s.cut(Clean(part.Device), 18)
		if part.Threads > 1 {
			device += " x" + strconv.Itoa(part.Threads)
		}
		busy := brief(part.PredictedBusySeconds)
		if part.Recompute {
			again = true
			busy += "*"
		}
		memory := appraisal.Device{PeakBytes: part.PredictedPeakBytes, MemoryBytes: part.CapacityBytes}
		bar := ""
		if part.CapacityBytes > 0 {
			bar = Style{ASCII: s.ASCII}.bar(columnsOf(memory), memoryBar, memoryBar)
		}
		t.add(strconv.Itoa(i+1), device, strconv.Itoa(part.Ops), endsOf(part), busy, bar, peak(memory))
	}
	lines := t.lines(s, "")
	if again {
		lines = append(lines, "* with activations that are computed again")
	}
	return lines
}

func endsOf(part predictor.TrainingPart) string {
	if part.First == part.Last {
		return ends([]string{part.First})
	}
	return ends([]string{part.First, part.Last})
}

func alternativeLines(plan predictor.Training, s Style) []string {
	t := newTable("other plans", ">step", ">micro-batches", ">fullest part", "why not")
	for _, other := range plan.Alternatives {
		step := "-"
		if other.StepSeconds > 0 {
			step = brief(other.StepSeconds)
		}
		t.add(copiesOf(other.Replicas)+Count(other.Partitions, "part"), step, dashed(other.MicroBatches),
			other.PeakBytes.String(), s.cut(Clean(other.Reason), 48))
	}
	return t.lines(s, "")
}

// progressBar is how wide the bar of a training's progress is.
const progressBar = 16

// TrainingNow is how far a training is.
type TrainingNow struct {
	predictor.Training
	// Loss is that of the last step.
	Loss float64
	// SamplesPerSecond is the speed, TokensPerSecond that of tokens; 0 without such.
	SamplesPerSecond float64
	TokensPerSecond  float64
	// Utilization is the part of the devices' products of matrices that the model takes, from 0; 0 is not known.
	Utilization float64
	// Left is how long the rest takes; 0 is not known.
	Left time.Duration
	// Validation is the newest look at the validation data; nil before the first.
	Validation *Validation
}

// Validation is what a look at the validation data found.
type Validation struct {
	// Step is after how many steps that was.
	Step int64 `json:"step"`
	// Numbers are validation_loss and the metrics.
	Numbers map[string]float64 `json:"numbers"`
}

// Best is the best look at the validation data.
type Best struct {
	// Metric says by which number, "min:NAME" or "max:NAME", Value what it was and Step after how many steps.
	Metric string  `json:"metric"`
	Value  float64 `json:"value"`
	Step   int64   `json:"step"`
}

// String lists the numbers, the loss first.
func (v Validation) String() string {
	const first = "validation_loss"
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.Numbers)) {
		part := Clean(name) + " " + number(v.Numbers[name])
		if name == first {
			parts = slices.Insert(parts, 0, part)
		} else {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "  ")
}

// TrainingLine returns one line that says how far a training is. It fits the style's width; what matters least is left
// out first.
func TrainingLine(now TrainingNow, s Style) string {
	parts := []string{
		fmt.Sprintf("step %d/%d", now.Steps, now.TotalSteps),
		"loss " + number(now.Loss),
	}
	if now.Validation != nil {
		parts = append(parts, now.Validation.String())
	}
	parts = append(parts, number(now.SamplesPerSecond)+" samples/s")
	if now.TokensPerSecond > 0 {
		parts = append(parts, number(now.TokensPerSecond)+" tokens/s")
	}
	if now.StepSeconds > 0 {
		parts = append(parts, brief(now.StepSeconds)+" a step", remaining(now))
		if now.Utilization > 0 {
			parts = append(parts, "MFU "+percent(now.Utilization))
		}
		parts = append(parts, fmt.Sprintf("plan %s", brief(now.PredictedStepSeconds)))
		if len(now.Parts) > 1 {
			parts = append(parts, "bubble "+percent(now.Bubble))
		}
	}
	width := s.columns()
	line := ""
	for _, part := range parts {
		longer := strings.TrimPrefix(line+"  "+part, "  ")
		if len(longer) > width {
			break
		}
		line = longer
	}
	if width-len(line) >= progressBar+2 && now.TotalSteps > 0 {
		line = s.bar(int(now.Steps*progressBar/now.TotalSteps), progressBar, progressBar) + "  " + line
	}
	return cutPlain(line, width, s)
}

// cutPlain cuts a line that has no colours; those that have were measured before.
func cutPlain(line string, width int, s Style) string {
	if s.Color {
		return line
	}
	return cut(line, width)
}

// remaining is the time that the rest takes.
func remaining(now TrainingNow) string {
	left := float64(max(now.TotalSteps-now.Steps, 0)) * now.StepSeconds
	if left > 0 && now.Left > 0 {
		left = now.Left.Seconds()
	}
	if left == 0 {
		return "done"
	}
	return seconds(left) + " left"
}

// number writes a number with four digits.
func number(value float64) string {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return strconv.FormatFloat(value, 'f', -1, 64)
	}
	if math.Abs(value) >= 1000 && math.Abs(value) < 1e9 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 4, 64)
}

// The size of a curve of losses.
const (
	curveRows    = 6
	curveColumns = 60
)

// LossCurve draws losses by step, from left to right: each column is the mean of its steps. It is empty for less than
// two finite losses.
func LossCurve(losses []float64, s Style) []string {
	values := columnsOfCurve(losses, min(curveColumns, s.columns()-12))
	if len(values) < 2 {
		return nil
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, value := range values {
		low, high = min(low, value), max(high, value)
	}
	dot, bar := "•", "│"
	if s.ASCII {
		dot, bar = "*", "|"
	}
	rows := make([][]string, curveRows)
	for r := range rows {
		rows[r] = strings.Split(strings.Repeat(" ", len(values)), "")
	}
	for column, value := range values {
		row := 0
		if high > low {
			row = int(math.Round((high - value) / (high - low) * (curveRows - 1)))
		}
		rows[row][column] = dot
	}
	lines := make([]string, 0, curveRows)
	for r, row := range rows {
		label := ""
		switch r {
		case 0:
			label = number(high)
		case curveRows - 1:
			label = number(low)
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%9s %s", label, bar)+strings.Join(row, ""), " "))
	}
	return lines
}

// columnsOfCurve returns the means of at most most equal parts of the finite losses.
func columnsOfCurve(losses []float64, most int) []float64 {
	finite := make([]float64, 0, len(losses))
	for _, loss := range losses {
		if !math.IsNaN(loss) && !math.IsInf(loss, 0) {
			finite = append(finite, loss)
		}
	}
	columns := min(most, len(finite))
	values := make([]float64, 0, max(columns, 0))
	for c := range columns {
		first, end := c*len(finite)/columns, (c+1)*len(finite)/columns
		mean := 0.0
		for _, loss := range finite[first:end] {
			mean += loss / float64(end-first)
		}
		values = append(values, mean)
	}
	return values
}

// Trained is what a training has come to. It is what `spillway train --json` ends with.
type Trained struct {
	// Model is the file of the trained model, Checkpoint the directory of the last checkpoint.
	Model      string `json:"model"`
	Checkpoint string `json:"checkpoint"`
	// Function is the name of the Python function that makes the model; File is where.
	File     string `json:"-"`
	Function string `json:"-"`
	// Loss is the last step's; Losses are all since Resumed, thinned out to at most a few hundred where there are more.
	Loss   float64   `json:"loss"`
	Losses []float64 `json:"losses"`
	// Resumed is how many steps the checkpoint had behind it from which the training went on; 0 without one.
	Resumed int64 `json:"resumed,omitempty"`
	// Seconds is how long the training took, all included.
	Seconds float64 `json:"seconds"`
	// Training is what was planned beside what came.
	Training predictor.Training `json:"training"`
	// Validation is the last look at the validation data, Best the best of all; nil without validation data. BestModel is
	// the file of the model of the best step, where that is another one than Model's.
	Validation *Validation `json:"validation,omitempty"`
	Best       *Best       `json:"best,omitempty"`
	BestModel  string      `json:"best_model,omitempty"`
	// Run is that of the engine; empty without one.
	Run string `json:"run,omitempty"`
}

// TrainingEnd returns the lines that are left when a training is over.
func TrainingEnd(end Trained, s Style) []string {
	lines := LossCurve(end.Losses, s)
	if len(lines) > 0 {
		lines = append(lines, "")
	}
	loss := number(end.Loss)
	if len(end.Losses) > 1 {
		loss = number(end.Losses[0]) + " -> " + loss
	}
	done := end.Training
	since := ""
	if end.Resumed > 0 {
		since = fmt.Sprintf(" since the checkpoint of step %d", end.Resumed)
	}
	lines = append(lines, fmt.Sprintf("loss   %s after %s of %s, %s with the planning%s", loss,
		Count(int(done.Steps), "step"), Count(done.Batch, "sample"), seconds(end.Seconds), since))
	if end.Validation != nil {
		lines = append(lines, fmt.Sprintf("valid  %s after step %d", end.Validation, end.Validation.Step))
	}
	if b := end.Best; b != nil {
		_, name, _ := strings.Cut(b.Metric, ":")
		lines = append(lines, fmt.Sprintf("best   %s %s after step %d", Clean(name), number(b.Value), b.Step))
	}
	lines = append(lines, "model  "+Clean(end.Model))
	if end.BestModel != "" {
		lines = append(lines, "       "+Clean(end.BestModel)+" of the best step")
	}
	if end.Checkpoint != "" {
		lines = append(lines, "state  "+Clean(end.Checkpoint)+" (go on from it with --resume)")
	}
	if done.StepSeconds > 0 {
		lines = append(append(lines, ""), comparedLines(done, s)...)
	}
	if end.Function != "" && done.Executor == "torch" {
		module := strings.TrimSuffix(end.File, ".py")
		lines = append(lines, "", "in plain PyTorch:",
			fmt.Sprintf("  import torch, %s", Clean(module)),
			fmt.Sprintf("  trained = %s.%s()", Clean(module), Clean(end.Function)),
			fmt.Sprintf("  trained.load_state_dict(torch.load(%s))", strconv.Quote(end.Model)))
	}
	return lines
}

// comparedLines put what was predicted beside what was measured, of a training that has done a step.
func comparedLines(done predictor.Training, s Style) []string {
	t := newTable("", ">predicted", ">measured", ">difference")
	t.add("step", brief(done.PredictedStepSeconds), brief(done.StepSeconds),
		difference(done.PredictedStepSeconds, done.StepSeconds))
	for i, part := range done.Parts {
		if part.PeakBytes > 0 {
			t.add(fmt.Sprintf("peak memory of part %d", i+1), part.PredictedPeakBytes.String(), part.PeakBytes.String(),
				differenceOf(part.PredictedPeakBytes, part.PeakBytes))
		}
		if part.BusySeconds > 0 && len(done.Parts) > 1 {
			t.add(fmt.Sprintf("part %d busy in a step", i+1), brief(part.PredictedBusySeconds), brief(part.BusySeconds),
				difference(part.PredictedBusySeconds, part.BusySeconds))
		}
	}
	if len(done.Parts) > 1 {
		t.add("bubble", "", percent(done.Bubble), "")
	}
	return t.lines(s, "")
}

func differenceOf(predicted, measured quantity.Bytes) string {
	return difference(float64(predicted), float64(measured))
}

// difference is by how many percent the second is above the first; a dash where one of them is not known.
func difference(predicted, measured float64) string {
	if predicted <= 0 || measured <= 0 {
		return "-"
	}
	return fmt.Sprintf("%+.0f%%", 100*(measured-predicted)/predicted)
}
