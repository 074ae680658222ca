package transfer_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
)

// Keys are what the code of the run says; none may take the place of another, or lie above the directory.
func TestEveryArtifactOfAResultHasAPlaceOfItsOwn(t *testing.T) {
	t.Parallel()
	result := map[string]any{}
	for i, key := range []string{"a/b", "a_b", "a%2Fb", "..", ".", "", "%", "%2E2E", "%2E", "a\x00b"} {
		result[key] = map[string]any{"digest": fmt.Sprintf("%064x", i), "bytes": 1}
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	files, err := transfer.LeftInResult(encoded)
	if err != nil || len(files) != len(result) {
		t.Fatalf("%d files, %v; want %d", len(files), err, len(result))
	}
	seen := map[string]bool{}
	for _, file := range files {
		if seen[file.Name] || file.Name == "" || file.Name == "." || file.Name == ".." ||
			strings.ContainsAny(file.Name, "/\x00") {
			t.Errorf("the place %q is taken, or none of a file", file.Name)
		}
		seen[file.Name] = true
	}
}
