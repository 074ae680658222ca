package torch_test

import (
	"errors"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// TestReplicasDoNotApplyGradientsThatAreNotFinite has a root of nothing in one sample: the loss is finite and its
// gradient is not. Nothing is clipped, and no checkpoint may hold what such a step would leave.
func TestReplicasDoNotApplyGradientsThatAreNotFinite(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "not_finite.py:root", "root")
	p := load(t, e, replicated(2, ""))
	stepper, whole := p.(spillway.Stepper)
	if !whole {
		t.Fatalf("%T does no whole steps", p)
	}
	var loss *spillway.LossError
	for step := range int64(2) { // together they have all samples
		if _, err := stepper.Step(t.Context(), step); errors.As(err, &loss) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if loss == nil {
		t.Fatal("two steps with all samples went well; want that the one with the root fails")
	}
	if loss.Updated || loss.GradientNorm-loss.GradientNorm == 0 {
		t.Errorf("got %+v; want that nothing was updated, and a norm that is not finite", loss)
	}
}
