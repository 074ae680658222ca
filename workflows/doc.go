// Package workflows is the pipeline SDK. Users import it as spillway.
//
//	var Train = spillway.NewStage("train", train) // func(ctx context.Context, in TrainInput) (Model, error)
//	func Digits(ctx workflow.Context, in Input) (Report, error) {
//		model, err := Train.Run(ctx, TrainInput{...})
//
// A pipeline is an ordinary Temporal workflow function: it orders stages and must be deterministic. A stage does the
// work; it uses only its context: Put, Artifact.Get, Progress, Checkpoint and Log work the same at every venue.
package workflows
