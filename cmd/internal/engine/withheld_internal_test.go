package engine

import (
	"errors"
	"testing"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func TestAQueueOfAStageWithSecretsIsKnown(t *testing.T) {
	t.Parallel()
	declared := []loopwire.Stage{
		{Name: "load", Secrets: []string{"token"}}, {Name: "load-more"}, {Name: "train"},
	}
	stage := predictor.StageID{App: "digits", Build: "b1", Name: "load", Team: "vision"}
	for queue, want := range map[string]string{
		"digits@b1/load": "load", "digits@b1/load.pool": "load",
		stage.Queue(): "load", stage.PoolQueue(): "load",
		"digits@b1/load-more": "", "digits@b1/train": "", "digits@b1/train~load": "", "digits@b2/load": "",
	} {
		if got, is := secretStage(declared, "digits", "b1", queue); got != want || is != (want != "") {
			t.Errorf("queue %s: got %q, want %q", queue, got, want)
		}
	}
}

// TestAHostThatMayHaveNoSecretsLacksTheStagesThatHave: nothing is placed where the proxy refuses the polls.
func TestAHostThatMayHaveNoSecretsLacksTheStagesThatHave(t *testing.T) {
	t.Parallel()
	declared := []loopwire.Stage{{Name: "load", Secrets: []string{"token"}}, {Name: "train"}}
	id := buildID{"digits", "b1"}
	for name, c := range map[string]struct {
		unread error
		lacked map[string]bool // by stage
	}{
		"the build is read":        {nil, map[string]bool{"load": true, "train": false}},
		"the build cannot be read": {errors.New("no such file"), map[string]bool{"load": true, "train": true}},
	} {
		host := predictor.Host{Lacks: id.secretLacks(declared, c.unread)}
		for stage, want := range c.lacked {
			why, lacks := host.LackOf(predictor.StageID{App: id.app, Build: id.build, Name: stage})
			if lacks != want || lacks && why == "" {
				t.Errorf("%s: the host lacks stage %s: %v (%q), want %v", name, stage, lacks, why, want)
			}
		}
		if why, lacks := host.LackOf(predictor.StageID{App: id.app, Build: "b2", Name: "load"}); lacks {
			t.Errorf("%s: the host lacks a stage of another build: %s", name, why)
		}
	}
}
