package digits

import (
	"os"
	"strings"
	"testing"
)

func TestTheReadmeShowsThePipelineAsItIs(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("digits.go")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(readme), "\n```go\n")
	shown, _, ended := strings.Cut(after, "```")
	if !ended || !strings.Contains(shown, "NewStage(") || !strings.Contains(shown, "func Digits(") {
		t.Fatalf("the first Go of README.md is not the sample's stages and pipeline:\n%s", shown)
	}
	if !strings.Contains(string(source), shown) {
		t.Errorf("README.md shows other code than digits.go: copy the stages and Digits anew. It shows\n%s", shown)
	}
}
