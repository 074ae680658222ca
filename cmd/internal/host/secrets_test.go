package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// TestAttackAHostIsGivenTheSecretsOfItsAttemptsAndOfNoOthers asks with proofs of all kinds.
func TestAttackAHostIsGivenTheSecretsOfItsAttemptsAndOfNoOthers(t *testing.T) {
	t.Parallel()
	stage := func(name string) predictor.StageID { return predictor.StageID{App: "app", Build: "1", Name: name} }
	proofs := map[string]*wire.Given{
		"own":       {Run: "own-1", Stage: stage("label"), Task: "label-0", Attempt: 1, At: time.Now()},
		"without":   {Run: "own-1", Stage: stage("bare"), Task: "bare-0", Attempt: 1, At: time.Now()},
		"yesterday": {Run: "own-1", Stage: stage("label"), Task: "label-0", Attempt: 1, At: time.Now().Add(-25 * time.Hour)},
		"part":      {Run: "own-1", Stage: stage("label"), Task: "label-0", Attempt: 1, At: time.Now(), Member: true},
		"before":    nil, // of a version before proofs
	}
	ask, _ := serving(t, func(s *Serving) {
		s.Given = func(_, proof string) (*wire.Given, error) {
			if given, known := proofs[proof]; known {
				return given, nil
			}
			return nil, errors.New("it is no proof")
		}
		s.Secrets = func(_ context.Context, of predictor.StageID) (map[string]string, error) {
			if of != stage("label") {
				return nil, fmt.Errorf("%w: %s is not there", slot.ErrNoSecret, of.Name)
			}
			return map[string]string{"open-key": "hush"}, nil
		}
	})
	for proof, status := range map[string]int{
		"own": 0, "forged": http.StatusForbidden, "yesterday": http.StatusForbidden, "before": http.StatusForbidden,
		"": http.StatusForbidden, "part": http.StatusForbidden,
	} {
		var answer confided
		err := ask.prove(t.Context(), proof, secretsPath, struct{}{}, &answer)
		refused, _ := errors.AsType[*refusedError](err)
		if status == 0 && (err != nil || answer.Secrets["open-key"] != "hush") {
			t.Errorf("with the proof %q: %v, %v; want the secret", proof, answer, err)
		}
		if status != 0 && (refused == nil || refused.status != status || len(answer.Secrets) > 0) {
			t.Errorf("with the proof %q: %v, %v; want %d", proof, answer, err, status)
		}
	}
	var answer confided
	if err := ask.prove(t.Context(), "without", secretsPath, struct{}{}, &answer); err != nil || len(answer.Secrets) > 0 ||
		!strings.Contains(answer.Refused, "bare is not there") {
		t.Errorf("of a stage without its secret: %+v, %v", answer, err)
	}
}
