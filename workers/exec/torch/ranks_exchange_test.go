package torch_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/training"
)

func TestRanksTellWhatTheyExchange(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:mlp", "points")
	devices := []spillway.Device{{ID: "a", Threads: 1}, {ID: "b", Threads: 1}}
	found, err := e.Exchange(t.Context(), devices)
	if err != nil {
		t.Fatal(err)
	}
	if found.Ranks != 2 || found.Step <= 0 || !(found.Hidden >= 0 && found.Hidden <= 1) || found.Process <= 0 ||
		found.Process > 64<<20 {
		t.Errorf("got %+v", found)
	}
	for name, transfer := range map[string]spillway.Transfer{
		"all-reduce": found.AllReduce, "gather": found.Gather, "scatter": found.Scatter, "send": found.Send,
	} {
		if took := transfer.At(64 << 20); !(took > 0 && took < 60) {
			t.Errorf("%s of 64 MiB takes %v s", name, took)
		}
	}
	if _, err := e.Exchange(t.Context(), devices[:1]); err == nil {
		t.Error("one rank exchanges with nobody, and that is no error")
	}
}

func TestAProbeTellsOfStatisticsOfSamplesThatPassTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ python, model, data, want string }{
		{torch.RequirePython(t), "batchnorm", "points", "1 (BatchNorm1d)"},
		{torchtest.Python2(t), "batchnorm", "points", "1 (BatchNorm1d)"},
		{torchtest.Python2(t), "transformer", "words", ""}, // which has layer normalization
	} {
		e := executorOf(t, c.python, "training.py:"+c.model, c.data)
		probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Device: spillway.Device{Threads: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if probe.Statistics != c.want {
			t.Errorf("%s of %s: statistics of %q; want %q", c.model, c.python, probe.Statistics, c.want)
		}
	}
}

// TestThePlanOfReplicasIsUsedAgainByTheNextAttempt stops a training of two replicas, and goes on.
func TestThePlanOfReplicasIsUsedAgainByTheNextAttempt(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	job := training.Job{
		Executor: executorOf(t, torchtest.Python2(t), "training.py:mlp", "points"), Directory: t.TempDir(),
		Replicas: 2, Partitions: 1, Batch: 16, MicroBatches: 2, Steps: 3, Seed: 5, CheckpointEvery: -1,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	const measured, again = "what replicas exchange was measured", "the plan of the checkpoint is used again"
	first, err := training.Run(t.Context(), job, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if why := first.Training.Reason; !strings.Contains(log.String(), measured) || !strings.Contains(why, "is priced at") {
		t.Errorf("what replicas exchange is not priced: %s\n%s", why, log.String())
	}
	log.Reset()
	job.Resume, job.Steps = first.Checkpoint, 6
	second, err := training.Run(t.Context(), job, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if n := second.Training.Replicas; n != 2 || !strings.Contains(log.String(), again) ||
		strings.Contains(log.String(), measured) {
		t.Errorf("%d replicas, by a plan that is made anew:\n%s", n, log.String())
	}
	alone := job
	alone.Replicas, alone.Resume, alone.Directory = 1, "", t.TempDir()
	want, err := training.Run(t.Context(), alone, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	alike(t, "two attempts of two replicas", want.Losses, append(first.Losses, second.Losses...), 1e-5)
}

// TestReplicasThatThePlanChoosesLearnAsOneProcess has the plan choose, whatever that is on this machine.
func TestReplicasThatThePlanChoosesLearnAsOneProcess(t *testing.T) {
	t.Parallel()
	job := training.Job{
		Executor: executorOf(t, torchtest.Python2(t), "training.py:mlp", "points"), Directory: t.TempDir(),
		Replicas: training.AutoReplicas, Batch: 16, MicroBatches: 2, Steps: 4, Seed: 5, CheckpointEvery: -1,
	}
	chosen, err := training.Run(t.Context(), job, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d replicas: %s", chosen.Training.Replicas, chosen.Training.Reason)
	job.Replicas, job.Directory = 1, t.TempDir()
	one, err := training.Run(t.Context(), job, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	alike(t, "replicas that are chosen", one.Losses, chosen.Losses, 1e-5)
}
