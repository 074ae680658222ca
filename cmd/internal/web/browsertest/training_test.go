package browsertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// trained adds digits-trained, which trains a model in three parts, of which the last holds more than there is.
func (e engine) trained(now time.Time) {
	const run = "digits-trained"
	begin := now.Add(-2 * time.Minute)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	e.Apply(run,
		predictor.RunStarted{
			Run: run, Pipeline: "digits", App: app, Build: build, At: begin,
			Goal: predictor.Goal{Deadline: 10 * time.Minute},
		},
		predictor.Scheduled{Run: run, Stage: stage("fit"), Tasks: 1, At: at(1)},
		predictor.AttemptStarted{
			Run: run, Stage: stage("fit"), Task: "fit-0", Attempt: 1, Venue: predictor.Pool,
			Host: "workstation", Grant: quantity.Size{CPU: 3000, Memory: 6 * quantity.GiB}, At: at(2),
		})
	for step := range 60 {
		sample := predictor.Sampled{
			Run: run, Stage: stage("fit"), Task: "fit-0", Attempt: 1, Venue: predictor.Pool, Host: "workstation", CPU: 2800,
			Memory: 5 * quantity.GiB, Grant: quantity.Size{CPU: 3000, Memory: 6 * quantity.GiB},
			Step: step + 1, Metrics: map[string]float64{"accuracy": 0.5, "loss": 2 / float64(step+2)}, At: at(3 + step),
		}
		if step == 0 {
			sample.Training = e.plan(0)
		}
		e.Apply(run, sample)
	}
}

// plan is how the training goes after so many of its 400 steps; before the first nothing is measured.
func (engine) plan(steps int64) *predictor.Training {
	measured := min(steps, 1)
	part := func(i int, first, last string, predicted, peak, capacity quantity.Bytes, predictedBusy,
		busy float64,
	) predictor.TrainingPart {
		return predictor.TrainingPart{
			Device: fmt.Sprintf("cpu:%d", i), Kind: "cpu", Threads: 1, Ops: 37 + i, First: first, Last: last, Recompute: i == 1,
			PredictedPeakBytes: predicted,
			PeakBytes:          peak * quantity.Bytes(measured), CapacityBytes: capacity, PredictedBusySeconds: predictedBusy,
			BusySeconds: busy * float64(measured),
		}
	}
	return &predictor.Training{
		Model: "7d0c2f", Executor: "torch", Schedule: "1f1b", Batch: 64, MicroBatches: 8, Steps: steps, TotalSteps: 400,
		PredictedStepSeconds: 0.82, StepSeconds: 0.9 * float64(measured), Bubble: 0.23 * float64(measured),
		Parts: []predictor.TrainingPart{
			part(0, "embedding.token", "encoder.layers.3.attention.output_projection", 1400*quantity.MiB, 1500*quantity.MiB,
				2*quantity.GiB, 0.6, 0.62),
			part(1, "encoder.layers.3.norm", "encoder.layers.8.mlp", 1500*quantity.MiB, 1450*quantity.MiB, 2*quantity.GiB, 0.64,
				0.71),
			part(2, "encoder.layers.9.attention", "head", 900*quantity.MiB, 1100*quantity.MiB, quantity.GiB, 0.58, 0.55),
		},
		Alternatives: []predictor.TrainingAlternative{
			{
				Partitions: 1, MicroBatches: 1, StepSeconds: 1.6, PeakBytes: 4 * quantity.GiB,
				Reason: "its part holds 4 GiB of 2 GiB",
			},
			{
				Partitions: 2, MicroBatches: 8, StepSeconds: 0.98, PeakBytes: 1900 * quantity.MiB,
				Reason: "0.98 s a step is slower than 0.82 s",
			},
		},
		Reason: "3 parts by 1f1b take 0.82 s a step, the least of 41 plans that fit",
	}
}

func TestATrainingIsShownBesideItsPlan(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	e.OnOutlook = outlookOf
	e.trained(now)
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/runs/digits-trained")
	for _, text := range []string{
		"fit, fit-0", "going on", "not measured yet", "predicted 0.82 s", "0/400",
		"1f1b, 8 micro-batches", "the least of 41 plans",
	} {
		b.Until(fmt.Sprintf("document.querySelector('.training')?.textContent.includes(%q)", text))
	}
	b.Until(
		`document.querySelectorAll('.training .said-bar').length === 7 && document.querySelectorAll('.training .parts ` +
			`.came-bar').length === 0`)
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`)

	// What comes shows without a reload.
	e.Apply("digits-trained", predictor.Sampled{
		Run: "digits-trained", Stage: stage("fit"), Task: "fit-0", Attempt: 1, Venue: predictor.Pool, Host: "workstation",
		Step: 61, Training: e.plan(120), At: now,
	})
	for _, text := range []string{
		"off by +10%", "120/400", "23%", "1.1 GiB, predicted 900 MiB (+22%) of 1 GiB",
		"0.71 s, predicted 0.64 s (+11%)", "38, encoder.layers.3.norm to encoder.layers.8.mlp",
	} {
		b.Until(fmt.Sprintf("document.querySelector('.training')?.textContent.includes(%q)", text))
	}
	b.Until(`document.querySelectorAll('.training .over .came-bar').length === 1`)
	b.Until(
		`[...document.querySelectorAll('.chart')].some((c) => c.getAttribute('aria-label')?.startsWith('loss by step') || ` +
			`c.querySelector('[aria-label^="loss by step"]'))`)
	evaluate[bool](b, `(document.querySelector('.training summary').click(), true)`)
	b.Until(`document.querySelector('.training').textContent.includes('slower than 0.82 s')`)

	// One by several workers, each of which has the whole model, has no plan of parts.
	e.Apply("digits-trained", predictor.Sampled{
		Run: "digits-trained", Stage: stage("together"), Task: "together-0", Attempt: 1, Venue: predictor.Pool,
		Host: "workstation", At: now, Training: &predictor.Training{
			Executor: "workers", Workers: 3, ModelBytes: 228 * quantity.KiB, Steps: 7, TotalSteps: 660, StepSeconds: 0.0652,
			ExchangeSeconds: 0.0081, Parts: []predictor.TrainingPart{{Device: "cpu-0", Kind: "cpu", Threads: 1}},
		},
	})
	together := `[...document.querySelectorAll('.training')].find((t) => t.textContent.includes('together-0'))`
	for _, text := range []string{
		"65.2 ms", "nothing was predicted", "7/660", "3each computes a part", "8.1 ms", "for 228 KiB from each",
	} {
		b.Until(fmt.Sprintf("%s?.textContent.includes(%q)", together, text))
	}
	b.Until(fmt.Sprintf("!/Bubble|Schedule|Peak memory/.test(%s.textContent)", together))
	for _, width := range []int64{1440, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(width, scheme)
			b.readable(fmt.Sprintf("run-trained-%d-%s", width, scheme))
		}
	}
	b.heardNothingBad(listener.Addr().String())
}
