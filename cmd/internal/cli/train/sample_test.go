package train_test

import (
	"log/slog"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// characters is the directory of the sample.
const characters = "../../../../workflows/characters"

func TestTheChainOfTheSampleIsRight(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "check",
		filepath.Join(characters, "characters.yaml"))
	if want := "chain characters: 3 stages\n  collect\n  train, after collect\n  sample, after train\n"; code !=
		cli.ExitOK || stdout != want {
		t.Errorf("got exit %d, %q and %q, want %q", code, stdout, stderr, want)
	}
}

func TestTheSampleTrainsInTwoPartsAndThenWrites(t *testing.T) {
	t.Parallel()
	interpreter := torchtest.Python(t)
	dir := t.TempDir()
	for _, name := range []string{"model.py", "generate.py"} {
		text, err := os.ReadFile(filepath.Join(characters, name))
		if err != nil {
			t.Fatal(err)
		}
		clitest.Put(t, dir, map[string]string{name: string(text)})
	}
	text := strings.Repeat("Every stage says how much it needs, and gets what it used before.\n", 20)
	clitest.Put(t, dir, map[string]string{"text.txt": text})
	deps := cli.Deps{Executor: func(reference, data, validation string, logger *slog.Logger) (exec.Executor, error) {
		return torch.New(torch.Options{
			Model: reference, Data: data, Validation: validation, Python: interpreter, Repeats: 1, Logger: logger,
		})
	}}
	out := filepath.Join(dir, "trained")
	code, stdout, stderr := clitest.Execute(t, t.Context(), deps, "train", dir+"/model.py:build", "--data",
		dir+"/text.txt", "--here", "--json", "--out", out,
		"--steps", "6", "--batch", "8", "--micro-batches", "2", "--partitions", "2")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	plan, _, _, result := jsonLines(t, stdout)
	if len(plan.Parts) != 2 || len(result.Losses) != 6 || result.Losses[5] >= result.Losses[0] {
		t.Fatalf("the plan is %+v and the losses are %v", plan, result.Losses)
	}
	write := osexec.CommandContext(t.Context(), interpreter, "generate.py", filepath.Join(out, "model.pt"), "A stage ",
		"20")
	write.Dir = dir
	written, err := write.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(written), "A stage ") || len(written) != len("A stage ")+20+1 {
		t.Errorf("%v: it writes %q", err, written)
	}
}
