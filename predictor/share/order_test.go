package share

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// roomiestOfAll is what roomiest says it is, by a look at every host.
func roomiestOfAll(s *stage, rooms *rooms, force bool) *room {
	var best *room
	rank := func(h *room) (enough, had bool) {
		left := h.left.Minus(s.growth[h.index])
		return fits(s.Size, left) && h.devices.fit(s.Size, notHeld), s.Placed[h.ID] > s.Slots.On[h.index]
	}
	for _, host := range rooms.all {
		room, had := rank(host)
		if !s.can(host) || !room && !force {
			continue
		}
		if best == nil {
			best = host
			continue
		}
		bestRoom, bestHad := rank(best)
		order := cmp.Or(
			trueFirst(room, bestRoom),
			trueFirst(fits(s.Size, host.Capacity), fits(s.Size, best.Capacity)),
			trueFirst(had, bestHad),
			cmp.Compare(best.left.CPU, host.left.CPU),
			cmp.Compare(best.left.Memory, host.left.Memory),
		)
		if order < 0 {
			best = host
		}
	}
	return best
}

// TestTheRoomiestHostIsFoundAsByALookAtEach places slots of stages on hosts, some with GPUs, some full, and asks before
// each for the next one.
func TestTheRoomiestHostIsFoundAsByALookAtEach(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := func(label string, gpus int) quantity.Size {
			return quantity.Size{
				CPU:    quantity.Milli(rapid.IntRange(0, 4).Draw(t, label+" cores")) * quantity.Core,
				Memory: quantity.Bytes(rapid.IntRange(0, 4).Draw(t, label+" GiB")) * quantity.GiB,
				GPU:    quantity.Milli(rapid.IntRange(0, gpus).Draw(t, label+" GPUs")) * quantity.Core,
			}
		}
		var hosts []plan.Host
		for i := range rapid.IntRange(1, 6).Draw(t, "hosts") {
			hosts = append(hosts, plan.Host{ID: fmt.Sprintf("h%d", i), Capacity: size("host", 2)})
		}
		name := rapid.SampledFrom([]string{"h0", "h1", "h2", "h3", "h4", "h5"})
		var claims []Claim
		for range rapid.IntRange(1, 4).Draw(t, "stages") {
			claims = append(claims, Claim{
				Size: size("slot", 1), Held: size("held", 0), Tasks: rapid.IntRange(0, 9).Draw(t, "tasks"),
				On:     rapid.MapOfN(name, rapid.IntRange(0, 2), 0, 3).Draw(t, "on"),
				Placed: rapid.MapOfN(name, rapid.IntRange(0, 3), 0, 3).Draw(t, "placed"),
				Unfit:  rapid.MapOfN(name, rapid.Just(true), 0, 1).Draw(t, "unfit"), Slack: math.Inf(1),
			})
		}
		rooms := newRooms(hosts)
		for i, claim := range claims {
			s := &stage{Claim: claim, Slots: Slots{On: make([]int, len(hosts))}, order: i, most: make([]int, len(hosts))}
			for at, host := range hosts {
				if !claim.Unfit[host.ID] {
					s.most[at] = host.Has(claim.Size)
				}
			}
			s.begin(rooms)
			for range claim.Tasks {
				force := rapid.Bool().Draw(t, "force")
				got, want := s.roomiest(rooms, force), roomiestOfAll(s, rooms, force)
				if got != want {
					t.Fatalf("for %+v, forced %t: got %s, want %s", claim, force, called(got), called(want))
				}
				s.place(rooms, got, s.Size, true)
			}
		}
		if !slices.IsSortedFunc(rooms.order, before) {
			t.Fatal("hosts lie in another order than by what is left of them")
		}
	})
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func called(host *room) string {
	if host == nil {
		return "none"
	}
	return host.ID
}
