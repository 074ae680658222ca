package training_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

func ExampleRun() {
	directory, err := os.MkdirTemp("", "example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(directory) }()
	result, err := training.Run(context.Background(), training.Job{
		Executor: exectest.Reference(exectest.Options{}), Partitions: 2, Devices: []exec.Device{{ID: "left"}, {ID: "right"}},
		Batch: 24, MicroBatches: 4, Epochs: 3, Optimizer: exec.Optimizer{Kind: exec.Momentum}, Directory: directory,
	}, training.Observer{
		Planned: func(t predictor.Training) {
			fmt.Println(len(t.Parts), "parts, the first begins with", t.Parts[0].First)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(result.Losses), "steps in", result.Training.MicroBatches, "micro-batches each;",
		filepath.Base(result.Checkpoint), "and", filepath.Base(result.Model))
	// Output:
	// 2 parts, the first begins with dense1
	// 30 steps in 4 micro-batches each; step-000000030 and model.safetensors
}
