package engine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reloadable is an app whose one stage returns a constant that the test changes.
const reloadable = `package main

import (
	"context"

	"go.temporal.io/sdk/workflow"

	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
)

var say = spillway.NewStage("say", func(context.Context, int) (string, error) { return "VERSION", nil })

var pipeline = spillway.NewPipeline("version", func(ctx workflow.Context, in struct{}) (string, error) {
	return say.Run(ctx, 0)
})

func main() {
	app.Main(app.Options{Name: "reloadable", Pipelines: []app.Pipeline{pipeline}, Stages: []app.Stage{say}})
}
`

// appDir makes a module that is compiled against this tree as it is.
func appDir(t *testing.T) (dir string, write func(version string)) {
	t.Helper()
	dir = t.TempDir()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		const module = "github.com/spillway-ml/spillway"
		if name == "go.mod" {
			text = []byte(strings.Replace(string(text), "module "+module, "module reloadable", 1) +
				"\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n")
		}
		put(name, string(text))
	}
	return dir, func(version string) {
		t.Helper()
		put("main.go", strings.ReplaceAll(reloadable, "VERSION", version))
	}
}

func TestAnAppIsReloadedAndABrokenOneKeepsTheBuildBefore(t *testing.T) {
	t.Parallel()
	dir, write := appDir(t)
	write("first")
	e := startEngine(t, t.TempDir(), dir)
	id := 0
	says := func() string {
		id++
		return succeed[string](e, e.publish("version", "v"+string(rune('a'+id%26))+time.Now().Format("150405.000000000"),
			struct{}{}), patience)
	}
	becomes := func(want string) {
		t.Helper()
		var got string
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			if got = says(); got == want {
				return
			}
		}
		t.Fatalf("the app says %q, want %q", got, want)
	}
	becomes("first")
	write("second")
	becomes("second")
	write(`broken" + nothing + "`)
	for deadline := time.Now().Add(patience); !strings.Contains(e.printed(),
		"undefined: nothing"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the compiler's message was not shown:\n%s", e.printed())
		}
	}
	becomes("second")
	write("third")
	becomes("third")
}
