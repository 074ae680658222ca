package gomlx_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// digits is the classifier of handwritten digits of package workflows/digits as blocks: images of side x side pixels,
// of which side is a multiple of 4.
func digits(side int) gomlx.Model {
	return gomlx.Model{
		Name: "digits",
		Blocks: []gomlx.Block{
			gomlx.Convolution("convolution1", 3, 1, 32), gomlx.Relu("relu1"), gomlx.MaxPool("pool1", 2),
			gomlx.Convolution("convolution2", 3, 32, 64), gomlx.Relu("relu2"), gomlx.MaxPool("pool2", 2),
			gomlx.Convolution("convolution3", 3, 64, 64), gomlx.Relu("relu3"),
			gomlx.Flatten("features"), gomlx.Dropout("dropout", 0.3), gomlx.Dense("out", side/4*(side/4)*64, 10),
		},
		Optimizer: exec.Optimizer{Kind: exec.Adam, LearningRate: 0.002},
	}
}

// strokes are images with one bright row or column, whose number is the class.
func strokes(samples, side int) gomlx.InMemory {
	random := rand.New(rand.NewPCG(1, 1))
	images, labels := gomlx.Array{Shape: []int{side, side, 1}}, gomlx.Array{}
	for range samples {
		class := random.IntN(10)
		pixels := make([]float32, side*side)
		for i := range side {
			at := class%5*side + i // a row
			if class >= 5 {
				at = i*side + class - 5
			}
			pixels[at] = 0.5 + random.Float32()/2
		}
		images.Float32, labels.Int32 = append(images.Float32, pixels...), append(labels.Int32, int32(class))
	}
	return gomlx.InMemory{Inputs: []gomlx.Array{images}, Target: labels}
}

// A model in two parts learns to tell images apart.
func Example() {
	ctx := context.Background()
	executor, err := gomlx.New(digits(8), strokes(320, 8))
	if err != nil {
		fmt.Println(err)
		return
	}
	layout := exec.Layout{
		Parts: []exec.Part{
			{Ops: []string{"convolution1", "relu1", "pool1"}, Device: exec.Device{ID: "cpu-0", Threads: 1}, InFlight: 2},
			{
				Ops:    []string{"convolution2", "relu2", "pool2", "convolution3", "relu3", "features", "dropout", "out"},
				Device: exec.Device{ID: "cpu-1", Threads: 1}, InFlight: 1,
			},
		},
		Batch: 32, MicroBatches: 4, Seed: 1,
	}
	pipeline, err := executor.Load(ctx, layout)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := pipeline.Close(); err != nil {
			fmt.Println(err)
		}
	}()
	plan, err := schedule.OneForwardOneBackward(2, layout.MicroBatches, schedule.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := exec.NewEngine(pipeline, plan, exec.EngineOptions{Layout: layout})
	if err != nil {
		fmt.Println(err)
		return
	}
	for step := range int64(30) {
		report, err := engine.Step(ctx, step)
		if err != nil {
			fmt.Println(err)
			return
		}
		if step == 0 || step == 29 {
			fmt.Println("step", step, "the loss is below a tenth:", report.Loss < 0.1)
		}
	}
	// Output:
	// step 0 the loss is below a tenth: false
	// step 29 the loss is below a tenth: true
}
