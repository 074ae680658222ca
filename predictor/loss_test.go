package predictor_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
)

// attempted folds the Record of an attempt on devices of a class that went on for some hours.
func attempted(
	state predictor.State, n int, class string, hours float64, outcome predictor.Outcome, cause predictor.Cause,
) predictor.State {
	e := record("earlier", "train", n, -1e6+float64(n), hours*3600)
	e.Grant.DeviceClass, e.Outcome, e.Cause = class, outcome, cause
	return predictor.Fold(state, e)
}

// toLoss is what the next plan says.
func toLoss(t *testing.T, state predictor.State) (rows []predictor.TimeToLoss) {
	t.Helper()
	text, err := json.Marshal(state) // so that it is what the next leader says as well
	if err != nil {
		t.Fatal(err)
	}
	var decoded predictor.State
	if err := json.Unmarshal(text, &decoded); err != nil {
		t.Fatal(err)
	}
	plan, _ := predictor.Decide(decoded, predictor.Snapshot{Now: after(0), Policy: predictor.DefaultPolicy()})
	return plan.TimesToLoss
}

func TestAPlanSaysHowLongAttemptsOfADeviceClassGoOnUntilTheyAreLost(t *testing.T) {
	t.Parallel()
	type attempt struct {
		class   string
		hours   float64
		outcome predictor.Outcome
		cause   predictor.Cause
	}
	lost := func(hours float64) attempt {
		return attempt{"", hours, predictor.Lost, predictor.CauseHostLost}
	}
	well := func(hours float64) attempt { return attempt{"", hours, predictor.Succeeded, ""} }
	for name, test := range map[string]struct {
		attempts []attempt
		want     []predictor.TimeToLoss
	}{
		"nothing is known: the usual":        {nil, nil},
		"a little is as good as nothing":     {[]attempt{well(1)}, nil},
		"two days without a loss make three": {[]attempt{well(24), well(24)}, rows("", 67.88)}, // 2^(3/2) days
		"three losses in a day":              {[]attempt{lost(8), lost(8), lost(8)}, rows("", 12)},
		"what the attempt did itself is no loss": {[]attempt{
			{"", 0.01, predictor.Failed, predictor.CauseError},
			{"", 0.01, predictor.OutOfMemory, predictor.CauseMemoryLimit},
			{"", 0.01, predictor.Lost, predictor.CauseVenue},
			{"", 0.01, predictor.Cancelled, predictor.CauseCancelled},
		}, nil},
		"each class for itself": {
			[]attempt{
				{"h200", 4, predictor.Lost, predictor.CauseHostLost},
				{"h200", 4, predictor.Lost, predictor.CauseHostLost},
				{"a", 24, predictor.Lost, predictor.CauseHostMemory},
			},
			rows("h200", 12),
		},
	} {
		var state predictor.State
		for i, a := range test.attempts {
			state = attempted(state, i, a.class, a.hours, a.outcome, a.cause)
		}
		got := toLoss(t, state)
		for i := range got {
			got[i].Mean = got[i].Mean.Round(36 * time.Second) // a hundredth of an hour
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func rows(class string, hours float64) []predictor.TimeToLoss {
	mean := time.Duration(hours * float64(time.Hour)).Round(36 * time.Second)
	return []predictor.TimeToLoss{{DeviceClass: class, Mean: mean}}
}

// TestALossThatALaterProcessToldCountsForAsLongAsItTook folds what the journal of a host that was started anew tells.
func TestALossThatALaterProcessToldCountsForAsLongAsItTook(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for i := range 9 {
		e := record("earlier", "train", i, -1000+float64(i), 0)
		e.Outcome, e.Cause = predictor.Lost, predictor.CauseHostLost
		e.ScheduledAt, e.Queue = e.At.Add(-100*time.Hour), time.Hour
		if i%2 == 0 { // nobody knows since when
			e.ScheduledAt = time.Time{}
		}
		state = predictor.Fold(state, e)
	}
	if diff := cmp.Diff(rows("", 48), toLoss(t, state)); diff != "" { // (24 + 4*99)/10 hours
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTheTimeToLossIsLearned has attempts of hosts that are lost at a constant rate, as an oracle, some of which end
// before that. The rate changes once: what is long past counts for less and less.
func TestTheTimeToLossIsLearned(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 11))
	var state predictor.State
	n := 0
	for _, mean := range []float64{3, 100} { // hours
		for range 3000 {
			lost, ended := random.ExpFloat64()*mean, random.ExpFloat64()*5
			if n++; lost < ended {
				state = attempted(state, n, "", lost, predictor.Lost, predictor.CauseHostLost)
			} else {
				state = attempted(state, n, "", ended, predictor.Succeeded, "")
			}
		}
		got := toLoss(t, state)
		if len(got) != 1 || got[0].Mean.Hours() < mean/1.5 || got[0].Mean.Hours() > mean*1.5 {
			t.Errorf("attempts that are lost after %g hours in the mean: %v", mean, got)
		}
	}
}
