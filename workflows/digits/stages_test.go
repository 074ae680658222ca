package digits

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// writeSample writes the first count sample images as a directory in MNIST's format.
func writeSample(t *testing.T, count int) string {
	t.Helper()
	m := someImages(t, count)
	for i := range m.Pixels {
		m.Pixels[i] = byte(int(m.Pixels[i]) * 255 / 16)
	}
	return writeDir(t, map[string][]byte{
		trainImages:         idx(magicImages, m.Pixels, uint32(count), 8, 8),
		trainLabels + ".gz": pack(t, idx(magicLabels, m.Labels, uint32(count))),
	})
}

var allStages = []app.Stage{Load, Preprocess, Tune, Train, Together, Evaluate, Score}

func TestThePipelineTrainsByTwoWorkers(t *testing.T) {
	t.Parallel()
	for _, average := range []string{averageGradients, averageModels} {
		in := Input{Dir: writeSample(t, 120), MaxEpochs: 2, Shards: 2, Views: 1, Workers: 2, Average: average}
		got, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), in, allStages...)
		if err != nil || got.Epochs != 2 || got.Images != 120 || !(got.Loss > 0 && got.Loss < 3) {
			t.Errorf("%s: %+v, %v", average, got, err)
		}
	}
}

func TestThePipelineLabelsEveryImageOfADirectory(t *testing.T) {
	t.Parallel()
	const images = 24
	in := Input{Dir: writeSample(t, images), MaxEpochs: 2, Shards: 12}
	got, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), in, allStages...)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, row := range got.Confusion {
		for _, n := range row {
			total += n
		}
	}
	if got.Images != images || got.Shards != 12 || got.Views != DefaultViews || got.Epochs != 2 || got.TestImages != 2 ||
		total != 2 {
		t.Errorf("got %+v, want %d images in 12 shards after 2 epochs, 2 of them held out", got, images)
	}
	if got.Confidence < 0.1 || got.Confidence > 1 || got.Disagreements < 0 || got.Disagreements > images {
		t.Errorf("got %+v: confidence or disagreements out of range", got)
	}
	again, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), in, allStages...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("a second run of the same seed reports something else (-first +second):\n%s", diff)
	}
}

// TestThePipelineTrainsWithWhatTrialsFound has two rungs of trials on few images; their jobs go on from checkpoints.
func TestThePipelineTrainsWithWhatTrialsFound(t *testing.T) {
	t.Parallel()
	in := Input{Dir: writeSample(t, 40), MaxEpochs: 1, Shards: 1, Views: 1, Trials: 9}
	got, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), in, allStages...)
	if err != nil {
		t.Fatal(err)
	}
	found := got.Tuned
	if found == nil || found.Trials != 9 || found.LearningRate < 2e-4 || found.LearningRate > 5e-2 ||
		found.Dropout < .05 || found.Dropout > .6 || found.Loss <= 0 || found.Failed > 0 {
		t.Fatalf("the tuning found %+v", found)
	}
	again, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), in, allStages...)
	if diff := cmp.Diff(got, again); err != nil || diff != "" {
		t.Errorf("%v: the same seed reports something else (-first +second):\n%s", err, diff)
	}
	in.Trials, in.LearningRate = 0, found.LearningRate
	if plain, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), in, allStages...); err != nil ||
		plain.Tuned != nil || plain.Loss == got.Loss {
		t.Errorf("%v: %+v is trained without the dropout that was found, and so comes to another loss", err, plain)
	}
}

// TestATrialThatDivergesIsAResult: its loss is null, which is how a tuning is told that it diverged.
func TestATrialThatDivergesIsAResult(t *testing.T) {
	t.Parallel()
	ctx := spillwaytest.Context(t)
	stored, err := spillway.Put(ctx, someData(t, 200))
	if err != nil {
		t.Fatal(err)
	}
	tried, err := tune(ctx, TuneInput{
		Data: Data{Images: stored, Count: 200, Train: Span{0, 180}}, Seed: 1, LearningRate: 1e30, Dropout: .3,
		Trial: spillway.Trial{To: 9},
	})
	if err != nil || tried.Loss != nil {
		t.Errorf("got %+v, %v", tried, err)
	}
}

func TestThePipelineFailsWithTheReasonWhenItsDirectoryIsEmpty(t *testing.T) {
	t.Parallel()
	_, err := spillwaytest.Run(t, spillway.NewPipeline("digits", Digits), Input{Dir: t.TempDir()}, allStages...)
	if err == nil || !strings.Contains(err.Error(), "put the image file and the label file of MNIST's format there") {
		t.Errorf("got %v, want an error that says what to put there", err)
	}
}

