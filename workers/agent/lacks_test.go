package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// foreign has builds for another platform only.
type foreign struct{}

func (foreign) Path(_ context.Context, app, build string) (string, error) {
	return "", fmt.Errorf("build %s of app %s is for plan9/mips: %w", build, app, activities.ErrUnfit)
}

// TestAHostSaysWhichBuildsItCannotRun: the attempt counts for nothing, and the host tells the engine, so that nothing
// more of the build is placed there.
func TestAHostSaysWhichBuildsItCannotRun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit    func(*Options)
		command bool
		input   any
		why     string
	}{
		"a program for other machines": {
			func(o *Options) { o.Builds = foreign{} }, false, order{Do: "report"}, "plan9/mips",
		},
		"a directory of another machine": {
			func(o *Options) {
				o.Elsewhere, o.Declared = true, func(context.Context, slot.Order) error { return nil }
			}, true,
			wire.Command{Arguments: []string{"true"}, InPlace: "/home/me/project"},
			"/home/me/project",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t, 1, test.edit)
			task := wire.Task{
				Version: wire.Version, Run: "r", Pipeline: "p", Stage: stage, ID: "score-1", MaxAttempts: 2,
				Declared: of(1, 64), Command: test.command,
			}
			h.frontend.Submit(t, stage.Queue(), task, test.input)
			await(t, h.recorder, "the host says what it lacks", func(host predictor.Host) bool {
				why, lacks := host.LackOf(stage)
				other, _ := host.LackOf(predictor.StageID{App: "digits", Build: "b2", Name: "score"})
				return lacks && strings.Contains(why, test.why) && other == ""
			})
			h.plans <- placement(0, predictor.Sizing{})
			for _, record := range h.records() {
				if record.Outcome != predictor.Lost || record.Cause != predictor.CauseVenue {
					t.Errorf("Record: got %+v, want an attempt that counts for nothing", record)
				}
			}
		})
	}
}
