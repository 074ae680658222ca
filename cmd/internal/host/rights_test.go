package host

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// TestAttackAHostHasResultsKeptThatItWasNotGiven has a host, with the proof of its task and without, send results of
// others, which later runs would take.
func TestAttackAHostHasResultsKeptThatItWasNotGiven(t *testing.T) {
	t.Parallel()
	stage := predictor.StageID{App: "app", Build: "1", Name: "train"}
	own := wire.NewResultKey(stage, false, "", json.RawMessage(`1`))
	stored := strings.Repeat("ab", 32)
	proofs := map[string]wire.Given{
		"own":       {Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, At: time.Now(), Key: own},
		"large":     {Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, At: time.Now(), Input: stored},
		"unread":    {Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, At: time.Now(), Input: "cd"},
		"worthless": {Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, At: time.Now()},
		"expired":   {Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, Key: own},
		"part":      {Run: "own-1", Stage: stage, Task: "train-0", Attempt: 1, At: time.Now(), Key: own, Member: true},
	}
	var kept int
	ask, _ := serving(t, func(s *Serving) {
		s.Given = func(_, proof string) (*wire.Given, error) {
			if given, known := proofs[proof]; known {
				return &given, nil
			}
			return nil, errors.New("it is no proof")
		}
		s.Payload = func(_ context.Context, digest string) (json.RawMessage, error) {
			if digest != stored {
				return nil, activities.ErrMissing
			}
			return json.RawMessage(`1`), nil
		}
		s.Results = keeper(func(wire.Kept) error { kept++; return nil })
	})
	result := wire.Kept{
		Key: own, Run: "own-1", Stage: "train", Task: "train-0", Output: json.RawMessage(`"x"`), Wall: time.Second,
		At: time.Now(),
	}
	changed := func(change func(*wire.Kept)) wire.Kept { r := result; change(&r); return r }
	other := wire.NewResultKey(stage, false, "", json.RawMessage(`2`))
	for _, c := range []struct {
		name, proof string
		kept        wire.Kept
		status      int
	}{
		{"its own", "own", result, 0},
		{"its own, of an input that is an artifact", "large", result, 0},
		{"without a proof", "", result, http.StatusForbidden},
		{"with a proof that is none", "forged", result, http.StatusForbidden},
		{"with a proof too old", "expired", result, http.StatusForbidden},
		{"with a proof of a part", "part", result, http.StatusForbidden},
		{"with a proof of no input", "worthless", result, http.StatusForbidden},
		{"of another run", "own", changed(func(k *wire.Kept) { k.Run = "victim-1" }), http.StatusForbidden},
		{"of another task", "own", changed(func(k *wire.Kept) { k.Task = "train-1" }), http.StatusForbidden},
		{"of another stage", "own", changed(func(k *wire.Kept) { k.Stage = "score" }), http.StatusForbidden},
		{"of another input", "own", changed(func(k *wire.Kept) { k.Key = other }), http.StatusForbidden},
		{"of another input, of an artifact", "large", changed(func(k *wire.Kept) { k.Key = other }), http.StatusForbidden},
		{"of an input that cannot be read now", "unread", result, http.StatusBadGateway},
		{
			"with the address of another output", "own",
			changed(func(k *wire.Kept) { k.Stored = activities.Ref{Digest: stored} }), http.StatusForbidden,
		},
		{"that took a year", "own", changed(func(k *wire.Kept) { k.Wall = 365 * 24 * time.Hour }), http.StatusForbidden},
		{"of next year", "own", changed(func(k *wire.Kept) { k.At = k.At.AddDate(1, 0, 0) }), http.StatusForbidden},
	} {
		before := kept
		err := ask.prove(t.Context(), c.proof, resultsPath, c.kept, nil)
		refused, _ := errors.AsType[*refusedError](err)
		if c.status == 0 && (err != nil || kept != before+1) {
			t.Errorf("%s: got %v, want that it is kept", c.name, err)
		}
		if c.status != 0 && (refused == nil || refused.status != c.status || kept != before) {
			t.Errorf("%s: got %v, want %d, and that it is not kept", c.name, err, c.status)
		}
	}
}

// TestAttackAHostNamesCheckpointsOfOthers: only with the proof of an attempt that it was given, and never what is put
// from now on.
func TestAttackAHostNamesCheckpointsOfOthers(t *testing.T) {
	t.Parallel()
	var told []time.Time
	ask, _ := serving(t, func(s *Serving) {
		s.Given = func(_, proof string) (*wire.Given, error) {
			switch proof {
			case "own":
				return &wire.Given{At: time.Now()}, nil
			case "expired":
				return &wire.Given{}, nil
			case "part":
				return &wire.Given{At: time.Now(), Member: true}, nil
			}
			return nil, errors.New("it is no proof")
		}
		s.Superseded = func(_ []activities.Ref, made time.Time) { told = append(told, made) }
	})
	refs := []activities.Ref{{Digest: strings.Repeat("ab", 32), Bytes: 1}}
	for _, proof := range []string{"", "forged", "expired", "part"} {
		err := ask.prove(t.Context(), proof, supersededPath, superseded{refs, time.Now()}, nil)
		if refused, _ := errors.AsType[*refusedError](err); refused == nil || refused.status != http.StatusForbidden {
			t.Errorf("with the proof %q: %v, want a refusal", proof, err)
		}
	}
	many := make([]activities.Ref, mostSuperseded+1)
	err := ask.prove(t.Context(), "own", supersededPath, superseded{many, time.Now()}, nil)
	if refused, _ := errors.AsType[*refusedError](err); refused == nil || refused.status != http.StatusBadRequest {
		t.Errorf("too many at once: %v", err)
	}
	if err := ask.prove(t.Context(), "own", supersededPath, superseded{refs, time.Now().Add(time.Hour)}, nil); err != nil {
		t.Error(err)
	}
	if len(told) != 1 || told[0].After(time.Now()) {
		t.Errorf("told are %v, want its own, of now", told)
	}
}
