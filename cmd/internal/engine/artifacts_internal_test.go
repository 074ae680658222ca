package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
)

// TestArtifactsAreNotLookedForWhereTheyAreNot has a state directory be started with each store after each other one.
func TestArtifactsAreNotLookedForWhereTheyAreNot(t *testing.T) {
	t.Parallel()
	const one, same, other = "s3://bucket/one?region=eu-west-1", "s3://bucket/one?sse=AES256", "s3://bucket/two"
	for name, c := range map[string]struct {
		before string // where it kept artifacts; empty is nowhere yet
		files  int    // how many it has in files
		to     string
		says   string // why it is refused; empty where it is not
	}{
		"a new one to S3":                      {"", 0, one, ""},
		"one with files to S3":                 {"", 1, one, "aws s3 sync STATE/artifacts s3://bucket/one"},
		"one whose folder of files is empty":   {"", 0, one, ""},
		"the same place, encrypted by now":     {one, 0, same, ""},
		"another prefix":                       {one, 0, other, "s3://bucket/one s3://bucket/two --exclude spillway-owner)"},
		"the same place after files were left": {one, 1, one, ""},
	} {
		state := t.TempDir()
		config := &Config{StateDir: state}
		for range c.files {
			store, err := artifact.Open(config.artifactDir())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.Put(t.Context(), strings.NewReader("a")); err != nil {
				t.Fatal(err)
			}
		}
		to, err := s3store.Parse(c.to)
		if err != nil {
			t.Fatal(err)
		}
		err = mayMove(t.Context(), config, artifactsKept{ID: "id", Location: c.before}, to)
		says := strings.ReplaceAll(c.says, "STATE", state)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", name, err, says)
		}
	}
}

func TestFilesAreNotStartedInThePlaceOfAnotherStore(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	if at, err := ArtifactsOf(state); at != InFiles || err != nil {
		t.Errorf("a new state directory has them in %q, %v", at, err)
	}
	const location = "s3://bucket/one?endpoint=http%3A%2F%2F127.0.0.1%3A1&region=eu-west-1"
	if err := (artifactsKept{ID: "id", Location: location}).write(state); err != nil {
		t.Fatal(err)
	}
	if at, err := ArtifactsOf(state); at != location || err != nil {
		t.Errorf("they are in %q, %v; want %q", at, err, location)
	}
	_, err := openArtifacts(t.Context(), &base{config: &Config{StateDir: state, Artifacts: InFiles}}, nil)
	if err == nil || !strings.Contains(err.Error(), "leave --artifacts out") || strings.Contains(err.Error(), "aws s3") {
		t.Errorf("started with files: %v", err)
	}
	if _, err := os.Stat(filepath.Join(state, "artifacts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store of files was made: %v", err)
	}
	for _, text := range []string{"", "{", `{"location": "s3://bucket/one"}`} {
		if err := os.WriteFile(filepath.Join(state, artifactsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openArtifacts(t.Context(), &base{config: &Config{StateDir: state}}, nil)
		if err == nil || !strings.Contains(err.Error(), "put it back from a copy") {
			t.Errorf("%q: %v, want that it is not guessed", text, err)
		}
	}
}
