package runs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
)

// tuningLog is what happened in a tuning: it passes from one part of it to the next, so it is as short as it can be.
type tuningLog struct {
	Jobs []jobLine `json:"jobs,omitempty"`
	// Checkpoints are those from which trials that may go on do so.
	Checkpoints map[int]trialCheckpoint `json:"checkpoints,omitempty"`
	// Candidates are the best trials, the best first.
	Candidates []candidate `json:"candidates,omitempty"`
}

// jobEnd is how a job ended.
type jobEnd string

const (
	jobRuns      jobEnd = "" // it has not ended
	jobTold      jobEnd = "t"
	jobDiverged  jobEnd = "d"
	jobFailed    jobEnd = "f"
	jobUnpaid    jobEnd = "u"
	jobCancelled jobEnd = "c"
)

// jobLine is one job. Which trial's it was, and how far it went, follows from all lines: see restore.
type jobLine struct {
	// After is how many jobs had been reported when it was taken, Report which report it was, from 1 on; 0 where the
	// search was not told how it ended.
	After     int            `json:"a,omitempty"`
	Report    int            `json:"r,omitempty"`
	End       jobEnd         `json:"e,omitempty"`
	Objective float64        `json:"o,omitempty"` // where it told one
	From      float64        `json:"f,omitempty"` // where its trial went on from
	Spent     quantity.Money `json:"c,omitempty"`
	// Started is milliseconds of Unix time; Took, and Ran without the wait for a slot, are milliseconds.
	Started int64  `json:"s,omitempty"`
	Took    int64  `json:"l,omitempty"`
	Ran     int64  `json:"n,omitempty"`
	Why     string `json:"w,omitempty"`
	// Taken is the run that did it, of which this one is a retry; empty where this run did.
	Taken string `json:"k,omitempty"`
	// Ahead is what the curve of its trial said then; nil where it said nothing.
	Ahead *aheadLine `json:"p,omitempty"`
}

// aheadLine is what a curve says of the objective at the end of a training: with nine chances in ten it lies from Low
// to High. Before is what it was when it had had one part in eta of what it has had now; nil where nobody knows.
type aheadLine struct {
	Low    float64  `json:"l"`
	High   float64  `json:"h"`
	Before *float64 `json:"b,omitempty"`
}

// aheadOf is what the prospect of a job's metric says of its objective: nothing where they are not the same, by their
// name or by their value at the end of the job, or other values of them are better.
func aheadOf(q TuneRequest, line jobLine, told *predictor.Prospect) *aheadLine {
	if told == nil || line.End != jobTold {
		return nil
	}
	name := q.Objective[strings.LastIndex(q.Objective, ".")+1:]
	apart := math.Abs(told.Value - line.Objective)
	if told.Metric != name && !(apart <= 1e-6*math.Abs(line.Objective)) { // as far as single precision tells them apart
		return nil
	}
	if direction, known := curve.DirectionOf(told.Metric); !known || (direction == curve.Maximise) != q.Options.Maximise {
		return nil
	}
	return &aheadLine{Low: told.Low, High: told.High, Before: told.Before}
}

// of is the line as a search takes it.
func (a aheadLine) of(maximise bool) search.Ahead {
	ahead := search.Ahead{Best: a.Low, Before: math.NaN()}
	if maximise {
		ahead.Best = a.High
	}
	if a.Before != nil {
		ahead.Before = *a.Before
	}
	return ahead
}

// ran is how long it ran, or took where nobody told that.
func (j jobLine) ran() time.Duration { return time.Duration(cmp.Or(j.Ran, j.Took)) * time.Millisecond }

// waited is how long it waited for a slot, as far as that was told.
func (j jobLine) waited() time.Duration {
	return max(time.Duration(j.Took)*time.Millisecond-j.ran(), 0)
}

// reported is what the search is told of a job.
func (j jobLine) reported() float64 {
	if j.End == jobTold {
		return j.Objective
	}
	return math.NaN()
}

// trialCheckpoint is a checkpoint, and how far its trial had come there.
type trialCheckpoint struct {
	Ref activities.Ref `json:"ref"`
	At  float64        `json:"at"`
}

// candidate is a trial that may be the best.
type candidate struct {
	Job   int `json:"job"` // its last
	Trial int `json:"trial"`
	Rung  int `json:"rung"`
	// Objective is smaller where it is better.
	Objective float64 `json:"objective"`
	// Output is that of the job; a part of a tuning is told those of its own jobs only.
	Output json.RawMessage `json:"output,omitempty"`
}

const (
	// maxCandidates is how many trials keep their outputs: the best may diverge at its next rung, and one after it.
	maxCandidates = 16
	// maxOutputs bounds their outputs, in bytes: each part of a tuning hands them over, as an artifact where a payload of
	// Temporal is too small for them. The best is kept in any case.
	maxOutputs = 16 << 20
)

// nominate adds a candidate in the place of what its trial was before, and keeps the best.
func nominate(candidates []candidate, one candidate) []candidate {
	candidates = append(dismiss(candidates, one.Trial), one)
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.Rung, a.Rung), cmp.Compare(a.Objective, b.Objective), cmp.Compare(a.Trial, b.Trial))
	})
	bytes := 0
	for i, c := range candidates {
		if bytes += len(c.Output); i > 0 && (i == maxCandidates || bytes > maxOutputs) {
			return candidates[:i]
		}
	}
	return candidates
}

