package appraisal

import (
	"slices"

	"github.com/spillway-ml/spillway/workers/schedule"
)

// mostSpans is how many things a picture shows; a wider schedule is told in figures only.
const mostSpans = 20_000

// Timeline returns when each stage of a pipeline does what, with the costs of a schedule of one worker for each stage.
// It is empty for more than 20,000 spans, and where [schedule.Simulate] refuses the schedule.
func Timeline(s schedule.Schedule, c schedule.Costs) []Span {
	total := 0
	for _, list := range s.Workers {
		total += len(list)
	}
	if total > 3*mostSpans { // sending and receiving are no spans
		return nil
	}
	_, traced, err := schedule.Trace(s, c)
	if err != nil {
		return nil
	}
	slices.SortStableFunc(traced, func(a, b schedule.Span) int { return a.Worker - b.Worker })
	var all []Span
	for _, one := range traced {
		all = append(all, Span{
			Stage: one.Instruction.Stage + 1, Kind: one.Instruction.Kind.String(),
			MicroBatch: one.Instruction.MicroBatch + 1, StartSeconds: one.Start, EndSeconds: one.End,
		})
	}
	return all
}

// Stream returns when each stage is busy with which of the first batches of an endless stream, where a batch enters a
// stage as soon as the stage before and the batch before it are done. loads are in seconds, by stage.
func Stream(loads []float64, batches int) []Span {
	var all []Span
	done := make([]float64, batches) // when each batch leaves the stage before
	for s, load := range loads {
		free := 0.0
		for b := range batches {
			start := max(free, done[b])
			free = start + load
			done[b] = free
			all = append(all, Span{Stage: s + 1, Kind: "batch", MicroBatch: b + 1, StartSeconds: start, EndSeconds: free})
		}
	}
	return all
}
