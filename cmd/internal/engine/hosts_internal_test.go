package engine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// TestWhatALostHostHadInHandIsGivenBackOnce plays what hosts say and which leases are seen, a second each.
func TestWhatALostHostHadInHandIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	type step struct {
		after    time.Duration // seconds since the step before
		host     string        // that tells, at this instance, of these tasks; empty where nobody does
		instance string
		sequence int
		tasks    []string
		leased   []string // what a look sees; nil where nobody looks
		want     map[string][]string
	}
	none := map[string][]string{}
	second := time.Second
	for name, steps := range map[string][]step{
		"a host that lives": {
			{0, "a", "1", 0, []string{"x"}, nil, none},
			{20 * second, "", "", 0, nil, []string{"a"}, none},
			{20 * second, "", "", 0, nil, []string{"a", "b"}, none},
		},
		"a host whose lease ends": {
			{0, "a", "1", 0, []string{"x", "y"}, nil, none},
			{20 * second, "", "", 0, nil, []string{}, none}, // NATS may have lost all leases
			{second, "", "", 0, nil, []string{}, map[string][]string{"a": {"x", "y"}}},
			{second, "", "", 0, nil, []string{}, none},
		},
		"a lease that is seen again": {
			{0, "a", "1", 0, []string{"x"}, nil, none},
			{20 * second, "", "", 0, nil, []string{}, none},
			{second, "", "", 0, nil, []string{"a"}, none},
			{second, "", "", 0, nil, []string{}, none},
			{second, "", "", 0, nil, []string{}, map[string][]string{"a": {"x"}}},
		},
		"a host that has just spoken": {
			{0, "a", "1", 0, []string{"x"}, nil, none},
			{second, "", "", 0, nil, []string{}, none},
			{second, "", "", 0, nil, []string{}, none},
			{loop.Lease, "", "", 0, nil, []string{}, none},
			{second, "", "", 0, nil, []string{}, map[string][]string{"a": {"x"}}},
		},
		"a host that has started anew": {
			{0, "a", "1", 0, []string{"x", "y"}, nil, none},
			{second, "a", "1", 0, []string{"y"}, nil, none},
			{second, "a", "2", 0, []string{"z"}, nil, map[string][]string{"a": {"y"}}},
			{second, "a", "2", 0, nil, nil, none},
		},
		"words that come late": {
			{0, "a", "1", 2, []string{"y"}, nil, none},
			{0, "a", "1", 1, []string{"x"}, nil, none},                            // which it has told before
			{0, "a", "2", 1, []string{"z"}, nil, map[string][]string{"a": {"y"}}}, // it has started anew
			{0, "a", "1", 3, []string{"y"}, nil, none},                            // of its former self
			{0, "a", "3", 1, nil, nil, map[string][]string{"a": {"z"}}},           // and once more
			{0, "a", "2", 2, []string{"z"}, nil, none},
			{20 * second, "", "", 0, nil, []string{}, none},
			{second, "", "", 0, nil, []string{}, none},
		},
		"two hosts": {
			{0, "a", "1", 0, []string{"x"}, nil, none},
			{0, "b", "1", 0, []string{"y"}, nil, none},
			{20 * second, "", "", 0, nil, []string{"b"}, none},
			{second, "", "", 0, nil, []string{"b"}, map[string][]string{"a": {"x"}}},
		},
	} {
		var hands inHand
		now := time.Unix(1e9, 0)
		for i, s := range steps {
			now = now.Add(s.after)
			got := map[string][]string{}
			names := func(host string, taken []slot.Taken) {
				for _, one := range taken {
					got[host] = append(got[host], one.Task.ID)
				}
			}
			if s.host != "" {
				var taken []slot.Taken
				for _, task := range s.tasks {
					taken = append(taken, slot.Taken{Task: wire.Task{ID: task}})
				}
				names(s.host, hands.tell(s.host, s.instance, s.sequence, taken, now))
			} else {
				var leased []predictor.Host
				for _, one := range s.leased {
					leased = append(leased, predictor.Host{ID: one})
				}
				for host, taken := range hands.look(leased, nil, false, now) {
					names(host, taken)
				}
			}
			if diff := cmp.Diff(s.want, got); diff != "" {
				t.Errorf("%s, step %d (-want +got):\n%s", name, i, diff)
			}
		}
	}
}

// TestAHostThatStopsIsNotLost looks at hosts that have given their leases back, or have none any more.
func TestAHostThatStopsIsNotLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		taken        []slot.Taken
		left, leased bool
		lost         bool
	}{
		"it has stopped":                        {left: true},
		"it has stopped with a task in hand":    {taken: make([]slot.Taken, 1), left: true, lost: true},
		"it has stopped and is back":            {left: true, leased: true},
		"its machine is gone":                   {lost: true},
		"its machine is gone, and a task's too": {taken: make([]slot.Taken, 1), lost: true},
	} {
		var hands inHand
		now := time.Unix(1e9, 0)
		hands.tell("a", "1", 1, c.taken, now)
		var leased []predictor.Host
		if c.leased {
			leased = []predictor.Host{{ID: "a"}}
		}
		left := map[string]time.Time{}
		if c.left {
			left["a"] = now
		}
		lost := false
		for range 20 { // the mark of a lease that was given back stays for as long as a lease lasts
			now = now.Add(time.Second)
			if now.Sub(time.Unix(1e9, 0)) >= loop.Lease {
				clear(left)
			}
			_, is := hands.look(leased, left, false, now)["a"]
			lost = lost || is
		}
		if lost != c.lost {
			t.Errorf("%s: lost is %v, want %v", name, lost, c.lost)
		}
	}
}
