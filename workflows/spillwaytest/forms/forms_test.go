package forms_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
	"github.com/spillway-ml/spillway/workflows/spillwaytest/forms"
)

// pipelines are those of all forms, with the stages of all.
func pipelines(tb testing.TB) ([]runs.AnyPipeline, []runs.AnyStage) {
	tb.Helper()
	linked, err := forms.Chain()
	if err != nil {
		tb.Fatal(err)
	}
	single, err := forms.Single()
	if err != nil {
		tb.Fatal(err)
	}
	return append(forms.Pipelines(), linked.Pipeline(), single.Pipeline()),
		append(append(forms.Stages(), linked.Stages()...), single.Stages()...)
}

func TestHistoriesThatEnginesRecordedReplay(t *testing.T) {
	t.Parallel()
	histories, err := filepath.Glob("testdata/v*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(histories) == 0 {
		t.Fatal("there is no history in testdata: record them with SPILLWAY_UPDATE=1 go test -run EveryFormOfRun " +
			"./cmd/internal/engine")
	}
	all, stages := pipelines(t)
	for _, history := range histories {
		t.Run(strings.TrimPrefix(history, "testdata"+string(os.PathSeparator)), func(t *testing.T) {
			t.Parallel()
			spillwaytest.Replay(t, history, all, stages...)
		})
	}
}