// dismiss drops a trial from the candidates.
func dismiss(candidates []candidate, trial int) []candidate {
	return slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return c.Trial == trial })
}

// restore returns the search as it is after all that the log says, and the jobs that it gave out, one for each line.
func (l tuningLog) restore(request TuneRequest) (*search.Search, []search.Job, error) {
	ended, reports := map[int]int{}, 0 // the line of each report
	for i, line := range l.Jobs {
		if line.Report > 0 {
			ended[line.Report] = i
			reports++
		}
	}
	var steps []search.Step
	taken := 0
	for report := range reports + 1 {
		if line, found := ended[report]; found {
			step := search.Step{Reported: true, Job: line, Objective: l.Jobs[line].reported()}
			if told := l.Jobs[line].Ahead; told != nil {
				ahead := told.of(request.Options.Maximise)
				step.Ahead = &ahead
			}
			steps = append(steps, step)
		}
		for taken < len(l.Jobs) && l.Jobs[taken].After == report {
			steps = append(steps, search.Step{})
			taken++
		}
	}
	return search.Restore(request.Space, request.Options, steps)
}

// tuning is what the log comes to, given the search as it is after it and the jobs that it gave out.
func (l tuningLog) tuning(
	request TuneRequest, first int, s *search.Search, jobs []search.Job, ended string, endedAt time.Time,
) Tuning {
	t := Tuning{
		Stage: request.Stage.Name, Name: request.Name, Space: request.Space, Options: request.Options,
		Objective: request.Objective, Command: request.Command, Ended: ended, EndedAt: endedAt,
		Counts: map[TrialState]int{},
	}
	places := s.Places()
	for i, line := range l.Jobs {
		job := jobs[i]
		for len(t.Trials) <= job.Trial {
			t.Trials = append(t.Trials, Trial{Number: len(t.Trials), Configuration: s.Configuration(len(t.Trials))})
		}
		told := TrialJob{
			Rung: job.Rung, From: line.From, To: job.To, Task: taskOf(request.Stage.Name, first+i), Spent: line.Spent,
			StartedAt: time.UnixMilli(line.Started).UTC(), Reused: line.Taken,
		}
		if line.End != jobRuns {
			told.EndedAt = time.UnixMilli(line.Started + line.Took).UTC()
		}
		if line.End == jobTold {
			objective := line.Objective
			told.Objective = &objective
		}
		if i == 0 {
			t.StartedAt = told.StartedAt
		}
		t.Spent += line.Spent
		trial := &t.Trials[job.Trial]
		trial.Jobs = append(trial.Jobs, told)
		trial.State, trial.Why = line.stands(request.Options.Most, job.Rung == s.Rungs()-1, places[job.Trial], ended)
	}
	t.Begun = len(t.Trials)
	for _, trial := range t.Trials {
		t.Counts[trial.State]++
	}
	if len(l.Candidates) > 0 {
		best := l.Candidates[0].Trial
		t.Best = &best
	}
	return t
}

// stands says what has become of the trial whose newest job is this one, of the last rung or not, and why.
func (j jobLine) stands(most float64, last bool, place search.Place, ended string) (TrialState, string) {
	switch j.End {
	case jobRuns:
		return TrialRunning, ""
	case jobFailed:
		return TrialFailed, j.Why
	case jobDiverged:
		return TrialDiverged, j.Why
	case jobUnpaid, jobCancelled:
		return TrialStopped, j.Why
	case jobTold:
	}
	switch {
	case last:
		return TrialFinished, ""
	case ended == "" && place.GoesOn:
		return TrialWaiting, ""
	case place.Out && j.Ahead != nil:
		return TrialStopped, fmt.Sprintf("rung %d: predicted %.4g to %.4g at %g, and the best so far is %.4g", place.Rung,
			j.Ahead.Low, j.Ahead.High, most, place.Beyond)
	}
	why := fmt.Sprintf("rung %d: %s of %d", place.Rung, ordinal(place.Place), place.Of)
	switch place.Promoted {
	case 0:
		why += ", none went on"
	case 1:
		why += ", one went on"
	default:
		why += fmt.Sprintf(", %d went on", place.Promoted)
	}
	if ended != "" && ended != EndedDone {
		why += "; the tuning ended: " + ended
	}
	return TrialStopped, why
}

// page is the tuning with the trials that are asked for only.
func (t Tuning) page(asked TuningPage) Tuning {
	most := MaxTrialsTold
	if asked.Trials > 0 {
		most = min(most, asked.Trials)
	}
	first := min(max(asked.First, 0), len(t.Trials))
	t.Trials = t.Trials[first:min(first+most, len(t.Trials))]
	return t
}

// taskOf is the ID of the task of a stage with this number.
func taskOf(stage string, number int) string { return fmt.Sprintf("%s-%d", stage, number) }

// ordinal is 1st, 2nd, 3rd and so on.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}
