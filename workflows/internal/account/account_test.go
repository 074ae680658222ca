package account

import "testing"

// TestABudgetThatIsTakenAwayAndGivenBackAtOnceGivesMoney: the part has not heard that there was none, or hears it too
// late.
func TestABudgetThatIsTakenAwayAndGivenBackAtOnceGivesMoney(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]func(run *Account) []Block{
		"within one workflow task": func(run *Account) []Block {
			run.SetLimit(0)
			run.SetLimit(1000)
			return []Block{run.Tell("p")}
		},
		"in messages that overtake each other": func(run *Account) []Block {
			run.SetLimit(0)
			first := run.Tell("p")
			run.SetLimit(1000)
			return []Block{run.Tell("p"), first}
		},
	} {
		run := New(1000, Carried{Prices: map[string]Price{"s": {Known: true, Highest: 10}}})
		part := NewPart("s", 3, run.Open("p", "s", 3, 0))
		part.Ask("t1", "s", 0) // it goes on for long
		for _, block := range told(run) {
			part.Told(block)
		}
		if part.ReportDue() {
			run.Reported("p", part.Report())
		}
		run.Ask("t2", "s", 0)
		if !run.Started("t2") {
			t.Errorf("%s: with %d free nothing starts", name, run.free())
		}
	}
}

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
