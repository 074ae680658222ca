package engine

import (
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
