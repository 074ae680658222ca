package training_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

// fetched is an executor whose data up to four processes can fetch.
type fetched struct{ probes }

func (f *fetched) Probe(ctx context.Context, o exec.ProbeOptions) (exec.Probe, error) {
	found, err := f.probes.Probe(ctx, o)
	found.Fetching = exec.Fetching{Seconds: 0.01, Batch: 1000, Working: 2000, Processes: 4}
	return found, err
}

func TestDataAreFetchedByAsManyProcessesAsAreWantedAlsoWhereATrainingGoesOn(t *testing.T) {
	t.Parallel()
	job, resume := chosen(), ""
	job.DataWorkers, job.DataTimeout = 2, time.Minute
	for _, steps := range []int64{tooShort, tooShort + 1} {
		on := &fetched{probes: probes{loads: loads{Executor: exectest.Reference(exectest.Options{})}}}
		job.Executor, job.Directory, job.Steps, job.Resume = on, t.TempDir(), steps, resume
		result, err := training.Run(t.Context(), job, training.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		last := on.layouts[len(on.layouts)-1]
		if last.DataWorkers != 2 || last.DataTimeout != time.Minute {
			t.Errorf("%d steps: %d processes, for %v a batch", steps, last.DataWorkers, last.DataTimeout)
		}
		if !strings.Contains(result.Training.Reason, "2 processes fetch the data") {
			t.Errorf("the reason is %q", result.Training.Reason)
		}
		resume = result.Checkpoint
	}
}

func TestImpossibleProcessesForDataAreRefused(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*training.Job){
		func(j *training.Job) { j.DataWorkers = -2 },
		func(j *training.Job) { j.DataWorkers = 1 << 20 },
		func(j *training.Job) { j.DataTimeout = -time.Second },
	} {
		job := chosen()
		job.Executor = exectest.Reference(exectest.Options{})
		change(&job)
		if _, _, err := training.Plan(t.Context(), job); err == nil || !strings.Contains(err.Error(), "for the data") {
			t.Errorf("%d processes and a timeout of %v: %v", job.DataWorkers, job.DataTimeout, err)
		}
	}
}
