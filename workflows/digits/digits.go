// Package digits is Spillway's sample pipeline: it learns to read handwritten digits and then labels every image it was
// given.
package digits

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"

	"go.temporal.io/sdk/workflow"

	spillway "github.com/spillway-ml/spillway/workflows"
)

// The stages, in the order in which a run calls them.
var (
	Load       = spillway.NewStage("load", load)
	Preprocess = spillway.NewStage("preprocess", preprocess)
	Tune       = spillway.NewStage("tune", tune)
	Train      = spillway.NewStage("train", train)
	Together   = spillway.NewParallelStage("train-together", trainTogether)
	Evaluate   = spillway.NewStage("evaluate", evaluate)
	Score      = spillway.NewStage("score", score)
)

// Digits is the pipeline: it tries how a network learns best, trains it on nine tenths of the images, measures it on
// the rest, and meanwhile labels all of them.
func Digits(ctx workflow.Context, in Input) (Report, error) {
	in = in.withDefaults()
	raw, err := Load.Run(ctx, in)
	if err != nil {
		return Report{}, err
	}
	data, err := Preprocess.Run(ctx, PreprocessInput{Raw: raw, Seed: in.Seed})
	if err != nil {
		return Report{}, err
	}
	in = in.withEffort(data)
	training := TrainInput{
		Data: data, Seed: in.Seed, MaxEpochs: in.MaxEpochs, LearningRate: in.LearningRate, Partitions: in.Partitions,
	}
	var found *Tuned
	if in.Trials > 0 {
		best, err := spillway.Tune(ctx, Tune, search(data, in))
		if err != nil {
			return Report{}, err
		}
		found = tuned(best)
		training.LearningRate, training.Dropout = found.LearningRate, found.Dropout
	}
	model, err := learn(ctx, in, training)
	if err != nil {
		return Report{}, err
	}
	evaluated := Evaluate.Start(ctx, EvaluateInput{Data: data, Model: model})
	scores, err := Score.Map(ctx, shards(data, model, in.Shards, in.Views))
	if err != nil {
		return Report{}, err
	}
	quality, err := evaluated.Get(ctx)
	if err != nil {
		return Report{}, err
	}
	return report(found, model, quality, scores, in.Views), nil
}

// learn trains the network, in one task or by several workers.
func learn(ctx workflow.Context, in Input, train TrainInput) (Model, error) {
	if in.Workers <= 1 {
		return Train.Run(ctx, train)
	}
	train.Average = cmp.Or(in.Average, averageGradients)
	return Together.Run(ctx, train, in.Workers)
}

// The values that zero fields of an Input stand for. Those of MaxEpochs and Views are for small data: see Input.
const (
	DefaultShards       = 320
	DefaultMaxEpochs    = 30
	DefaultViews        = 189
	DefaultSeed         = 1
	DefaultLearningRate = 0.002
	DefaultPartitions   = 1
	// DefaultTrials are tried where a training has at least tuneEpochs epochs, and no learning rate is given.
	DefaultTrials = 27
	// DefaultDropout is the part of the features that dropout silences (Srivastava et al., 2014,
	// https://jmlr.org/papers/v15/srivastava14a.html).
	DefaultDropout = 0.3
)

// The largest values that Validate accepts.
const (
	maxShards     = 100_000
	maxMaxEpochs  = 10_000
	maxPartitions = 4 // one for each layer
	maxTrials     = 1000
	maxViews      = DefaultViews
	maxWorkers    = 16
)

// The most pixels that training and scoring look at by default, over all epochs and over all views: about seven minutes
// of a core of 2026, and one. The 1,797 images of 8x8 pixels get DefaultMaxEpochs and DefaultViews of them, 70,000 of
// 28x28 one of each.
const (
	trainingPixels = 50_000_000
	scoringPixels  = 22_000_000
)

