package training

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

func TestTiedParametersCostWhatIsHeldAndSent(t *testing.T) {
	t.Parallel()
	const size = 100
	for name, c := range map[string]struct {
		home []int // of three operations, of which the first and the last are tied
		want []tie
	}{
		"together":     {[]int{0, 0, 0}, []tie{{}, {}, {}}},
		"in two parts": {[]int{0, 0, 1}, []tie{{lent: 2 * size, passed: size}, {copies: size, lent: 2 * size}, {}}},
		"with one in between": {
			[]int{0, 1, 2}, []tie{{lent: 2 * size, passed: size}, {passed: size}, {copies: size, lent: 2 * size}},
		},
		"not in the first part": {
			[]int{1, 1, 2}, []tie{{}, {lent: 2 * size, passed: size}, {copies: size, lent: 2 * size}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ties([]exec.Tied{{Ops: []int{0, 2}, Bytes: size}}, c.home, 3)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(tie{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAPlanCutsTiedOperationsApartWhereThatPays has a chain whose two ends read one parameter. A small one is copied
// for the sake of two devices; a huge one, whose transfer takes longer than all work, keeps its operations together.
func TestAPlanCutsTiedOperationsApartWhereThatPays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		bytes quantity.Bytes
		apart bool
	}{{"small", 4 * quantity.KiB, true}, {"huge", 400 * quantity.GiB, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			chain := synthetic{tied: []exec.Tied{{Ops: []int{0, 5}, Bytes: c.bytes}}}
			for i := range 7 {
				chain.ops = append(chain.ops, syntheticOp{
					forward: line{each: 0.01}, backward: line{each: 0.02}, parameters: 4 * quantity.KiB, output: 64,
				})
				if i > 0 {
					chain.reads = append(chain.reads, [2]int{i - 1, i})
				}
			}
			s := setupOf(t, chain, 16, exec.Device{Threads: 1})
			s.machine.copyRate = float64(quantity.GiB)
			made, err := s.split(equalDevices(2, 0), 8, unchanged)
			if err != nil {
				t.Fatal(err)
			}
			home := make([]int, len(chain.ops))
			for i, p := range made.parts {
				for _, op := range p.ops {
					home[op] = i
				}
			}
			if apart := home[0] != home[5]; apart != c.apart {
				t.Errorf("the operations are apart: %t, want %t; parts %v", apart, c.apart, home)
			}
		})
	}
}
