package stack

import (
	"strconv"
	"testing"
)

func TestADecisionIsPrintedOnceHoweverOftenTheStreamBegins(t *testing.T) {
	t.Parallel()
	var told recently
	for i := range 3 * mostTold {
		if !told.first(strconv.Itoa(i)) {
			t.Fatalf("decision %d is not printed", i)
		}
	}
	for _, again := range []int{3*mostTold - 1, 2 * mostTold, 2*mostTold + 5} {
		if told.first(strconv.Itoa(again)) {
			t.Errorf("decision %d is printed twice", again)
		}
	}
	if kept := len(told.newer) + len(told.older); kept > 2*mostTold {
		t.Errorf("%d are remembered, want %d at most", kept, 2*mostTold)
	}
}
