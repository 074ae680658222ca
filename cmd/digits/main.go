// Command digits is the sample pipeline's binary: workflow worker, slot process and Lambda function in one, run by the
// engine.
package main

import (
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
	"github.com/spillway-ml/spillway/workflows/digits"
)

func main() {
	app.Main(app.Options{
		Name:      "digits",
		Pipelines: []app.Pipeline{workflows.NewPipeline("digits", digits.Digits)},
		Stages: []app.Stage{
			digits.Load, digits.Preprocess, digits.Tune, digits.Train, digits.Together, digits.Evaluate, digits.Score,
		},
	})
}
