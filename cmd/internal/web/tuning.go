package web

import (
	"context"
	"net/http"

	"github.com/spillway-ml/spillway/workflows/runs"
)

// Tunings says how the tunings of runs stand.
type Tunings interface {
	// Tunings returns how the tunings of a run stand, or how they have ended, with all of their trials, in the order in
	// which they began; none for a run that tunes nothing. For a run that there is not, it answers as Run does.
	Tunings(ctx context.Context, run string) ([]runs.Tuning, error)
}

// tuning is one tuning in an answer: what is known of it, and what its rungs came to.
type tuning struct {
	runs.Tuning

	Rungs []runs.TuningRung `json:"rungs"`
}

type tuningAnswer struct {
	Tunings []tuning `json:"tunings"`
}

// tunings answers GET /api/v1/runs/{run}/tuning.
func (s *Server) tunings(r *http.Request) (answer tuningAnswer, err error) {
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return answer, err
	}
	found, err := s.engine.Tunings(r.Context(), r.PathValue("run"))
	answer.Tunings = make([]tuning, len(found))
	for i, one := range found {
		one.Trials = notNil(one.Trials)
		answer.Tunings[i] = tuning{one, one.Rungs()}
	}
	return answer, err
}
