package account

import "testing"

// TestAWishThatIsWithdrawnHoldsNobodyBack: a function's price heads the line until the pool has taken the task.
func TestAWishThatIsWithdrawnHoldsNobodyBack(t *testing.T) {
	t.Parallel()
	a := New(100, Carried{Prices: map[string]Price{"s": {Known: true, Highest: 10}}})
	a.Ask("runs", "s", 0)
	a.Ask("wishes", "s", 0)
	a.Grow("wishes", 1000, 1000, true)
	a.Ask("next", "s", 0)
	if !a.Growing("wishes") || a.Started("next") {
		t.Fatalf("who wishes for all heads the line: growing %v, the next started %v", a.Growing("wishes"), a.Started("next"))
	}
	a.Withdraw("wishes")
	if a.Growing("wishes") || !a.Started("next") || !a.Started("wishes") {
		t.Errorf("withdrawn: growing %v, the next started %v", a.Growing("wishes"), a.Started("next"))
	}
}
