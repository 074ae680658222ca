// Package workflows is the pipeline SDK: stages, pipelines, maps, goals and artifacts. Users import it as spillway.
//
//	var Train = spillway.NewStage("train", train) // func(ctx context.Context, in TrainInput) (Model, error)
//
//	func Digits(ctx workflow.Context, in Input) (Report, error) {
//		model, err := Train.Run(ctx, TrainInput{...})
//		...
//	}
//
// A pipeline is an ordinary Temporal workflow function: it orders stages and must be deterministic. A stage does the work; it uses only its
// context: Put, Artifact.Get, Progress, Checkpoint and Log work the same at every venue.
//
// A pipeline may start child workflows of its own. One that it gives a WorkflowID must be named below its run: that of the run, from
// workflow.GetInfo(ctx).WorkflowExecution.ID, then "/" and a name. The engine refuses any other: the run waits, and the engine's log says why. A
// child without an ID is given one that will do.
package workflows
