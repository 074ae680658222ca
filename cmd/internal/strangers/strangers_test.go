package strangers

import (
	"fmt"
	"testing"
	"time"
)

func TestOneAddressLeavesTheOthersTheirTurn(t *testing.T) {
	t.Parallel()
	limit, now := New(10*time.Second, 3), time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		from  string
		after time.Duration
		want  bool
	}{
		{"192.0.2.1:5000", 0, true},
		{"192.0.2.1:5001", 0, true},
		{"::ffff:192.0.2.1", 0, true},
		{"192.0.2.1", 0, false},
		{"192.0.2.1:5002", 9 * time.Second, false},
		{"192.0.2.2", 0, true},
		{"192.0.2.1", 10 * time.Second, true},
		{"192.0.2.1", 10 * time.Second, false},
		{"[2001:db8::1]:5000", 0, true},
		{"2001:db8::2", 0, true},
		{"2001:db8::3%eth0", 0, true},
		{"2001:db8::4", 0, false},
		{"2001:db8:0:1::1", 0, true},
		{"@", 0, true},
	} {
		at := now.Add(step.after)
		if may := limit.May(step.from, at); may != step.want {
			t.Errorf("%d: %s may after %s: %t, want %t", i, step.from, step.after, may, step.want)
		}
		if allowed := limit.Allow(step.from, at); allowed != step.want {
			t.Errorf("%d: %s is allowed after %s: %t, want %t", i, step.from, step.after, allowed, step.want)
		}
	}
}

func TestSoManyAddressesAreRemembered(t *testing.T) {
	t.Parallel()
	limit, now := New(time.Second, 1), time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for i := range most + 100 {
		if !limit.Allow(fmt.Sprintf("198.51.%d.%d", i/256, i%256), now) {
			t.Fatalf("address %d is refused", i)
		}
	}
	if len(limit.from) != most {
		t.Errorf("%d addresses are remembered, want %d", len(limit.from), most)
	}
	limit.Count("203.0.113.1", now.Add(time.Minute))
	if len(limit.from) != 1 || limit.May("203.0.113.1", now.Add(time.Minute)) {
		t.Errorf("%d addresses are remembered when all others have all left, want 1", len(limit.from))
	}
}
