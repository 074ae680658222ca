package apps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
)

func TestWhatTidyComplainsOfIsOneLine(t *testing.T) {
	t.Parallel()
	const (
		list = "https://proxy.golang.org/github.com/spillway-ml/spillway/@v/list"
		mod  = "https://proxy.golang.org/go.temporal.io/sdk/@v/v1.46.0.mod"
		then = "): see to the network, or set GOPROXY to a proxy that has them"
	)
	for output, want := range map[string]string{
		"go: finding module for package example.com/workflows\ngo: myapp imports\n\texample.com/workflows: reading " + list +
			": 403 Forbidden\ngo: x@v1.46.0: Get \"" + mod + "\": 403 Forbidden\n": "modules cannot be fetched (403 Forbidden" +
			then,
		"go: x@v1.0.0: Get \"" + mod + "\": dial tcp: lookup a: no such host\n": "modules cannot be fetched " +
			"(dial tcp: lookup a: no such host" + then,
		"go: x@v1.0.0: module lookup disabled by GOPROXY=off\n": "modules cannot be fetched " +
			"(module lookup disabled by GOPROXY=off" + then,
		"go: downloading x\ngo: errors parsing go.mod:\ngo.mod:3: unknown directive: foo\n": "errors parsing go.mod: " +
			"go.mod:3: unknown directive: foo",
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
		got, err := newScaffold(&tool.Tool{Deps: tool.Deps{Version: "v1.0.0"}}, "/tmp/"+base, "example.com/m")
		if err != nil || got.App != want {
			t.Errorf("%q: got %q, %v; want %q", base, got.App, err, want)
		}
	}
	for _, base := range []string{"é", strings.Repeat("x", 41)} {
		if got, err := newScaffold(&tool.Tool{}, "/tmp/"+base, "example.com/m"); err == nil {
			t.Errorf("%q: got %q, want an error", base, got.App)
		}
	}
}

func TestLanguageVersionsLeaveThePatchOut(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"go1.26.8": "1.26.0", "go1.27.1-X:simd": "1.27.0",
		"devel go1.28-abc": "1.26.0",
	} {
		if got := languageVersion(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}

func TestFingerprintsChangeWithWhatABuildReads(t *testing.T) {
	t.Parallel()
	root := transfertest.DirectoryOf(t, map[string]string{
		"go.mod": "module m", "a.go": "package m", "data/x.csv": "1",
		"a_test.go": "package m", ".git/HEAD": "x", "testdata/x": "y",
	})
	before := fingerprint(root)
	later := time.Now().Add(time.Hour)
	for name, changes := range map[string]bool{
		"a_test.go": false, ".git/HEAD": false, "testdata/x": false, "a.go": true,
		"data/x.csv": true, "go.mod": true,
	} {
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
	root := transfertest.DirectoryOf(t, map[string]string{"go.mod": "module m", "cmd/app/main.go": "package main"})
	if got := watchRoot(filepath.Join(root, "cmd", "app")); got != root {
		t.Errorf("got %s, want %s", got, root)
	}
	file := filepath.Join(root, "cmd/app/main.go")
	if got := watchRoot(file); got != file {
		t.Errorf("got %s, want %s", got, file)
	}
}
