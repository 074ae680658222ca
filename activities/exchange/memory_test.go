package exchange_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/exchange"
)

func TestAttackAMemoryRefusesWhatPassesItsBound(t *testing.T) {
	t.Parallel()
	var m exchange.Memory
	ctx := t.Context()
	if _, err := m.Post(ctx, "group", "a", nil); err != nil {
		t.Fatal(err)
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint("n", i)
	}
	for says, names := range map[string][]string{
		"twice": {"a", "b", "a"}, "101 messages": many, "no name": {"A"},
	} {
		if _, _, err := m.Mean(ctx, "group", names, 0); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a mean of %d names: %v, want it to say %q", len(names), err, says)
		}
	}
	if _, err := m.Look(ctx, "group", "../a"); err == nil || errors.Is(err, activities.ErrMissing) {
		t.Errorf("a look at no name: %v", err)
	}
	if err := m.Wipe(ctx, strings.Repeat("g", 101)); err == nil {
		t.Error("a group of 101 letters was wiped")
	}
}

// TestAMeanWaitsForAGroupThatIsYetToCome has the group come, be wiped, and come again.
func TestAMeanWaitsForAGroupThatIsYetToCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m exchange.Memory
		went := make(chan error)
		go func() {
			_, missing, err := m.Mean(t.Context(), "group", []string{"a"}, time.Hour)
			went <- errors.Join(err, map[bool]error{true: fmt.Errorf("%v is missing", missing)}[len(missing) > 0])
		}()
		synctest.Wait()
		if _, err := m.Post(t.Context(), "group", "b", nil); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if err := m.Wipe(t.Context(), "group"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if _, err := m.Post(t.Context(), "group", "a", []byte("no vector")); err != nil {
			t.Error(err)
		}
		if err := <-went; err == nil || strings.Contains(err.Error(), "missing") {
			t.Errorf("got %v, want that it was found and is no vector", err)
		}
	})
}
