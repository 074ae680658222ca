package exchange

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

func TestAttackMessagesOfNothingTakeRoom(t *testing.T) {
	t.Parallel()
	m := Memory{bytes: memoryRoom - 2*memoryEach}
	full := m.bytes
	for i, name := range []string{"a", "b", "c"} {
		_, err := m.Post(t.Context(), "group", name, nil)
		if full := i == 2; full != errors.Is(err, activities.ErrNoRoom) || !full && err != nil {
			t.Errorf("message %d: %v, want no room for the third", i, err)
		}
	}
	for _, name := range []string{"b", "none", "a", "a"} {
		if err := m.Wipe(t.Context(), "group", name); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Look(t.Context(), "another", "a"); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("a look at no group: %v", err)
	}
	if m.bytes != full || len(m.groups) != 0 {
		t.Errorf("%d bytes and %d groups are left, want %d and none", m.bytes, len(m.groups), full)
	}
}

// TestGroupsThatNobodyAsksForGoByThemselves: a training that was cancelled leaves the engine no memory taken.
func TestGroupsThatNobodyAsksForGoByThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m Memory
		for _, group := range []string{"left", "asked-for"} {
			if _, err := m.Post(t.Context(), group, "a", make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		left := func() (bytes int64, groups int) {
			synctest.Wait()
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.bytes, len(m.groups)
		}
		time.Sleep(memoryPatience - time.Second)
		if _, err := m.Look(t.Context(), "asked-for", "a"); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		if bytes, groups := left(); bytes != 1000+memoryEach || groups != 1 {
			t.Errorf("%d bytes of %d groups are kept, want those of the one that was asked for", bytes, groups)
		}
		time.Sleep(memoryPatience)
		if bytes, groups := left(); bytes != 0 || groups != 0 {
			t.Errorf("%d bytes of %d groups are kept that nobody asks for", bytes, groups)
		}
	})
}
