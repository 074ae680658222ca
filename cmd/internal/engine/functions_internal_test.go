package engine

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/predictor"
)

//nolint:paralleltest // it sets a variable of the environment
func TestFunctionsElsewhereAreRefusedWhereArtifactsAreFilesOfThisMachine(t *testing.T) {
	const aws, one = "https://lambda.eu-central-1.amazonaws.com", "s3://bucket/one"
	for _, tt := range []struct {
		endpoint, artifacts string
		refused             bool
	}{
		{"", InFiles, false},
		{"http://127.0.0.1:4566", InFiles, false},
		{"http://[::1]:4566/", InFiles, false},
		{"http://localhost:4566", InFiles, false},
		{"", one, false},
		{aws, one, false},
		{aws, InFiles, true},
		{"http://192.168.1.7:4566", InFiles, true},
		{"http://127.0.0.1.example.com", InFiles, true},
	} {
		if err := mayReach(tt.endpoint, tt.artifacts); (err != nil) != tt.refused {
			t.Errorf("functions at %q, artifacts in %s: got %v", tt.endpoint, tt.artifacts, err)
		}
	}

	t.Setenv(endpointVariable, aws)
	_, err := openVenuesOf(InFiles).openFunctions(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--artifacts s3://") || !strings.Contains(err.Error(), aws) {
		t.Errorf("an engine with functions on AWS and artifacts in files: got %v", err)
	}
	if _, err := openVenuesOf(one).openFunctions(t.Context()); err != nil {
		t.Errorf("an engine with functions on AWS and artifacts in S3: got %v", err)
	}
}

// openVenuesOf are the venues of an engine that has opened nothing but the place of its artifacts.
func openVenuesOf(artifactsAt string) *venues {
	s := &stores{base: &base{
		lifecycle: &lifecycle{logger: slog.New(slog.DiscardHandler)}, config: &Config{},
	}, store: &artifacts{location: artifactsAt, remote: artifactsAt}}
	return &venues{reports: &reports{stores: s}}
}

func TestARunnerIsAProgramOfThisProcessorThatNeedsNoLibrary(t *testing.T) {
	t.Parallel()
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for name, tt := range map[string]struct {
		machine elf.Machine
		says    string
	}{
		"this one":          {machines[runtime.GOARCH], ""},
		"another one":       {machines[map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]], "is for "},
		"one of nobody's":   {elf.EM_S390, "is for the processor EM_S390"},
		"no program at all": {0, "is no program for Linux"},
	} {
		head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(tt.machine), Version: 1, Ehsize: 64}
		if tt.machine != 0 {
			copy(head.Ident[:], elf.ELFMAG)
		}
		head.Ident[elf.EI_CLASS], head.Ident[elf.EI_DATA], head.Ident[elf.EI_VERSION] = 2, 1, 1
		var text bytes.Buffer
		path := filepath.Join(t.TempDir(), runnerName)
		if err := errors.Join(binary.Write(&text, binary.LittleEndian, head),
			os.WriteFile(path, text.Bytes(), 0o700)); err != nil {
			t.Fatal(err)
		}
		found, err := findRunner(path)
		switch {
		case tt.says == "" && (err != nil || found.digest == ""):
			t.Errorf("a program of %s: got %+v, %v", name, found, err)
		case tt.says != "" && (!errors.Is(err, errNoRunner) || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("a program of %s: got %v, want that it %s", name, err, tt.says)
		}
	}
}

func TestFunctionsOfOldBuildsWhoseRunsGoOnAndOfTheRunnerAreUsed(t *testing.T) {
	t.Parallel()
	a := &apps{
		current: map[string]served{"app": {App: build.App{Digest: "new"}}},
		workers: &workflowWorkers{stop: map[buildID]context.CancelFunc{{"app", "new"}: nil, {"app", "old"}: nil}},
	}
	v := &venues{functions: predictor.FunctionVenue{Enabled: true}, runner: runner{digest: "runner"}}
	e := &Engine{front: &front{venues: v, apps: a}}
	if got := e.functionBuilds(); got != nil {
		t.Errorf("before it is known which runs go on: got %q, want nil", got)
	}
	a.tidied = true
	if got, want := e.functionBuilds(), []string{"new", "old", "runner"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	v.functions.Enabled = false
	if got := e.functionBuilds(); got != nil {
		t.Errorf("without functions: got %q, want nil", got)
	}
}
