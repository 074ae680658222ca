package torch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// TestPartsOfReplicasThatReadOtherDataAreRefused has data() shuffle by a generator that nobody seeds: the inputs of the
// first part are those of other samples than the targets of the last.
func TestPartsOfReplicasThatReadOtherDataAreRefused(t *testing.T) {
	t.Parallel()
	const text = `
import numpy
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def data():
    order = numpy.random.default_rng().permutation(64)
    x = torch.arange(256.0).reshape(64, 4) / 256
    return x[order], x.sum(1, keepdim=True)[order]
`
	path := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := torch.New(torch.Options{Python: torchtest.Python2(t), Model: path + ":build", Repeats: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Load(t.Context(), replicated(2, "", "input_1 _0", "_1 _2 loss"))
	const want = "two processes that read the data find other samples"
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, spillway.ErrRequest) {
		t.Errorf("got the error %v; want one that says %q", err, want)
	}
}