// Input is what a run is started with. The zero value is valid: it reads the 1,797 images of 8x8 pixels that the
// package brings along.
type Input struct {
	// Dir is the absolute path of a directory in the format of MNIST: train-images-idx3-ubyte and train-labels-idx1-ubyte,
	// and t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte where they exist, each plain or packed (.gz). Every host that
	// runs the load stage must see it. Empty means the embedded images.
	Dir string `json:"dir,omitempty"`
	// Shards is into how many tasks the labelling of all images is divided, at most one for each image and 100,000; 0
	// means DefaultShards.
	Shards int `json:"shards,omitempty"`
	// MaxEpochs bounds training, which ends earlier when it no longer improves, 1 to 10,000; 0 means DefaultMaxEpochs,
	// and fewer for images of more than 1.7 million pixels together: as many epochs as see 50 million pixels, at least
	// 1.
	MaxEpochs int `json:"max_epochs,omitempty"`
	// Views is in how many slight variations (turned, moved, resized) an image is looked at to label it, 1 to 189; 1 is
	// the image as it is. 0 means DefaultViews, and fewer for images of more than 116,000 pixels together: as many as
	// see 22 million pixels, at least 1. The report says how many there were.
	Views int `json:"views,omitempty"`
	// Seed decides all that is random: on one kind of machine, the same seed gives the same report. 0 means DefaultSeed;
	// it is not negative.
	Seed int64 `json:"seed,omitempty"`
	// LearningRate is Adam's step size at the start of training, above 0 and at most 1; 0 means that of the best trial,
	// and DefaultLearningRate where nothing is tried.
	LearningRate float64 `json:"learning_rate,omitempty"`
	// Trials is how many learning rates and dropouts are tried before, with half of the images and for 1, 3 or 9 epochs,
	// at most 1,000; 0 means DefaultTrials, and none where LearningRate is given, training has fewer than 9 epochs, or
	// several workers train.
	Trials int `json:"trials,omitempty"`
	// Partitions is into how many parts the network is split for training, 1 to 4, which work at the same time where there
	// are as many cores; 0 means DefaultPartitions, which does not split. A split network learns the same, but for
	// rounding.
	Partitions int `json:"partitions,omitempty"`
	// Workers is how many train the network together, 1 to 16, each on a part of every batch, as tasks that may run at
	// different venues; 0 is 1. They train for all of MaxEpochs, without dropout.
	Workers int `json:"workers,omitempty"`
	// Average is what several workers average: "gradients", after each batch, by which they learn what one worker learns,
	// or "models", after each epoch, which exchanges less; empty is "gradients".
	Average string `json:"average,omitempty"`
}

// Validate refuses values that no run can use and says which are possible.
func (in Input) Validate() error {
	switch {
	case in.Dir != "" && !filepath.IsAbs(in.Dir):
		return fmt.Errorf("dir is %q: give an absolute path, such as /data/mnist, because stages run in directories of "+
			"their own, or leave it out for the images that the sample brings along", in.Dir)
	case in.Shards < 0 || in.Shards > maxShards:
		return fmt.Errorf("shards is %d: give 1 to %d, or leave it out for %d", in.Shards, maxShards, DefaultShards)
	case in.MaxEpochs < 0 || in.MaxEpochs > maxMaxEpochs:
		return fmt.Errorf("max_epochs is %d: give 1 to %d, or leave it out for as many as the size of the images allows",
			in.MaxEpochs, maxMaxEpochs)
	case in.Views < 0 || in.Views > maxViews:
		return fmt.Errorf("views is %d: give 1 to %d, or leave it out for as many as the size of the images allows",
			in.Views, maxViews)
	case in.Seed < 0:
		return fmt.Errorf("seed is %d: give a whole number above 0, or leave it out for %d", in.Seed, DefaultSeed)
	case math.IsNaN(in.LearningRate) || in.LearningRate < 0 || in.LearningRate > 1:
		return fmt.Errorf("learning_rate is %g: give a number above 0 and at most 1, or leave it out for %g", in.LearningRate,
			DefaultLearningRate)
	case in.Trials < 0 || in.Trials > maxTrials:
		return fmt.Errorf("trials is %d: give 1 to %d, or leave it out for %d where a training has %d epochs or more",
			in.Trials, maxTrials, DefaultTrials, tuneEpochs)
	case in.Trials > 0 && in.LearningRate > 0:
		return fmt.Errorf("there are %d trials and a learning_rate of %g: leave out one of them, since trials find the other",
			in.Trials, in.LearningRate)
	case in.Partitions < 0 || in.Partitions > maxPartitions:
		return fmt.Errorf("partitions is %d: give 1 to %d, or leave it out for %d", in.Partitions, maxPartitions,
			DefaultPartitions)
	case in.Workers < 0 || in.Workers > maxWorkers:
		return fmt.Errorf("workers is %d: give 1 to %d, or leave it out for 1", in.Workers, maxWorkers)
	case in.Workers > 1 && in.Partitions > 1:
		return fmt.Errorf("workers is %d and partitions %d: give one of them, as each worker has the whole network",
			in.Workers, in.Partitions)
	case in.Workers > 1 && in.Trials > 0:
		return fmt.Errorf("workers is %d and trials %d: give one of them, as trials choose a dropout, and several workers "+
			"train without one", in.Workers, in.Trials)
	case in.Average != "" && in.Average != averageGradients && in.Average != averageModels:
		return fmt.Errorf("average is %q: give %q or %q, or leave it out for %q", in.Average, averageGradients,
			averageModels, averageGradients)
	}
	return nil
}

