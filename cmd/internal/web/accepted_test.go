package web

import (
	"strconv"
	"testing"
	"time"
)

func TestRunsThatAreOnTheirWayAreForgottenByAgeAndNumber(t *testing.T) {
	t.Parallel()
	var runs accepted
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	if runs.has("a", now) {
		t.Error("a run is on its way of which nobody has said so")
	}
	runs.add("a", now)
	runs.add("", now)
	if !runs.has("a", now.Add(acceptedFor)) || runs.has("a", now.Add(acceptedFor+1)) || runs.has("", now) {
		t.Error("a run is not known for as long as it may be on its way")
	}
	later := now.Add(2 * acceptedFor)
	for i := range mostAccepted + 1 {
		runs.add(strconv.Itoa(i), later)
		runs.add(strconv.Itoa(i), later.Add(time.Second))
	}
	if runs.has("a", now) || runs.has("0", later) || !runs.has("1", later) || len(runs.at) != mostAccepted ||
		len(runs.oldest) != mostAccepted {
		t.Errorf("%d runs and %d names are kept, want the last %d", len(runs.at), len(runs.oldest), mostAccepted)
	}
}
