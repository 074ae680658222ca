package torch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// loading is a request to load a part of a file in testdata.
func loading(t *testing.T, model, data string, change func(map[string]any)) map[string]any {
	t.Helper()
	file, function, err := Options{Model: "testdata/" + model}.locate()
	if err != nil {
		t.Fatal(err)
	}
	request := map[string]any{
		"file": file, "function": function, "data": data, "seed": 1, "parts": [][]string{nil}, "index": 0, "example": "",
		"batch": 8, "micro_batches": 2,
		"in_flight": 2, "recompute": false, "precision": "float32", "optimizer": map[string]any{}, "device": "cpu",
		"threads": 1, "memory": 0,
	}
	if change != nil {
		change(request)
	}
	return request
}

// partRunner starts a process that stands for a part.
func partRunner(t *testing.T) *runner {
	t.Helper()
	shared, err := newArena()
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Truncate(4 * stretch); err != nil {
		t.Fatal(err)
	}
	r, err := new(forks).start(t.Context(), launching{
		python: torchtest.Python(t), threads: 1, shared: shared,
		logger: slog.New(slog.DiscardHandler),
	})
	if err = errors.Join(err, shared.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func TestAPartThatCannotBeTrainedIsRefusedWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := partRunner(t)
	parts := func(names ...string) func(map[string]any) {
		return func(request map[string]any) {
			var lists [][]string
			for _, n := range names {
				lists = append(lists, strings.Fields(n))
			}
			request["parts"] = lists
		}
	}
	for _, tt := range []struct {
		name, model, data string
		change            func(map[string]any)
		kind              string
		want              []string
	}{
		{"no data", "models.py:mlp", "", nil, "data", []string{"there is no data", "define data(path)"}},
		{"too few samples", "training.py:wrong", "points", func(r map[string]any) {
			r["batch"] = 1000
		}, "data", []string{"512 samples", "1000"}},
		{
			"an unknown operation", "training.py:wrong", "points", parts("x one three", "two flatten"), "split",
			[]string{"operation three", "probe"},
		},
		{
			"an operation twice", "training.py:wrong", "points", parts("x one two", "two flatten"), "split",
			[]string{"operation two is in part 0 and in part 1"},
		},
		{
			"an operation nowhere", "training.py:wrong", "points", parts("x one", "flatten"), "split",
			[]string{"operation two is in no part"},
		},
		{
			"backwards", "training.py:wrong", "points", parts("x two", "one flatten"), "split",
			[]string{"operation two of part 0 reads one of part 1"},
		},
		{
			"the loss before the end", "training.py:wrong", "points", parts("x one two flatten loss", ""), "split",
			[]string{"the loss is in part 0 of 2"},
		},
		{
			"statistics in two parts", "statistics_shared.py:build", "", parts("x norm relu", "norm_1"), "split",
			[]string{"parts 0 and 1 both hold norm.running_mean"},
		},
		{"no such device", "training.py:wrong", "points", func(r map[string]any) {
			r["device"] = "cuda:7"
		}, "device", []string{"finds no device cuda:7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := r.call(t.Context(), "load", loading(t, tt.model, tt.data, tt.change), nil)
			var wrong *ModelError
			if !errors.As(err, &wrong) {
				t.Fatalf("got %v, want a ModelError", err)
			}
			equal(t, "kind", wrong.Kind, tt.kind)
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in the error:\n%v", want, err)
				}
			}
		})
	}
}

func TestAMicroBatchThatFailsNamesTheOperationAndTheLine(t *testing.T) {
	t.Parallel()
	r := partRunner(t)
	call := func(command string, request map[string]any) error { return r.call(t.Context(), command, request, nil) }
	forward := func(microBatch int) error {
		return call("forward", map[string]any{"step": 0, "micro_batch": microBatch})
	}
	check := func(t *testing.T, err error, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in the error: %v", want, err)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(call("load", loading(t, "training.py:wrong", "points", nil)))
	must(call("batch", map[string]any{"step": 0}))
	check(t, forward(0), "loss", "(16)", "(4)") // 4 samples of 4 classes, flat

	must(call("load", loading(t, "training.py:cnn", "points", nil)))
	must(call("batch", map[string]any{"step": 0}))
	check(t, forward(0), "operation one fails", "training.py", "conv2d")

	must(call("load", loading(t, "training.py:mlp", "points", nil)))
	must(call("batch", map[string]any{"step": 0}))
	must(forward(0))
	check(t, forward(0), "micro-batch 0 comes before the backward pass")
	check(t, call("step", map[string]any{"scale": 1}), "1 micro-batches between their passes")
	check(t, call("backward", map[string]any{"micro_batch": 1}), "no forward pass of micro-batch 1")

	dir := t.TempDir()
	file := filepath.Join(dir, "part")
	id, written := r.number()
	must(call("export", map[string]any{"path": file, "written": id}))
	must(r.await(t.Context(), id, written, nil))
	text, err := os.ReadFile(file)
	must(err)
	for name, change := range map[string]func() ([]byte, string){
		"cut in its data":   func() ([]byte, string) { return text[:len(text)-4], "it has" },
		"cut in its header": func() ([]byte, string) { return text[:20], "cut short" },
		"empty":             func() ([]byte, string) { return nil, "cannot read" },
		"of another format": func() ([]byte, string) {
			return []byte(strings.Replace(string(text), "spillway-part-1", "spillway-part-7", 1)), "spillway-part-7"
		},
		"with another name": func() ([]byte, string) {
			return []byte(strings.Replace(string(text), "parameter/last.bias", "parameter/last.bios", 1)), "last.bias"
		},
	} {
		bad, want := change()
		must(os.WriteFile(filepath.Join(dir, "bad"), bad, 0o600))
		err := call("import", map[string]any{"paths": []string{filepath.Join(dir, "bad")}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a file %s: got %v, want %q in it", name, err, want)
		}
	}
	must(call("import", map[string]any{"paths": []string{file}}))
	check(t, call("import", map[string]any{"paths": []string{filepath.Join(dir, "absent")}}), "absent", "cannot read")
}

func TestAnAnswerThatNobodyWaitsForIsDropped(t *testing.T) {
	t.Parallel()
	r := partRunner(t)
	ctx, cancel := context.WithCancel(t.Context())
	id, answers := r.number()
	if err := r.write(map[string]any{"id": id, "command": "load"}); err != nil { // it fails, later
		t.Fatal(err)
	}
	cancel()
	_ = r.await(ctx, id, answers, nil) // the end of the context or, if it was faster, the answer
	err := r.call(t.Context(), "usage", map[string]any{}, nil)
	if _, is := errors.AsType[*ModelError](err); !is {
		t.Errorf("got %v, want what is wrong in a process that has no part", err)
	}
}
