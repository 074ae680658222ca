package digits

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/activities"
	spillway "github.com/spillway-ml/spillway/workflows"
)

// Raw refers to images as they were read.
type Raw struct {
	// Images refers to the images themselves.
	Images spillway.Artifact[Images] `json:"images"`
	// Count is how many there are.
	Count int `json:"count"`
}

// load reads the images that the input names.
func load(ctx context.Context, in Input) (Raw, error) {
	if err := in.Validate(); err != nil {
		return Raw{}, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	read := func() (Images, error) { return readDir(ctx, in.Dir) }
	if in.Dir == "" {
		read = sampleImages
	}
	m, err := read()
	switch {
	case err != nil && isWrong(ctx, err):
		return Raw{}, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	case err != nil:
		return Raw{}, err
	}
	spillway.Log(ctx).InfoContext(ctx, "images read", "dir", in.Dir, "images", len(m.Labels), "width", m.Width, "height",
		m.Height)
	stored, err := spillway.Put(ctx, m)
	return Raw{Images: stored, Count: len(m.Labels)}, err
}

// PreprocessInput is the input of the stage Preprocess.
type PreprocessInput struct {
	Raw
	// Seed decides the order of the images, and so which are held out.
	Seed int64 `json:"seed"`
}

// Data refers to prepared images and says which of them are for what.
type Data struct {
	// Images refers to the images themselves, shuffled.
	Images spillway.Artifact[Dataset] `json:"images"`
	// Side is the width and height of each in pixels.
	Side int `json:"side,omitempty"`
	// Count is how many there are; Train and Test divide them.
	Count int  `json:"count"`
	Train Span `json:"train"`
	Test  Span `json:"test"`
}

// preprocess makes the images square and of one scale, shuffles them, and holds a tenth out.
func preprocess(ctx context.Context, in PreprocessInput) (Data, error) {
	m, err := in.Images.Get(ctx)
	if err != nil {
		return Data{}, err
	}
	d, err := prepare(m, in.Seed)
	if err != nil {
		return Data{}, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	stored, err := spillway.Put(ctx, d)
	train, test := split(len(d.Labels))
	return Data{Images: stored, Side: d.Side, Count: len(d.Labels), Train: train, Test: test}, err
}

// TrainInput is the input of the stage Train. Its numbers are an Input's, with the defaults filled in.
type TrainInput struct {
	Data
	// Seed decides the first weights, the order of the images, their views, and dropout.
	Seed int64 `json:"seed"`
	// MaxEpochs bounds the epochs, at least 1.
	MaxEpochs int `json:"max_epochs"`
	// LearningRate is Adam's step size at the start, above 0.
	LearningRate float64 `json:"learning_rate"`
	// Dropout is the part of the features that dropout silences, below 1; 0 means DefaultDropout.
	Dropout float64 `json:"dropout,omitempty"`
	// Partitions is into how many parts the network is split; 0 is 1.
	Partitions int `json:"partitions"`
	// Average is what workers average where several train: "gradients" or "models".
	Average string `json:"average,omitempty"`
}

// Model refers to a trained network.
type Model struct {
	// Weights refers to the weights of the best epoch.
	Weights spillway.Artifact[Weights] `json:"weights"`
	// Epochs is how many epochs training took; BestEpoch is the one whose weights were kept.
	Epochs    int `json:"epochs"`
	BestEpoch int `json:"best_epoch"`
	// Loss (cross entropy, in nats) and Accuracy (0 to 1) are those of the best epoch on the validation images.
	Loss     float64 `json:"loss"`
	Accuracy float64 `json:"accuracy"`
}

// train fits the network. It saves a checkpoint after every epoch, so that an attempt that is lost costs at most one.
func train(ctx context.Context, in TrainInput) (Model, error) {
	state, err := fit(ctx, in, in.MaxEpochs)
	if errors.Is(err, errDiverges) {
		return Model{}, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	if err != nil {
		return Model{}, err
	}
	stored, err := spillway.Put(ctx, Weights{Side: state.side, Parameters: state.bestSoFar})
	return Model{
		Weights: stored, Epochs: state.epoch, BestEpoch: state.bestEpoch, Loss: state.bestLoss,
		Accuracy: state.bestAccuracy,
	}, err
}

// fit trains until so many epochs are over, or training is, from the last checkpoint on.
func fit(ctx context.Context, in TrainInput, epochs int) (state progress, err error) {
	d, err := datasetOf(ctx, in.Images)
	if err != nil {
		return state, err
	}
	trainer, err := newTrainer(d, in)
	if err != nil {
		return state, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	defer func() { err = errors.Join(err, trainer.close()) }()
	if err := trainer.load(ctx, in.Seed, in.Partitions, activities.PastTrainings(ctx)); err != nil {
		return state, err
	}
	if state, err = resume(ctx, d.Side); err != nil {
		return state, err
	}
	split := in.Partitions > 1
	if split {
		activities.Trained(ctx, trainer.report(state.epoch))
	}
	err = trainer.run(ctx, &state, epochs, func(loss, accuracy float64) error {
		spillway.Progress(ctx, state.epoch, map[string]float64{"loss": loss, "accuracy": accuracy})
		if split {
			activities.Trained(ctx, trainer.report(state.epoch))
		}
		return spillway.Checkpoint[progress]{}.Save(ctx, state)
	})
	return state, err
}

// resume returns where the last attempt was, or training before its first epoch.
func resume(ctx context.Context, side int) (progress, error) {
	state, resumed, err := spillway.Checkpoint[progress]{}.Restore(ctx)
	switch {
	case err != nil:
		return progress{}, err
	case !resumed:
		return start(side), nil
	case state.side != side:
		return progress{}, fmt.Errorf("the checkpoint is for images of side %d, the images have %d: %w", state.side, side,
			errEncoding)
	}
	spillway.Log(ctx).InfoContext(ctx, "training resumed", "epoch", state.epoch)
	return state, nil
}

// EvaluateInput is the input of the stage Evaluate.
type EvaluateInput struct {
	// Data and Model say what is measured on what.
	Data  Data  `json:"data"`
	Model Model `json:"model"`
}

// Quality is how well a network reads the held-out images.
type Quality struct {
	// Accuracy is the share of images read right, 0 to 1, and Images how many were read.
	Accuracy float64 `json:"accuracy"`
	Images   int     `json:"images"`
	// Confusion counts images by their label (first index) and by what the network reads (second index).
	Confusion [][]int `json:"confusion"`
}

// evaluate reads every held-out image as it is.
func evaluate(ctx context.Context, in EvaluateInput) (Quality, error) {
	probabilities, labels, err := read(ctx, in.Data.Images, in.Model.Weights, in.Data.Test, classify)
	if err != nil {
		return Quality{}, err
	}
	q := Quality{Images: len(labels), Confusion: make([][]int, classes)}
	for i := range q.Confusion {
		q.Confusion[i] = make([]int, classes)
	}
	for i, label := range labels {
		q.Confusion[label][likeliest(probabilities[i*classes:(i+1)*classes])]++
	}
	_, q.Accuracy = measure(probabilities, labels)
	return q, nil
}

// ScoreInput is the input of the stage Score: one shard of the images.
type ScoreInput struct {
	// Images and Weights refer to the images and to the network that labels them.
	Images  spillway.Artifact[Dataset] `json:"images"`
	Weights spillway.Artifact[Weights] `json:"weights"`
	// Shard is the number of the shard, from 0, and Span its images.
	Shard int  `json:"shard"`
	Span  Span `json:"span"`
	// Views is in how many variations each is looked at, 1 to 189; 0 is 189.
	Views int `json:"views,omitempty"`
}

// ShardScore is the labels of one shard.
type ShardScore struct {
	// Shard is the number of the shard, from 0, and First the index of its first image.
	Shard int `json:"shard"`
	First int `json:"first"`
	// Labels holds the digit given to each image.
	Labels []int `json:"labels"`
	// Confidence is the mean probability of these labels, 0 to 1.
	Confidence float64 `json:"confidence"`
	// Disagreements is how many images came with another label.
	Disagreements int `json:"disagreements"`
}

// score labels the images of one shard. It looks at each in slight variations and averages: what a network reads the
// same way when it is turned, moved and resized is more likely right, and a label that it contradicts is worth a
// second look.
func score(ctx context.Context, in ScoreInput) (ShardScore, error) {
	views := in.Views
	if views == 0 {
		views = DefaultViews
	}
	probabilities, labels, err := read(ctx, in.Images, in.Weights, in.Span,
		func(ctx context.Context, e *engine, parameters []float32, d Dataset, span Span) ([]float32, error) {
			return classifyViews(ctx, e, parameters, d, span, views)
		})
	if err != nil {
		return ShardScore{}, fmt.Errorf("shard %d: %w", in.Shard, err)
	}
	out := ShardScore{Shard: in.Shard, First: in.Span.First, Labels: make([]int, len(labels))}
	for i, label := range labels {
		one := probabilities[i*classes : (i+1)*classes]
		out.Labels[i] = likeliest(one)
		out.Confidence += float64(one[out.Labels[i]]) / float64(len(labels))
		if out.Labels[i] != int(label) {
			out.Disagreements++
		}
	}
	return out, nil
}

// read classifies a span of stored images with a stored network and returns its probabilities and the labels that the
// images came with.
func read(
	ctx context.Context, images spillway.Artifact[Dataset], weights spillway.Artifact[Weights], span Span,
	how func(context.Context, *engine, []float32, Dataset, Span) ([]float32, error),
) (probabilities []float32, labels []byte, err error) {
	d, err := datasetOf(ctx, images)
	if err != nil {
		return nil, nil, err
	}
	if err := d.within(span); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", spillway.ErrPermanent, err)
	}
	m, err := modelOf(ctx, weights)
	if err != nil {
		return nil, nil, err
	}
	if m.engine.network.side != d.Side {
		return nil, nil, fmt.Errorf("the network reads images of side %d, these have %d: train one on them: %w",
			m.engine.network.side, d.Side, spillway.ErrPermanent)
	}
	err = m.use(func(e *engine, parameters []float32) error {
		probabilities, err = how(ctx, e, parameters, d, span)
		return err
	})
	return probabilities, d.Labels[span.First : span.First+span.Count], err
}
