package build_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/cmd/internal/build"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ activities.Builds = (*build.Store)(nil)

// program is a whole app as far as a build can tell. It fails when it sees a variable that is none of its business.
const program = `package main

import "os"

func main() {
	if os.Getenv("SPILLWAY_TEST_SECRET") != "" {
		os.Exit(3)
	}
	if len(os.Args) == 3 && os.Args[1] == "describe" && os.Args[2] == "--json" {
		os.Stdout.WriteString(DESCRIPTION)
	}
}
`

func writeModule(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/tiny\n\ngo 1.26.0\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func describing(description string) string {
	return strings.ReplaceAll(program, "DESCRIPTION", "`"+description+"`")
}

// script is a binary that needs no compiler.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

const tiny = `{"v":1,"name":"tiny","pipelines":[{"name":"tiny","input_schema":null,"goal":{}}],"stages":null,` +
	`"simd":false}`

func TestADirectoryIsCompiledOnceAndKeptByDigest(t *testing.T) {
	t.Setenv("SPILLWAY_TEST_SECRET", "do not pass me on")
	dir, state := writeModule(t, describing(tiny)), t.TempDir()
	store := build.NewStore(state, func(build.Phase, time.Duration) {})
	app, err := store.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(app.Digest) != 12 || app.Path != filepath.Join(state, "builds", "tiny@"+app.Digest, "tiny") ||
		app.Descriptor.Pipelines[0].Name != "tiny" {
		t.Errorf("got %+v", app)
	}
	again, err := store.Build(t.Context(), dir)
	if err != nil || again.Digest != app.Digest {
		t.Errorf("the same source again: got %s, %v; want %s", again.Digest, err, app.Digest)
	}
	elsewhere, err := store.Build(t.Context(), writeModule(t, describing(tiny)))
	if err != nil || elsewhere.Digest != app.Digest {
		t.Errorf("the same source elsewhere: got %s, %v; want %s", elsewhere.Digest, err, app.Digest)
	}
	other, err := store.Build(t.Context(), writeModule(t,
		strings.Replace(describing(tiny), "os.Exit(3)", "os.Exit(4)", 1)))
	if err != nil || other.Digest == app.Digest {
		t.Errorf("another source: got %s, %v; want another digest", other.Digest, err)
	}
	listed, err := store.List()
	if err != nil || len(listed) != 2 || listed[1].Digest != other.Digest {
		t.Errorf("List = %+v, %v; want both, the newest last", listed, err)
	}
	newest, err := store.Newest()
	if err != nil || len(newest) != 1 || newest[0].Digest != other.Digest {
		t.Errorf("Newest = %+v, %v; want %s", newest, err, other.Digest)
	}
	if path, err := store.Path(t.Context(), "tiny", app.Digest); err != nil || path != app.Path {
		t.Errorf("Path = %s, %v; want %s", path, err, app.Path)
	}
	if left, err := filepath.Glob(filepath.Join(state, "builds", ".new-*")); err != nil || len(left) > 0 {
		t.Errorf("scratch directories are left: %v, %v", left, err)
	}
}

func TestACompileErrorIsShownVerbatim(t *testing.T) {
	t.Parallel()
	dir := writeModule(t, "package main\n\nfunc main() { undefined() }\n")
	_, err := build.NewStore(t.TempDir(), nil).Build(t.Context(), dir)
	var failure *build.Error
	if !errors.As(err, &failure) || !strings.Contains(failure.Output, "./main.go:3:15: undefined: undefined") {
		t.Errorf("got %v, want the compiler's message", err)
	}
}

func TestBadSourcesAreRefusedWithAHint(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ source, message, hint string }{
		"a path that is not there":         {filepath.Join(t.TempDir(), "nowhere"), "no such file", "Go main package"},
		"a file that is not executable":    {plain, "not executable", "chmod +x"},
		"a directory without go.mod":       {t.TempDir(), "go build failed", "go mod init"},
		"a program that prints nothing":    {script(t, "exit 0"), "not a description", "app.Main"},
		"a program that prints other text": {script(t, "echo hello"), "not a description", "app.Main"},
		"a program that fails":             {script(t, "echo broken >&2; exit 3"), "exit status 3\nbroken", "app.Main"},
		"a program of another version":     {script(t, `echo '{"v":99,"name":"tiny"}'`), "version 99", "same version"},
		"a program whose name is a path":   {script(t, `echo '{"v":1,"name":"../x"}'`), "../x", "Name in the options"},
		"a program with an at in its name": {script(t, `echo '{"v":1,"name":"a@b"}'`), "a@b", "Name in the options"},
		"a program that has no pipelines":  {script(t, `echo '{"v":1,"name":"tiny"}'`), "no pipeline", "at least one"},
		"a pipeline whose name is none": {
			script(t, `echo '{"v":1,"name":"tiny","pipelines":[{"name":"A b"}]}'`),
			`a pipeline has the name "A b"`, "rename the pipeline",
		},
		"a stage whose name is none": {
			script(t,
				`echo '{"v":1,"name":"tiny","pipelines":[{"name":"a"}],"stages":[{"name":"../b"}]}'`),
			`a stage has the name "../b"`,
			"rename the stage",
		},
		"a stage with less than no GPU": {
			script(t, declaring(`"gpu_milli":-1000`)), "stage b: it asks for -1 GPUs", "hints",
		},
		"a stage with more GPUs than are": {
			script(t, declaring(`"gpu_milli":9000000000000000000`)), "asks for 9000000000000000 GPUs", "hints",
		},
		"a stage with a number that is none": {
			script(t, declaring(`"gpu_milli":1e999`)), "is not a description", "app.Main",
		},
		"a stage with a part of a GPU":  {script(t, declaring(`"gpu_milli":500`)), "0.5 GPU; GPUs are given whole", "hints"},
		"a stage with memory of no GPU": {script(t, declaring(`"gpu_memory_bytes":5`)), "not how many", "hints"},
		"a stage with less than no GPU memory": {
			script(t, declaring(`"gpu_milli":1000,"gpu_memory_bytes":-5`)), "-5 B of the memory of each GPU", "hints",
		},
		"a stage with less than no memory":  {script(t, declaring(`"memory_bytes":-5`)), "-5 B of memory", "hints"},
		"a library where a program must be": {writeModule(t, "package tiny\n"), "not a program", "package is main"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			_, err := build.NewStore(state, nil).Build(t.Context(), test.source)
			var failure *build.Error
			if !errors.As(err, &failure) {
				t.Fatalf("got %v, want a build.Error", err)
			}
			if !strings.Contains(err.Error(), test.message) || !strings.Contains(failure.Advice(), test.hint) {
				t.Errorf("got %v\nhint %q\nwant %q and the hint %q", err, failure.Advice(), test.message, test.hint)
			}
			if apps, err := build.NewStore(state, nil).List(); err != nil || len(apps) > 0 {
				t.Errorf("something was stored: %v, %v", apps, err)
			}
		})
	}
}