func TestAnAttemptGoesOnFromTheCheckpointOfTheLastOne(t *testing.T) {
	t.Parallel()
	ctx := spillwaytest.Context(t)
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := spillway.Put(ctx, someData(t, 200))
	if err != nil {
		t.Fatal(err)
	}
	in := TrainInput{
		Data: Data{Images: stored, Count: 200, Train: Span{0, 180}}, Seed: 1, MaxEpochs: 3,
		LearningRate: 0.002,
	}
	var checkpoints []activities.Ref
	var steps []int
	attempt.Checkpoint = func(ref activities.Ref, _ ...activities.Ref) { checkpoints = append(checkpoints, ref) }
	attempt.Progress = func(step, _ int, _ map[string]float64) { steps = append(steps, step) }
	whole, err := train(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	if len(checkpoints) != 3 {
		t.Fatalf("%d checkpoints of 3 epochs", len(checkpoints))
	}
	attempt.Resume = checkpoints[0]
	resumed, err := train(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, resumed); diff != "" {
		t.Errorf("(-whole +resumed):\n%s", diff)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 2, 3}, steps); diff != "" {
		t.Errorf("progress of both attempts (-want +got):\n%s", diff)
	}
}

func TestASplitTrainingReportsItsPlanAndHowItTurnsOut(t *testing.T) {
	t.Parallel()
	ctx := spillwaytest.Context(t)
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := spillway.Put(ctx, someData(t, 200))
	if err != nil {
		t.Fatal(err)
	}
	var reports []predictor.Training
	attempt.Trained = func(report predictor.Training) { reports = append(reports, report) }
	in := TrainInput{
		Data: Data{Images: stored, Count: 200, Train: Span{0, 180}}, Seed: 1, MaxEpochs: 2,
		LearningRate: 0.002,
	}
	if _, err := train(ctx, in); err != nil || len(reports) != 0 {
		t.Fatalf("%d reports of an unsplit training, error %v", len(reports), err)
	}
	in.Partitions = 2
	if _, err := train(ctx, in); err != nil {
		t.Fatal(err)
	}
	if len(reports) != 3 {
		t.Fatalf("%d reports, want the plan and one of each of 2 epochs", len(reports))
	}
	for epoch, r := range reports {
		ops := 0
		for _, part := range r.Parts {
			ops += part.Ops
			if measured := part.BusySeconds > 0; part.PredictedBusySeconds <= 0 || measured != (epoch > 0) {
				t.Errorf("after epoch %d: part %+v", epoch, part)
			}
		}
		if len(r.Parts) != 2 || ops != len(network{8}.blocks(DefaultDropout)) || r.Batch != 64 ||
			r.MicroBatches != microBatches ||
			r.Schedule != "1f1b" {
			t.Errorf("after epoch %d: %+v is no plan of two parts that have all layers", epoch, r)
		}
		if r.Steps != int64(2*epoch) || r.TotalSteps != 4 || r.PredictedStepSeconds <= 0 ||
			(r.StepSeconds > 0) != (epoch > 0) {
			t.Errorf("after epoch %d: %+v, want %d of 4 steps", epoch, r, 2*epoch)
		}
	}
}

