package partition

import (
	"testing"
	"time"
)

// With 64 devices alike there are 63 smaller sets, each of which once had a quarter of the budget.
func TestFewerDevicesAreSearchedForNoLongerThanAllTogether(t *testing.T) {
	t.Parallel()
	for sets := 1; sets <= mostSubsets; sets++ {
		p := Problem{Budget: 3 * time.Second}
		if all := p.budgetOf(sets-1, sets); all != p.Budget {
			t.Errorf("all devices, of %d sets: %v, want %v", sets, all, p.Budget)
		}
		sum := time.Duration(0)
		for i := range sets - 1 {
			one := p.budgetOf(i, sets)
			if sum += one; one <= 0 || one > p.Budget/4 {
				t.Errorf("set %d of %d: %v of %v", i, sets, one, p.Budget)
			}
		}
		if sum > p.Budget {
			t.Errorf("%d sets: %v, want at most %v", sets, sum, p.Budget)
		}
	}
	if least := (Problem{Budget: 1}).budgetOf(0, 3); least <= 0 {
		t.Errorf("the smallest budget becomes %v, which is the usual one", least)
	}
}