// withDefaults puts the defaults where zeros are, but for those that depend on the images: see withEffort.
func (in Input) withDefaults() Input {
	if in.Shards == 0 {
		in.Shards = DefaultShards
	}
	if in.Seed == 0 {
		in.Seed = DefaultSeed
	}
	if in.Partitions == 0 {
		in.Partitions = DefaultPartitions
	}
	return in
}

// withEffort puts the defaults that depend on the size of the images where zeros are. Prepared images that do not say
// their size are small.
func (in Input) withEffort(data Data) Input {
	pixels := max(1, data.Count*data.Side*data.Side)
	if in.MaxEpochs == 0 {
		in.MaxEpochs = min(max(trainingPixels/pixels, 1), DefaultMaxEpochs)
	}
	if in.Views == 0 {
		in.Views = min(max(scoringPixels/pixels, 1), DefaultViews)
	}
	if in.Trials == 0 && in.LearningRate == 0 && in.MaxEpochs >= tuneEpochs && in.Workers <= 1 {
		in.Trials = DefaultTrials
	}
	if in.LearningRate == 0 {
		in.LearningRate = DefaultLearningRate
	}
	return in
}

// Report is what a run found out.
type Report struct {
	// Accuracy is the share of held-out images that the network reads right, 0 to 1.
	Accuracy float64 `json:"accuracy"`
	// TestImages is how many images were held out.
	TestImages int `json:"test_images"`
	// Confusion counts the held-out images by their label (first index) and by what the network reads (second index).
	Confusion [][]int `json:"confusion"`
	// Tuned is what was found by trying; nil where nothing was tried.
	Tuned *Tuned `json:"tuned,omitempty"`
	// Epochs is how many epochs training took; BestEpoch is the one whose weights were kept, and Loss its validation loss
	// in nats.
	Epochs    int     `json:"epochs"`
	BestEpoch int     `json:"best_epoch"`
	Loss      float64 `json:"loss"`
	// Images is how many images were labelled, and Shards in how many tasks.
	Images int `json:"images"`
	Shards int `json:"shards"`
	// Views is in how many variations each of them was looked at.
	Views int `json:"views"`
	// Disagreements is how many of them got another label than they came with.
	Disagreements int `json:"disagreements"`
	// Confidence is the mean probability of the labels given, 0 to 1.
	Confidence float64 `json:"confidence"`
}

// report sums a run up.
func report(found *Tuned, model Model, quality Quality, scores []ShardScore, views int) Report {
	r := Report{
		Tuned:    found,
		Accuracy: quality.Accuracy, TestImages: quality.Images, Confusion: quality.Confusion,
		Epochs: model.Epochs, BestEpoch: model.BestEpoch, Loss: model.Loss, Shards: len(scores), Views: views,
	}
	for _, s := range scores {
		r.Images += len(s.Labels)
		r.Disagreements += s.Disagreements
		r.Confidence += s.Confidence * float64(len(s.Labels))
	}
	if r.Images > 0 {
		r.Confidence /= float64(r.Images)
	}
	return r
}

// shards divides all images evenly among at most n tasks, each image in exactly one and none without an image.
func shards(data Data, model Model, n, views int) []ScoreInput {
	n = min(n, data.Count)
	inputs := make([]ScoreInput, n)
	for i := range inputs {
		first, end := i*data.Count/n, (i+1)*data.Count/n
		inputs[i] = ScoreInput{
			Images: data.Images, Weights: model.Weights, Shard: i, Span: Span{First: first, Count: end - first}, Views: views,
		}
	}
	return inputs
}
