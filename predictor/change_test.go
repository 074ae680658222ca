package predictor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestABuildThatTakesTenTimesAsMuchIsNoticedWithinThreeAttempts has a stage whose code changes after sixty attempts.
func TestABuildThatTakesTenTimesAsMuchIsNoticedWithinThreeAttempts(t *testing.T) {
	t.Parallel()
	for name, peaks := range map[string][2]quantity.Bytes{
		"more": {200 * quantity.MiB, 2000 * quantity.MiB}, "less": {2000 * quantity.MiB, 200 * quantity.MiB},
	} {
		for build, told := range map[string]bool{"b2": true, "b1": false} {
			t.Run(name+" of "+build, func(t *testing.T) {
				t.Parallel()
				var state predictor.State
				var plan predictor.Plan
				var decided []string
				attempt := func(i int, build string, peak quantity.Bytes) {
					now := 10 * float64(i)
					id := predictor.StageID{App: "app", Build: build, Name: "score"}
					run := fmt.Sprint("run-", build)
					state = fold(state, predictor.RunStarted{Run: run, App: "app", Pipeline: "p", Build: build, At: after(now)},
						predictor.Scheduled{Run: run, Stage: id, Tasks: 1, At: after(now)})
					snap := laptop(now+1, 16)
					snap.Functions.Enabled = false
					plan, state = predictor.Decide(state, snap)
					decided = append(decided, reasons(plan)...)
					one := record(run, "score", i, now+9, 5)
					one.Stage, one.Usage.PeakMemory = id, peak+quantity.Bytes(i%7)*quantity.MiB
					for _, sizing := range plan.Sizings {
						if sizing.Stage == id {
							one.Grant, one.Predicted, _ = sizing.For(predictor.Need{}, snap.Hosts[0].Capacity)
						}
					}
					state = fold(state, one)
				}
				for i := range 60 {
					attempt(i, "b1", peaks[0])
				}
				for i := range 4 {
					attempt(60+i, build, peaks[1])
				}
				noticed := strings.Contains(strings.Join(decided, "\n"), "of build b2 in a row took about")
				if noticed != told {
					t.Errorf("the change is told: %t, want %t:\n%s", noticed, told, strings.Join(decided[len(decided)-5:], "\n"))
				}
				for _, sizing := range plan.Sizings {
					if expected := sizing.Expected.At(predictor.Need{}.Values()); told && sizing.Stage.Build == build &&
						(expected.Mid < float64(peaks[1])/2 || expected.Mid > 2*float64(peaks[1])) {
						t.Errorf("after three attempts %s is expected, want about %s (%s)", quantity.Bytes(expected.Mid), peaks[1],
							sizing.Source)
					}
				}
				before := strings.Count(strings.Join(decided, "\n"), "in a row took about")
				for i := range 20 {
					attempt(64+i, build, peaks[1])
				}
				if again := strings.Count(strings.Join(decided, "\n"), "in a row took about"); again != before {
					t.Errorf("the change is told %d times, want once", again)
				}
			})
		}
	}
}
