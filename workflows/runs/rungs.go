package runs

import (
	"cmp"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TuningRung is what the jobs of one rung of a tuning came to, together.
type TuningRung struct {
	// Rung counts from 0; To is what a trial has had at its end, in the unit of the search.
	Rung int     `json:"rung"`
	To   float64 `json:"to"`
	// Begun are the trials that came into it, Told those of them that told an objective at its end.
	Begun int `json:"begun"`
	Told  int `json:"told"`
	// Best is the best of those objectives; nil where none was told.
	Best *float64 `json:"best,omitempty"`
	// Seconds is how long its jobs took that are over, from when each was scheduled, and Spent what they cost.
	Seconds float64        `json:"seconds"`
	Spent   quantity.Money `json:"spent_picodollars"`
}

// Rungs adds up what came of each rung in which one of Trials was, from the lowest on.
func (t Tuning) Rungs() []TuningRung {
	of := map[int]*TuningRung{}
	for _, trial := range t.Trials {
		for _, job := range trial.Jobs {
			rung := of[job.Rung]
			if rung == nil {
				rung = &TuningRung{Rung: job.Rung, To: job.To}
				of[job.Rung] = rung
			}
			rung.take(job, t.Options.Maximise)
		}
	}
	rungs := make([]TuningRung, 0, len(of))
	for _, rung := range of {
		rungs = append(rungs, *rung)
	}
	slices.SortFunc(rungs, func(a, b TuningRung) int { return cmp.Compare(a.Rung, b.Rung) })
	return rungs
}

func (r *TuningRung) take(job TrialJob, maximise bool) {
	r.Begun++
	r.Spent += job.Spent
	if !job.StartedAt.IsZero() && job.EndedAt.After(job.StartedAt) {
		r.Seconds += job.EndedAt.Sub(job.StartedAt).Seconds()
	}
	if job.Objective == nil {
		return
	}
	r.Told++
	if r.Best == nil || compareObjectives(*job.Objective, *r.Best, maximise) < 0 {
		r.Best = job.Objective
	}
}

// compareObjectives is below 0 where a is better than b.
func compareObjectives(a, b float64, maximise bool) int {
	if maximise {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// Told is the last job of the trial that told an objective; not found where none did.
func (t Trial) Told() (job TrialJob, found bool) {
	for _, job := range slices.Backward(t.Jobs) {
		if job.Objective != nil {
			return job, true
		}
	}
	return TrialJob{}, false
}

// Spent is what its jobs have cost that are over.
func (t Trial) Spent() (sum quantity.Money) {
	for _, job := range t.Jobs {
		sum += job.Spent
	}
	return sum
}

// Ranked are the trials, the best first: those that told an objective and have neither failed nor diverged since, of a
// higher rung before those of a lower one, as Best is chosen, of one rung the better objective first; then the others,
// as they were begun.
func (t Tuning) Ranked() []Trial {
	ranked := slices.Clone(t.Trials)
	slices.SortStableFunc(ranked, func(a, b Trial) int {
		first, aRanked := a.place()
		second, bRanked := b.place()
		switch {
		case aRanked != bRanked:
			if aRanked {
				return -1
			}
			return 1
		case !aRanked:
			return cmp.Compare(a.Number, b.Number)
		}
		return cmp.Or(cmp.Compare(second.Rung, first.Rung),
			compareObjectives(*first.Objective, *second.Objective, t.Options.Maximise), cmp.Compare(a.Number, b.Number))
	})
	return ranked
}

// place is the job by which a trial is ranked; not found where it can be the best no more.
func (t Trial) place() (job TrialJob, found bool) {
	if t.State == TrialFailed || t.State == TrialDiverged {
		return TrialJob{}, false
	}
	return t.Told()
}
