package gpucheck

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"

	"github.com/spillway-ml/spillway/predictor"
	executor "github.com/spillway-ml/spillway/workers/exec"
)

const peaksMicroBatches = 4

func peaksTrials() []trial { return from("medium", 32, 16, 8) }

// peaks compares the predicted peaks of all trainings of the steps so far, and of two others, with what was measured.
func peaks(ctx context.Context, s Setup, r *Recorder) error {
	report, err := readReport(s.Report)
	if err != nil {
		return err
	}
	compare := func(name string, t predictor.Training) error {
		return r.Figure("peak of a part that is farthest off: "+name, 100*peakError(t), "%", peakBar)
	}
	for _, earlier := range report.Steps {
		for _, t := range earlier.Trainings {
			if err := compare(t.Name, t.Training); err != nil {
				return err
			}
		}
	}
	convolutions := recipe{
		file: "others.py", function: "convolutions", data: "convolutions", batch: 64, microBatches: 4, steps: 6,
	}
	type trained struct {
		name  string
		how   recipe
		parts int
	}
	cases := []trained{{"convolutions in two parts", convolutions, 2}}
	if s.Device == executor.CPU { // on a busy one a part may get almost nothing, of which any prediction is far off
		convolutions.batch, convolutions.microBatches, convolutions.steps = 32, 1, fewSteps
		cases = []trained{{"unsplit convolutions", convolutions, 1}}
	} else {
		unsplit := trained{"an unsplit transformer", s.tried(peaksTrials(), alone(peaksMicroBatches)).
			recipe(peaksMicroBatches), 1}
		if s.BFloat16 {
			unsplit.name, unsplit.how.precision = "an unsplit transformer in bfloat16", executor.BFloat16
		}
		cases = append(cases, unsplit)
	}
	for _, one := range cases {
		result, err := train(ctx, s, r, one.name, one.how, one.parts, 0)
		if err != nil {
			return err
		}
		if err := compare(one.name, result.Training); err != nil {
			return err
		}
	}
	return nil
}

// peakError is what the predicted peak of a part is farthest off, relative to the measured one; infinite for a training
// without parts, of which nothing was compared.
func peakError(t predictor.Training) float64 {
	if len(t.Parts) == 0 {
		return math.Inf(1)
	}
	worst := 0.0
	for _, p := range t.Parts {
		worst = max(worst, math.Abs(float64(p.PredictedPeakBytes)/float64(p.PeakBytes)-1))
	}
	return worst
}

func readReport(path string) (Report, error) {
	var report Report
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		return report, fmt.Errorf("read what earlier steps found: %w", err)
	}
	return report, nil
}
