package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/artifact"
)

func TestAttackAPlantedLinkLeadsNoOutputAway(t *testing.T) {
	t.Parallel()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	output, err := store.Put(t.Context(), strings.NewReader("model"))
	if err != nil {
		t.Fatal(err)
	}
	out, victim := t.TempDir(), t.TempDir()
	precious := filepath.Join(victim, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"model.part": precious, "model": precious, "score": victim} {
		if err := os.Symlink(to, filepath.Join(out, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := receive(t.Context(), store, out, "model", output, false); err != nil {
		t.Errorf("beside planted links: %v", err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "model")); err != nil || string(content) != "model" {
		t.Errorf("the output is %q, %v", content, err)
	}
	if err := receive(t.Context(), store, out, "score/precious", output, false); err == nil {
		t.Error("an output went through a link to another directory")
	}
	if content, err := os.ReadFile(precious); err != nil || string(content) != "precious" {
		t.Errorf("the file of another is %q, %v", content, err)
	}
}
