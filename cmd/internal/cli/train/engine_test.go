package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
	"github.com/spillway-ml/spillway/workflows/chain"
)

func TestAttackAPlantedLinkLeadsNoTrainedModelAway(t *testing.T) {
	t.Parallel()
	store, _, packed := transfertest.PackedIn(t)
	out, victim := t.TempDir(), transfertest.NewVictim(t)
	transfertest.Plant(t, out, map[string]string{"precious": victim.Precious, "checkpoints": victim.Dir})
	left := chain.StageResult{Outputs: map[string][]wire.CommandFile{trainedOutput: {{Artifact: packed, Tree: true}}}}
	if err := fetchTrained(t.Context(), store, left, out, false); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "precious")); err != nil || string(content) != "model" {
		t.Errorf("the model is %q, %v", content, err)
	}
	if left, err := filepath.Glob(filepath.Join(out, ".spillway-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	victim.IsUnharmed(t)
}