func TestStagesRefuseForGoodWhatNoRetryCanMend(t *testing.T) {
	t.Parallel()
	ctx := spillwaytest.Context(t)
	few, err := spillway.Put(ctx, Images{Width: 1, Height: 1, Max: 1, Pixels: []byte{1}, Labels: []byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := spillway.Put(ctx, someData(t, 40))
	if err != nil {
		t.Fatal(err)
	}
	weights, err := spillway.Put(ctx, Weights{Side: 12, Parameters: someParameters(network{12})})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		call func() error
	}{
		{"load: a negative seed", func() error { _, err := load(ctx, Input{Seed: -1}); return err }},
		{"load: a relative directory", func() error { _, err := load(ctx, Input{Dir: "images"}); return err }},
		{"load: an empty directory", func() error { _, err := load(ctx, Input{Dir: t.TempDir()}); return err }},
		{"preprocess: one image", func() error {
			_, err := preprocess(ctx, PreprocessInput{Raw: Raw{Images: few}})
			return err
		}},
		{"train: images that are not there", func() error {
			_, err := train(ctx, TrainInput{Data: Data{Images: data, Train: Span{30, 20}}, MaxEpochs: 1})
			return err
		}},
		{"train: a learning rate that diverges", func() error {
			_, err := train(ctx, TrainInput{Data: Data{Images: data, Train: Span{0, 40}}, MaxEpochs: 20, LearningRate: 1e30})
			return err
		}},
		{"score: an empty shard", func() error {
			_, err := score(ctx, ScoreInput{Images: data, Weights: weights})
			return err
		}},
		{"score: a network for images of another size", func() error {
			_, err := score(ctx, ScoreInput{Images: data, Weights: weights, Span: Span{0, 1}})
			return err
		}},
	} {
		if err := test.call(); !errors.Is(err, spillway.ErrPermanent) {
			t.Errorf("%s: got %v, want an error that wraps ErrPermanent", test.name, err)
		}
	}
}

func TestShardsCoverEveryImageExactlyOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		images := rapid.IntRange(1, 5000).Draw(t, "images")
		n := rapid.OneOf(rapid.IntRange(1, 400), rapid.IntRange(1, maxShards)).Draw(t, "shards")
		inputs := shards(Data{Count: images}, Model{}, n, 1)
		if len(inputs) != min(n, images) {
			t.Fatalf("%d shards for %d images, want %d", len(inputs), images, min(n, images))
		}
		next := 0
		for i, in := range inputs {
			if in.Shard != i || in.Span.First != next || in.Span.Count < 1 ||
				in.Span.Count > (images+len(inputs)-1)/len(inputs) {
				t.Fatalf("shard %d of %d is %+v, want it to begin at image %d", i, len(inputs), in, next)
			}
			next += in.Span.Count
		}
		if next != images {
			t.Fatalf("shards end at image %d of %d", next, images)
		}
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		in   Input
		want string // part of the error; empty: none
	}{
		{"the zero input is valid", Input{}, ""},
		{"the largest values are valid", Input{
			Shards: maxShards, MaxEpochs: maxMaxEpochs, Seed: math.MaxInt64,
			LearningRate: 1, Partitions: maxPartitions,
		}, ""},
		{"negative shards", Input{Shards: -1}, "shards is -1: give 1 to 100000"},
		{"too many shards", Input{Shards: maxShards + 1}, "shards is 100001"},
		{"negative epochs", Input{MaxEpochs: -5}, "max_epochs is -5: give 1 to 10000, or leave it out for as many as the " +
			"size of the images allows"},
		{"too many epochs", Input{MaxEpochs: maxMaxEpochs + 1}, "max_epochs is 10001"},
		{"negative views", Input{Views: -1}, "views is -1: give 1 to 189, or leave it out for as many as the size of the " +
			"images allows"},
		{"more views than there are", Input{Views: 190}, "views is 190"},
		{"a negative seed", Input{Seed: -2}, "seed is -2"},
		{"a negative learning rate", Input{LearningRate: -0.1}, "learning_rate is -0.1"},
		{"a learning rate over 1", Input{LearningRate: 1.5}, "learning_rate is 1.5"},
		{"a learning rate that is no number", Input{LearningRate: math.NaN()}, "learning_rate is NaN"},
		{"negative partitions", Input{Partitions: -1}, "partitions is -1: give 1 to 4, or leave it out for 1"},
		{"more partitions than layers", Input{Partitions: 5}, "partitions is 5"},
		{"negative workers", Input{Workers: -1}, "workers is -1: give 1 to 16, or leave it out for 1"},
		{"too many workers", Input{Workers: 17}, "workers is 17"},
		{"workers that are split", Input{Workers: 2, Partitions: 2}, "give one of them"},
		{"workers that tune", Input{Workers: 2, Trials: 3}, "give one of them, as trials"},
		{"another average", Input{Average: "losses"}, `average is "losses"`},
		{"an infinite learning rate", Input{LearningRate: math.Inf(1)}, "learning_rate is +Inf"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := test.in.Validate()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}

func TestTheDefaultsOfEpochsAndViewsFollowTheSizeOfTheImages(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                  string
		in                    Input
		data                  Data
		epochs, views, trials int
		rate                  float64
	}{
		{"the sample", Input{}, Data{Count: 1797, Side: 8}, 30, 189, 27, 0.002},
		{"prepared by a build that did not say the side", Input{}, Data{Count: 70_000}, 30, 189, 27, 0.002},
		{"10,000 of 28x28", Input{}, Data{Count: 10_000, Side: 28}, 6, 2, 0, 0.002},
		{"70,000 of 28x28", Input{}, Data{Count: 70_000, Side: 28}, 1, 1, 0, 0.002},
		{"what is given stays", Input{MaxEpochs: 7, Views: 42}, Data{Count: 70_000, Side: 28}, 7, 42, 0, 0.002},
		{"a learning rate that is given", Input{LearningRate: .5}, Data{Count: 1797, Side: 8}, 30, 189, 0, .5},
		{"several workers", Input{Workers: 2}, Data{Count: 1797, Side: 8}, 30, 189, 0, 0.002},
		{"trials that are asked for", Input{MaxEpochs: 1, Trials: 3}, Data{Count: 1797, Side: 8}, 1, 189, 3, 0.002},
	} {
		got := test.in.withDefaults().withEffort(test.data)
		if got.MaxEpochs != test.epochs || got.Views != test.views || got.Trials != test.trials ||
			got.LearningRate != test.rate {
			t.Errorf("%s: %d epochs, %d views, %d trials and a rate of %g, want %d, %d, %d and %g", test.name, got.MaxEpochs,
				got.Views, got.Trials, got.LearningRate, test.epochs, test.views, test.trials, test.rate)
		}
	}
}

