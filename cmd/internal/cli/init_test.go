package cli

import (
	"bytes"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestInitWritesAWholeApp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "My Forecast")
	var out, complaints bytes.Buffer
	if code := Execute(t.Context(), []string{"init", dir, "--module", "example.com/forecast", "--no-tidy"}, &out, &complaints, Deps{Version: "v0.1.0"}); code != ExitOK {
		t.Fatalf("got exit %d: %s", code, &complaints)
	}
	for name, parts := range map[string][]string{
		"go.mod":           {"module example.com/forecast\n", "require github.com/spillway-ml/spillway v0.0.0", "replace github.com/spillway-ml/spillway => /"},
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
	if !strings.Contains(out.String(), "its go.mod uses the source tree") || !strings.Contains(out.String(), "spillway run my-forecast --app .") {
		t.Errorf("got %s", &out)
	}
}

func TestWhatTidyComplainsOfIsOneLine(t *testing.T) {
	t.Parallel()
	const (
		list = "https://proxy.golang.org/github.com/spillway-ml/spillway/@v/list"
		mod  = "https://proxy.golang.org/go.temporal.io/sdk/@v/v1.46.0.mod"
		then = "): see to the network, or set GOPROXY to a proxy that has them"
	)
	for output, want := range map[string]string{
		"go: finding module for package example.com/workflows\ngo: myapp imports\n\texample.com/workflows: reading " + list +
			": 403 Forbidden\ngo: x@v1.46.0: Get \"" + mod + "\": 403 Forbidden\n": "modules cannot be fetched (403 Forbidden" + then,
		"go: x@v1.0.0: Get \"" + mod + "\": dial tcp: lookup a: no such host\n":             "modules cannot be fetched (dial tcp: lookup a: no such host" + then,
		"go: x@v1.0.0: module lookup disabled by GOPROXY=off\n":                             "modules cannot be fetched (module lookup disabled by GOPROXY=off" + then,
		"go: downloading x\ngo: errors parsing go.mod:\ngo.mod:3: unknown directive: foo\n": "errors parsing go.mod: go.mod:3: unknown directive: foo",
		"":                       "",
		strings.Repeat("x", 300): strings.Repeat("x", 200) + "…",
	} {
		if got := tidyProblem(output); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAppNamesComeFromTheDirectory(t *testing.T) {
	t.Parallel()
	for base, want := range map[string]string{"forecast": "forecast", "My_App": "my_app", "a.b c": "a-b-c", "--x--": "x"} {
		got, err := (&tool{deps: Deps{Version: "v1.0.0"}}).scaffold("/tmp/"+base, "example.com/m")
		if err != nil || got.App != want {
			t.Errorf("%q: got %q, %v; want %q", base, got.App, err, want)
		}
	}
	for _, base := range []string{"é", strings.Repeat("x", 41)} {
		if got, err := (&tool{}).scaffold("/tmp/"+base, "example.com/m"); err == nil {
			t.Errorf("%q: got %q, want an error", base, got.App)
		}
	}
}

func TestLanguageVersionsLeaveThePatchOut(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"go1.26.8": "1.26.0", "go1.27.1-X:simd": "1.27.0", "devel go1.28-abc": "1.26.0"} {
		if got := languageVersion(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}

func TestFingerprintsChangeWithWhatABuildReads(t *testing.T) {
	t.Parallel()
	root := directoryOf(t, map[string]string{"go.mod": "module m", "a.go": "package m", "data/x.csv": "1", "a_test.go": "package m", ".git/HEAD": "x", "testdata/x": "y"})
	before := fingerprint(root)
	later := time.Now().Add(time.Hour)
	for name, changes := range map[string]bool{"a_test.go": false, ".git/HEAD": false, "testdata/x": false, "a.go": true, "data/x.csv": true, "go.mod": true} {
		path := filepath.Join(root, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, later, later); err != nil {
			t.Fatal(err)
		}
		if changed := fingerprint(root) != before; changed != changes {
			t.Errorf("%s: changed is %v, want %v", name, changed, changes)
		}
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(root, "data/x.csv")); err != nil {
		t.Fatal(err)
	}
	if fingerprint(root) == before {
		t.Error("a removed file is not noticed")
	}
}

func TestTheWholeModuleIsWatched(t *testing.T) {
	t.Parallel()
	root := directoryOf(t, map[string]string{"go.mod": "module m", "cmd/app/main.go": "package main"})
	if got := watchRoot(filepath.Join(root, "cmd", "app")); got != root {
		t.Errorf("got %s, want %s", got, root)
	}
	file := filepath.Join(root, "cmd/app/main.go")
	if got := watchRoot(file); got != file {
		t.Errorf("got %s, want %s", got, file)
	}
}
