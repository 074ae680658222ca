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
		tasks    []string
		leased   []string // what a look sees; nil where nobody looks
		want     map[string][]string
	}
	none := map[string][]string{}
	second := time.Second
	for name, steps := range map[string][]step{
		"a host that lives": {
			{0, "a", "1", []string{"x"}, nil, none},
			{20 * second, "", "", nil, []string{"a"}, none},
			{20 * second, "", "", nil, []string{"a", "b"}, none},
		},
		"a host whose lease ends": {
			{0, "a", "1", []string{"x", "y"}, nil, none},
			{20 * second, "", "", nil, []string{}, none}, // NATS may have lost all leases
			{second, "", "", nil, []string{}, map[string][]string{"a": {"x", "y"}}},
			{second, "", "", nil, []string{}, none},
		},
		"a lease that is seen again": {
			{0, "a", "1", []string{"x"}, nil, none},
			{20 * second, "", "", nil, []string{}, none},
			{second, "", "", nil, []string{"a"}, none},
			{second, "", "", nil, []string{}, none},
			{second, "", "", nil, []string{}, map[string][]string{"a": {"x"}}},
		},
		"a host that has just spoken": {
			{0, "a", "1", []string{"x"}, nil, none},
			{second, "", "", nil, []string{}, none},
			{second, "", "", nil, []string{}, none},
			{loop.Lease, "", "", nil, []string{}, none},
			{second, "", "", nil, []string{}, map[string][]string{"a": {"x"}}},
		},
		"a host that has started anew": {
			{0, "a", "1", []string{"x", "y"}, nil, none},
			{second, "a", "1", []string{"y"}, nil, none},
			{second, "a", "2", []string{"z"}, nil, map[string][]string{"a": {"y"}}},
			{second, "a", "2", nil, nil, none},
		},
		"two hosts": {
			{0, "a", "1", []string{"x"}, nil, none},
			{0, "b", "1", []string{"y"}, nil, none},
			{20 * second, "", "", nil, []string{"b"}, none},
			{second, "", "", nil, []string{"b"}, map[string][]string{"a": {"x"}}},
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
				names(s.host, hands.tell(s.host, s.instance, taken, now))
			} else {
				var leased []predictor.Host
				for _, one := range s.leased {
					leased = append(leased, predictor.Host{ID: one})
				}
				for host, taken := range hands.look(leased, false, now) {
					names(host, taken)
				}
			}
			if diff := cmp.Diff(s.want, got); diff != "" {
				t.Errorf("%s, step %d (-want +got):\n%s", name, i, diff)
			}
		}
	}
}
