package runs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestShowSizesTellsAndDrawsWhatWasPredictedAndWhatCame(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	at := time.Now()
	stack.Apply("r", predictor.RunStarted{Run: "r", Pipeline: "digits", App: "digits", Build: "0123456789ab", At: at})
	for i := range 6 {
		stack.Apply("r", predictor.Record{
			Run: "r", Stage: predictor.StageID{App: "digits", Build: "0123456789ab", Name: "fit"}, Task: fmt.Sprint("t", i),
			Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Succeeded, Grant: quantity.Size{Memory: quantity.GiB},
			Usage:    quantity.Usage{Wall: time.Duration(i+1) * time.Second, PeakMemory: quantity.Bytes(i+1) * quantity.MiB},
			Features: map[string]float64{"rows": float64(i)}, At: at.Add(time.Duration(i) * time.Second),
		})
	}
	show := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"show", "r", "--state", state}, args...)...)
	}
	code, stdout, stderr := show("--sizes")
	if code != 0 {
		t.Fatalf("--sizes: %d %s", code, stderr)
	}
	clitest.Contains(t, "the tables", stdout, "fit  6 attempts", "peak memory: nothing was predicted", "rows", "6 MiB",
		"1 GiB")
	if code, stdout, stderr = show("--sizes", "--json"); code != 0 || !json.Valid([]byte(stdout)) {
		t.Errorf("--json: %d %s %s", code, stdout, stderr)
	}
	code, drawn, stderr := show("--sizes", "--svg")
	if code != 0 || !strings.HasPrefix(drawn, "<svg ") || !strings.HasSuffix(drawn, "</svg>\n") {
		t.Fatalf("--svg: %d %s %s", code, drawn, stderr)
	}
	file := filepath.Join(t.TempDir(), "sizes.svg")
	if code, stdout, stderr = show("--sizes", "--svg", "--out", file); code != 0 || stdout != "" {
		t.Fatalf("--out: %d %s %s", code, stdout, stderr)
	}
	written, err := os.ReadFile(file)
	if err != nil || string(written) != drawn {
		t.Errorf("the file has %d bytes (%v), want the picture of %d", len(written), err, len(drawn))
	}
	for want, args := range map[string][]string{
		"add --sizes":              {"--svg"},
		"add --sizes --svg":        {"--sizes", "--out", file},
		"--svg and --json":         {"--sizes", "--svg", "--json"},
		"--why and --sizes":        {"--sizes", "--why"},
		"nowhere/x.svg":            {"--sizes", "--svg", "--out", "nowhere/x.svg"},
		"there is no run \"none\"": {"none"},
	} {
		if want == "there is no run \"none\"" {
			code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "show", "none", "--sizes", "--state", state)
		} else {
			code, _, stderr = show(args...)
		}
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: got %d %s, want 2 and %q", args, code, stderr, want)
		}
	}
}
