package calm_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
)

// TestFewerAreEnoughOnceTheyWereForAWhile has what was enough at some moments, of which 10 apart are asked.
func TestFewerAreEnoughOnceTheyWereForAWhile(t *testing.T) {
	t.Parallel()
	var eased calm.Eased
	for _, row := range []struct {
		clock  fact.Instant
		enough int
		most   int
		long   bool
		then   calm.Eased
	}{
		{0, 3, 3, false, calm.Eased{Since: 1, Most: 3}}, // at the clock's first moment, which is not never
		{5, 7, 7, false, calm.Eased{Since: 1, Most: 7}},
		{10, 2, 7, false, calm.Eased{Since: 1, Most: 7}},
		{11, 2, 7, true, calm.Eased{Since: 11, Most: 2}},
		{15, 1, 2, false, calm.Eased{Since: 11, Most: 2}},
		{40, 1, 2, true, calm.Eased{Since: 40, Most: 1}},
	} {
		most, long, then := eased.Fewer(row.enough, row.clock, 10)
		if most != row.most || long != row.long || then != row.then {
			t.Errorf("%d at %d: got %d %v %+v, want %d %v %+v", row.enough, row.clock, most, long, then, row.most, row.long,
				row.then)
		}
		eased = then
	}
}
