package transfer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
)

func TestAttackAPlantedLinkLeadsNoOutputAway(t *testing.T) {
	t.Parallel()
	store, output, packed := transfertest.PackedIn(t)
	out, victim := t.TempDir(), transfertest.NewVictim(t)
	transfertest.Plant(t, out, map[string]string{
		"model.part": victim.Precious, "model": victim.Precious,
		"score": victim.Dir,
	})
	root, err := os.OpenRoot(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := Receive(t.Context(), store, root, "model", output, false); err != nil {
		t.Errorf("beside planted links: %v", err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "model")); err != nil || string(content) != "model" {
		t.Errorf("the output is %q, %v", content, err)
	}
	if err := Receive(t.Context(), store, root, "score/precious", output, false); err == nil {
		t.Error("an output went through a link to another directory")
	}
	for _, name := range []string{"score", "score/below"} {
		if err := Receive(t.Context(), store, root, name, packed, true); err == nil {
			t.Errorf("a packed directory went through a link to another directory, as %s", name)
		}
	}
	victim.IsUnharmed(t)
}
