// Package workflow replays the tasks of recorded workflows, attempt by attempt, and scores how they would have been
// sized and what was expected of them.
package workflow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor"
)

// LargestHost is the memory of the largest host, in bytes: no attempt is given more.
const LargestHost = float64(1 << 40)

// Known is what is known of a task before it runs.
type Known struct {
	// ID is its place among the tasks of the workflow.
	ID      int
	Process string
	Start   time.Duration // since the start of the workflow
	CPUs    float64       // asked for
	// Requested is the memory that the workflow asked for, Input the size of the files that the task is given; in bytes.
	Requested, Input float64
}

// Answer is the size of one attempt and what is expected of it.
type Answer struct {
	// Limit is its memory, in bytes.
	Limit float64
	// Peak is in bytes and Wall in seconds; zero where nothing is expected.
	Peak, Wall predictor.Interval
}

// Policy sizes the attempts of one workflow. Its methods are called in the order of time, which never runs backwards.
type Policy interface {
	// Size answers for the next attempt of a task that starts now. Failed are the limits of its earlier attempts, the
	// latest last: none of them was enough.
	Size(ctx context.Context, task Known, failed []float64) (Answer, error)
	// RanOut tells, at the start of the task, that the limit was not enough.
	RanOut(ctx context.Context, task Known, limit float64) error
	// Ended tells, once the task is complete, what it took.
	Ended(ctx context.Context, task Known, took Took) error
}

// Took is what a task took in the end.
type Took struct {
	// At is when it was complete, since the start of the workflow.
	At time.Duration
	// Peak is in bytes.
	Peak float64
	// Wall is how long it ran.
	Wall time.Duration
}

// Outcome is how one task went.
type Outcome struct {
	series.Task
	// Failed are the limits that were not enough, Limit the one that was; in bytes.
	Failed []float64
	Limit  float64
	// First is the answer for the first attempt.
	First Answer
	// Known is how many tasks of its process had ended when it started.
	Known int
}

// maxAttempts bounds the attempts of a task: a policy that does not grow is broken.
const maxAttempts = 100

// Replay runs the tasks of one workflow, in the order of their starts, under the protocol "delayed": the size of a task
// knows the tasks that were complete when it started, and the attempts that ran out of memory before. A task whose
// limit is below its peak has run out of memory and is tried again at once.
func Replay(ctx context.Context, tasks []series.Task, policy Policy) ([]Outcome, error) {
	outcomes := make([]Outcome, len(tasks))
	ended := map[string]int{}
	byEnd := make([]int, len(tasks))
	for i := range byEnd {
		byEnd[i] = i
	}
	slices.SortStableFunc(byEnd, func(a, b int) int { return cmp.Compare(tasks[a].Complete, tasks[b].Complete) })
	next := 0
	for i, task := range tasks {
		for ; next < len(tasks) && tasks[byEnd[next]].Complete <= task.Start; next++ {
			done := tasks[byEnd[next]]
			took := Took{At: done.Complete, Peak: float64(done.Peak), Wall: done.Run}
			if err := policy.Ended(ctx, knownOf(byEnd[next], done), took); err != nil {
				return nil, fmt.Errorf("tell that task %d of %s ended: %w", byEnd[next]+1, done.Process, err)
			}
			ended[done.Process]++
		}
		outcome, err := attempts(ctx, knownOf(i, task), float64(task.Peak), policy)
		if err != nil {
			return nil, fmt.Errorf("size task %d of %s: %w", i+1, task.Process, err)
		}
		outcome.Task, outcome.Known = task, ended[task.Process]
		outcomes[i] = outcome
	}
	return outcomes, nil
}

func attempts(ctx context.Context, known Known, peak float64, policy Policy) (Outcome, error) {
	var outcome Outcome
	for {
		answer, err := policy.Size(ctx, known, outcome.Failed)
		if err != nil {
			return Outcome{}, err
		}
		if len(outcome.Failed) == 0 {
			outcome.First = answer
		}
		answer.Limit = min(answer.Limit, LargestHost)
		switch {
		case answer.Limit >= peak:
			outcome.Limit = answer.Limit
			return outcome, nil
		case !(answer.Limit > 0), answer.Limit == LargestHost, len(outcome.Failed) == maxAttempts:
			return Outcome{}, fmt.Errorf("attempt %d has %.0f bytes and needs %.0f: no further attempt would go well",
				len(outcome.Failed)+1, answer.Limit, peak)
		}
		outcome.Failed = append(outcome.Failed, answer.Limit)
		if err := policy.RanOut(ctx, known, answer.Limit); err != nil {
			return Outcome{}, err
		}
	}
}

func knownOf(id int, task series.Task) Known {
	return Known{
		ID: id, Process: task.Process, Start: task.Start, CPUs: task.CPUs,
		Requested: float64(task.Requested), Input: float64(task.Input),
	}
}
