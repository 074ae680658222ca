package artifact_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

func TestTheURLOfADirectoryOpensIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "with space", "100%", "what?", "a#b", "ü"} {
		dir := filepath.Join(t.TempDir(), name)
		first, err := artifact.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		ref := put(t, first, "shared")
		second, err := artifact.FromURL(artifact.URL(dir))
		if err != nil {
			t.Errorf("FromURL(%q): %v", artifact.URL(dir), err)
			continue
		}
		if got, err := activities.ReadAll(t.Context(), second, ref.Digest); err != nil || string(got) != "shared" {
			t.Errorf("read through %q: %q, %v", artifact.URL(dir), got, err)
		}
	}
}

func TestLocationsThatCannotBeOpenedAreExplained(t *testing.T) {
	t.Parallel()
	for location, want := range map[string]string{
		"":                       "has no scheme",
		"/srv/artifacts":         "has no scheme",
		"s3://bucket/prefix":     `scheme "s3" is not supported`,
		"file:relative/dir":      "is not absolute",
		"file://srv/artifacts":   "names another host",
		"file:///srv/a?sync=off": "has a query",
		"file:///srv/a#1":        "has a query or a fragment",
		"file://me:hunter2@/srv": "has no user",
		"s3://me:hunter2@%zz":    "is not a URL",
	} {
		store, err := artifact.FromURL(location)
		if err == nil {
			t.Errorf("FromURL(%q) = %v, want an error", location, store)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, want) || !strings.Contains(text, artifact.Supported) || strings.Contains(text, "hunter2") {
			t.Errorf("FromURL(%q): %q, want it to say %q and what is supported, and no password", location, text, want)
		}
	}
}
