package apps_test

import (
	"bytes"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

func TestInitWritesAWholeApp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "My Forecast")
	var out, complaints bytes.Buffer
	if code := cli.Execute(t.Context(), []string{"init", dir, "--module", "example.com/forecast", "--no-tidy"}, &out,
		&complaints, tool.Deps{Version: "v0.1.0"}); code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, &complaints)
	}
	for name, parts := range map[string][]string{
		"go.mod": {
			"module example.com/forecast\n", "require github.com/spillway-ml/spillway v0.0.0",
			"replace github.com/spillway-ml/spillway => /",
		},
		"main.go":          {`Name:      "my-forecast"`},
		"pipeline.go":      {`spillway.NewPipeline("my-forecast", Run)`},
		"pipeline_test.go": {"spillwaytest.Replay(", "spillwaytest.Run("},
		"README.md":        {"# my-forecast"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s has no %q:\n%s", name, part, text)
			}
		}
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.AllErrors); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if formatted, err := format.Source(text); err != nil || !bytes.Equal(formatted, text) {
			t.Errorf("%s is not formatted: %v", name, err)
		}
	}
	if !strings.Contains(out.String(), "its go.mod uses the source tree") ||
		!strings.Contains(out.String(), "spillway run my-forecast --app .") {
		t.Errorf("got %s", &out)
	}
}
