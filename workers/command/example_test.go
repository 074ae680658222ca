package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
)

// A program reports a step, and its output is kept.
func ExamplePrepare() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "command-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a directory that stays is no part of the example
	options := command.Options{
		Root: filepath.Join(dir, "workspaces"), Cache: filepath.Join(dir, "cache"),
		Store: commandtest.NewStore(),
	}
	w, err := command.Prepare(ctx, options, wire.Command{
		Arguments: []string{
			"sh", "-c",
			`echo '{"progress": 1, "metrics": {"loss": 0.25}}' >$SPILLWAY_REPORT; echo trained >model`,
		},
		Outputs: []wire.CommandOutput{{Name: "model", Path: "model"}},
	}, activities.Ref{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Remove(ctx) //nolint:errcheck // Sweep would delete it
	program, err := w.Program(command.Launch{Run: "run-1", Stage: "train", Task: "train-1", Attempt: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := program.Start((*exec.Cmd).Start); err != nil { // inside limits, elsewhere
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- errors.Join(program.Command.Wait(), program.Ended()) }()
	reported := w.Follow(ctx, program.Reports, command.Listener{
		Progress: func(step, _ int, metrics map[string]float64) { fmt.Println("step", step, metrics) },
	})
	if err := errors.Join(<-ended, program.Reports.Close()); err != nil {
		fmt.Println(err)
		return
	}
	result, err := w.Collect(ctx, reported.Values)
	fmt.Println(result.Outputs["model"].Artifact.Bytes, err)
	// Output:
	// step 1 map[loss:0.25]
	// 8 <nil>
}