func TestABinaryIsCopied(t *testing.T) {
	t.Parallel()
	binary := script(t, "echo '"+tiny+"'")
	store := build.NewStore(t.TempDir(), nil)
	app, err := store.Build(t.Context(), binary)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(app.Path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the copy differs:\n%s", diff)
	}
	if same, err := store.Build(t.Context(), app.Path); err != nil || same.Path != app.Path {
		t.Errorf("a stored build given again: got %+v, %v", same, err)
	}
}

func TestADescriptionThatDoesNotComeIsGivenUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := build.NewStore(t.TempDir(), nil).Build(ctx, script(t, "sleep 60 & wait"))
	if err == nil || time.Since(begin) > 30*time.Second {
		t.Errorf("got %v after %s, want an error soon", err, time.Since(begin))
	}
}

func TestUnknownBuildsHaveNoPath(t *testing.T) {
	t.Parallel()
	store := build.NewStore(t.TempDir(), nil)
	for _, name := range [][2]string{
		{"tiny", "0123456789ab"},
		{"../tiny", "0123456789ab"},
		{"tiny", "../../etc"},
		{"", ""},
	} {
		if path, err := store.Path(t.Context(), name[0], name[1]); !errors.Is(err, build.ErrUnknownBuild) {
			t.Errorf("Path(%q, %q) = %q, %v; want ErrUnknownBuild", name[0], name[1], path, err)
		}
	}
	if apps, err := store.List(); err != nil || apps != nil {
		t.Errorf("List of nothing = %v, %v", apps, err)
	}
}

func TestLeftoversOfACrashAreSweptAndNotListed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	store := build.NewStore(state, nil)
	old, young, broken := filepath.Join(store.Dir(), ".new-old"), filepath.Join(store.Dir(), ".new-young"),
		filepath.Join(store.Dir(), "tiny@0123456789ab")
	for _, dir := range []string{old, young, broken} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Build(t.Context(), script(t, "echo '"+tiny+"'")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an old leftover is still there: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a build that may be going on was removed: %v", err)
	}
	apps, err := store.List()
	if err != nil || len(apps) != 1 {
		t.Errorf("List = %+v, %v; want the whole one only", apps, err)
	}
}

// declaring prints the description of a program whose stage declares a size.
func declaring(size string) string {
	return `echo '{"v":1,"name":"tiny","pipelines":[{"name":"a"}],"stages":[{"name":"b","declared":{` + size + `}}]}'`
}
