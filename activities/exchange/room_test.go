package exchange

import (
	"errors"
	"testing"

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
