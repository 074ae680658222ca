package torch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec/torch"
)

// script writes a program that stands for a Python.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func systemPython(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	return path
}

func TestAPythonThatWillNotDoIsRefusedWithWhatToInstall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		is         error
		want       []string
	}{
		{
			"without its libraries", `exec ` + systemPython(t) + ` -S -E "$@"`, torch.ErrNoTorch,
			[]string{"cannot import torch", "python3-torch", "pip install torch"},
		},
		{
			"too old", `exec ` + systemPython(t) +
				` -c 'import sys; sys.version_info, sys.version = (3, 6, 9), "3.6.9"; exec(sys.argv[1])' "$4"`,
			nil,
			[]string{"Python 3.6.9", "3.8 or later"},
		},
		{"no Python", "echo not a snake; exit 3", nil, []string{"exit status 3", "not a snake"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := torch.Probe(t.Context(), torch.Options{Python: script(t, tt.text), Model: "testdata/models.py:mlp"})
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				t.Fatalf("got %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in the error:\n%v", want, err)
				}
			}
		})
	}
}

func TestOptionsThatMakeNoSenseAreRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	const model = "testdata/models.py:mlp"
	for _, tt := range []struct {
		opts torch.Options
		want string
	}{
		{torch.Options{}, "file.py:function"},
		{torch.Options{Model: "testdata/models.py"}, "file.py:function"},
		{torch.Options{Model: "testdata/models.py:"}, "file.py:function"},
		{torch.Options{Model: "testdata/models:mlp"}, "no Python file"},
		{torch.Options{Model: "testdata/absent.py:mlp"}, "no file testdata/absent.py"},
		{torch.Options{Model: model, Batch: -1}, "batch -1"},
		{torch.Options{Model: model, Threads: 1 << 20}, "threads 1048576"},
		{torch.Options{Model: model, Repeats: -2}, "repeats -2"},
		{torch.Options{Model: model, Shape: []int{3, 0}}, "dimension 1"},
		{torch.Options{Model: model, Device: "tpu"}, `"tpu"; want cpu or cuda`},
		{torch.Options{Model: model, Python: "no-such-python"}, "install python3"},
	} {
		_, _, err := torch.Probe(t.Context(), tt.opts)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got error %v, want %q in it", tt.opts, err, tt.want)
		}
	}
}

func TestAModelMayPrintWhatItLikes(t *testing.T) {
	t.Parallel()
	var log lines
	g, _, err := torch.Probe(t.Context(), torch.Options{
		Python: torch.RequirePython(t), Model: "testdata/loud.py:build",
		Threads: 1, Repeats: 2, Shape: []int{4}, Logger: slog.New(&log),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Ops) != 2 {
		t.Errorf("got %d operations, want the input and the layer", len(g.Ops))
	}
	if longest, all := log.measure(); longest < 4<<10 || longest > 16<<10 || all < 2 {
		t.Errorf("logged %d lines, the longest of %d bytes; want what was printed, with long lines cut", all, longest)
	}
}

func TestAModelThatKillsItsProcessIsQuotedWithItsLastWords(t *testing.T) {
	t.Parallel()
	_, _, err := torch.Probe(t.Context(), torch.Options{Python: torch.RequirePython(t), Model: "testdata/loud.py:dies"})
	if err == nil || !strings.Contains(err.Error(), "signal: aborted") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("got %v, want the signal and the last words", err)
	}
}

func TestAModelThatHangsLeavesNothingWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	dir, found := probeUntilNumbers(t, "hangs.py", slog.New(slog.DiscardHandler))
	if n := len(found); n != 3 {
		t.Fatalf("%d processes in %q, want 3", n, found)
	}
	for _, pid := range found {
		waitGone(t, pid)
	}
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{filepath.Join(dir, "hangs.py"), filepath.Join(dir, "numbers")}, entries); diff != "" {
		t.Errorf("files beside the model (-want +got):\n%s", diff)
	}
}

// TestAProcessThatDoesNotEndThoughItWasKilledIsLeftBehind has a process that another one traces stand in for one that
// waits for a driver: neither can be collected.
func TestAProcessThatDoesNotEndThoughItWasKilledIsLeftBehind(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("it needs ptrace of Linux")
	}
	var log bytes.Buffer
	_, found := probeUntilNumbers(t, "held.py", slog.New(slog.NewTextHandler(&log, nil)))
	if len(found) != 3 {
		t.Fatalf("got %q, want the process, its tracer, and whether that may", found)
	}
	tracer, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(tracer, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	defer waitGone(t, found[0])
	if found[2] == "0" {
		t.Skip("processes may not trace their parents here")
	}
	if want := "was killed and does not end"; !strings.Contains(log.String(), want) ||
		!strings.Contains(log.String(), "pid="+found[0]) {
		t.Errorf("%q of process %s is not in the log:\n%s", want, found[0], &log)
	}
}

// probeUntilNumbers probes build of a copy of a model, ends that once the model has written numbers of processes, and
// returns those and where the copy is.
func probeUntilNumbers(t *testing.T, model string, logger *slog.Logger) (dir string, numbers []string) {
	t.Helper()
	dir = t.TempDir()
	text, err := os.ReadFile(filepath.Join("testdata", model))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, model), text, 0o600); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var found string
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for ctx.Err() == nil {
			if numbers, err := os.ReadFile(filepath.Join(dir, "numbers")); err == nil {
				found = string(numbers)
				cancel(cause)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	_, _, err = torch.Probe(ctx, torch.Options{
		Python: torch.RequirePython(t), Model: filepath.Join(dir, model) + ":build", Logger: logger,
	})
	cancel(nil)
	waiting.Wait()
	if !errors.Is(err, cause) {
		t.Fatalf("got %v, want the cause", err)
	}
	return dir, strings.Fields(found)
}

// waitGone waits until no process pid runs; one that awaits collection by init counts as gone.
func waitGone(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %s still runs", pid)
}

// lines is a log handler that measures what a model printed.
type lines struct {
	mu           sync.Mutex
	longest, all int
}

func (*lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *lines) WithGroup(string) slog.Handler          { return l }

func (l *lines) Handle(_ context.Context, record slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "line" {
			l.all++
			l.longest = max(l.longest, len(a.Value.String()))
		}
		return true
	})
	return nil
}

func (l *lines) measure() (longest, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest, l.all
}
