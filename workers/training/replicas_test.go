package training_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

func TestReplicasThatCannotTrainTogetherAreRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*training.Job)
		want   string
	}{
		"a word that is none": {
			func(j *training.Job) { j.Replicas, j.Sharding = 2, "parameter" },
			`sharding "parameter" is unknown; did you mean parameters?`,
		},
		"one that would divide": {
			func(j *training.Job) { j.Sharding = exec.ShardOptimizer },
			"sharding of optimizer divides what replicas have, and there is one; choose two replicas or more",
		},
		"too few samples": {
			func(j *training.Job) { j.Replicas, j.Batch, j.MicroBatches, j.Partitions = 4, 15, 4, 1 },
			"15 samples are too few for 4 replicas with 4 micro-batches each, which take 16 at least",
		},
		"parts that would pass micro-batches of two sizes": {
			func(j *training.Job) { j.Replicas, j.Batch, j.MicroBatches, j.Partitions = 2, 14, 2, 2 },
			"a batch of 14 samples does not divide by 2 replicas with 2 micro-batches each",
		},
		"compiled ones that divide something": {
			func(j *training.Job) {
				j.Replicas, j.Partitions, j.Compile, j.Sharding = 2, 1, true, exec.ShardOptimizer
			},
			"replicas that divide what the optimizer take are not compiled; leave the compiler or the sharding out",
		},
		"a time before now": {
			func(j *training.Job) { j.Replicas, j.CollectiveTimeout = 2, -time.Second },
			"the collective timeout is -1s",
		},
		"a number below none": {
			func(j *training.Job) { j.Replicas = -3 },
			"replicas is -3; want 0 to",
		},
		"an executor without": {
			func(j *training.Job) { j.Replicas, j.Partitions = 2, 1 },
			"the executor " + exectest.Reference(exectest.Options{}).Name() + " has no replicas",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := job(t, exectest.Options{})
			c.change(&j)
			_, err := training.Run(t.Context(), j, training.Observer{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got the error %v; want one that says %q", err, c.want)
			}
			if errors.Is(err, exec.ErrMissing) {
				t.Error("it is an error of a rank")
			}
		})
	}
}