func TestScoringSeesEveryImageInAsManyViewsAsItIsTold(t *testing.T) {
	t.Parallel()
	d := someData(t, 70)
	n := network{d.Side}
	e, err := newEngine(n)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	parameters := someParameters(n)
	span := Span{First: 3, Count: 67} // more than a batch
	for _, count := range []int{1, 5, DefaultViews} {
		if count == DefaultViews {
			span.Count = 2
		}
		got, err := classifyViews(t.Context(), e, parameters, d, span, count)
		if err != nil {
			t.Fatal(err)
		}
		for i := range span.Count { // one image after the other, one view after the other
			var want [classes]float64
			for _, v := range scoringViews(d.Side, count) {
				pixels := make([]float32, d.Side*d.Side)
				v.apply(d.image(span.First+i), d.Side, pixels)
				seen, err := inBatches(t.Context(), e, parameters, pixels)
				if err != nil {
					t.Fatal(err)
				}
				for class, p := range seen {
					want[class] += float64(p) / float64(count)
				}
			}
			for class := range want {
				if math.Abs(want[class]-float64(got[i*classes+class])) > 1e-5 {
					t.Fatalf("%d views, image %d, class %d: %g, want %g", count, i, class, got[i*classes+class], want[class])
				}
			}
		}
	}
}

func TestACacheKeepsTheTwoValuesUsedLast(t *testing.T) {
	t.Parallel()
	var c cache[string]
	made := ""
	for _, key := range []string{"a", "b", "a", "c", "a", "b"} {
		got, err := c.get(key, func() (string, error) { made += key; return "value " + key, nil })
		if err != nil || got != "value "+key {
			t.Errorf("get(%q) = %q, %v", key, got, err)
		}
	}
	if made != "abcb" || len(c.entries) != cacheSize {
		t.Errorf("made %q and kept %d entries, want abcb and %d", made, len(c.entries), cacheSize)
	}
	failure := errors.New("no")
	if _, err := c.get("d", func() (string, error) { return "", failure }); !errors.Is(err, failure) {
		t.Errorf("got %v, want the error of what makes the value", err)
	}
	if got, err := c.get("d", func() (string, error) { return "second try", nil }); err != nil || got != "second try" {
		t.Errorf("got %q, %v after a failure, want a second try", got, err)
	}
}

func TestACacheMakesAValueOnceForConcurrentCallers(t *testing.T) {
	t.Parallel()
	var c cache[int]
	made := 0
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := c.get("key", func() (int, error) { made++; return made, nil }); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if made != 1 {
		t.Errorf("made %d times, want once", made)
	}
}

// BenchmarkScore labels the largest of the 320 shards that the 1,797 sample images are divided into.
func BenchmarkScore(b *testing.B) {
	ctx := spillwaytest.Context(b)
	d := someData(b, 1797)
	images, err := spillway.Put(ctx, d)
	if err != nil {
		b.Fatal(err)
	}
	weights, err := spillway.Put(ctx, Weights{Side: d.Side, Parameters: someParameters(network{d.Side})})
	if err != nil {
		b.Fatal(err)
	}
	in := ScoreInput{Images: images, Weights: weights, Span: Span{Count: 6}}
	if got, err := score(ctx, in); err != nil || len(got.Labels) != 6 {
		b.Fatalf("got %+v, %v", got, err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := score(ctx, in); err != nil {
			b.Fatal(err)
		}
	}
}
