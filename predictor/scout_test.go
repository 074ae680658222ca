package predictor_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Of two thousand numbers, the last by name says what attempts take.
func TestAStageIsSizedByTheOneOfTwoThousandNumbersThatSaysWhatItTakes(t *testing.T) {
	t.Parallel()
	names := make([]string, 2000)
	for i := range names {
		names[i] = fmt.Sprintf("n%04d", i)
	}
	play := func() (predictor.Sizing, predictor.State) {
		r := rand.New(rand.NewPCG(7, 44))
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 1, 0))
		var sizing predictor.Sizing
		for i := range 353 {
			line := record("earlier", "score", i, float64(i), 1)
			line.Features = make(map[string]float64, len(names))
			for _, name := range names {
				line.Features[name] = 1 + float64(r.IntN(50))
			}
			line.Usage.PeakMemory = quantity.Bytes(10*line.Features["n1999"]) * quantity.MiB
			expected := sizing.Expected.At(predictor.Need{Features: line.Features}.Values())
			if line.Predicted.Memory = expected; !(expected.Mid > 0) {
				line.Predicted.Memory.Mid = float64(quantity.GiB)
			}
			if state = predictor.Fold(state, line); i%16 == 0 {
				var plan predictor.Plan
				plan, state = predictor.Decide(state, laptop(float64(i), 4))
				sizing = plan.Sizings[0]
			}
		}
		return sizing, state
	}
	sizing, state := play()
	if got := sizing.Expected.Term.String(); got != "n1999" { // limits follow once they have settled
		t.Errorf("what is expected rests on %q, want n1999: %s", got, sizing.Source)
	}
	stored := encode(t, state)
	if len(stored) > 256<<10 {
		t.Errorf("what is remembered of one stage takes %d bytes", len(stored))
	}
	if _, again := play(); !bytes.Equal(stored, encode(t, again)) {
		t.Error("the same attempts are remembered in another way") // such as in the order of a map
	}
}
