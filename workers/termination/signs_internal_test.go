package termination

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestThePythonRunnerKnowsTheSameSigns reads the list of the runner, which tells of memory by the texts of exceptions.
func TestThePythonRunnerKnowsTheSameSigns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../exec/torch/spillway_runner/answers.py")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "\nMEMORY_SIGNS = (\n")
	list, _, closed := strings.Cut(list, "\n)\n")
	if !found || !closed {
		t.Fatal("answers.py has no list MEMORY_SIGNS")
	}
	var theirs []string
	for _, match := range regexp.MustCompile(`(?m)^\s+"([^"]+)",`).FindAllStringSubmatch(list, -1) {
		theirs = append(theirs, match[1])
		if !slices.ContainsFunc(signs, func(s sign) bool { return s.words == match[1] && !s.either }) {
			t.Errorf("%q is a sign to the runner alone", match[1])
		}
	}
	for _, s := range signs {
		if s.kind == Device && !s.either && !slices.Contains(theirs, s.words) {
			t.Errorf("%q is no sign to the runner", s.words)
		}
	}
}
