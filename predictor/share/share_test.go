package share

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestTheLatestFinishIsTheEarliestThatCanBe tries every way to share out slots that are alike.
func TestTheLatestFinishIsTheEarliestThatCanBe(t *testing.T) {
	t.Parallel()
	one := quantity.Size{CPU: quantity.Core}
	rapid.Check(t, func(t *rapid.T) {
		claims := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Claim {
			return Claim{
				Size: one, Tasks: rapid.IntRange(1, 9).Draw(t, "tasks"), Wall: rapid.Float64Range(0.1, 9).Draw(t, "wall"),
				Slack: math.Inf(1),
			}
		}), 1, 4).Draw(t, "claims")
		cores := rapid.IntRange(len(claims), 10).Draw(t, "cores")
		host := plan.Host{ID: "a", Capacity: quantity.Size{CPU: quantity.Milli(cores) * quantity.Core}}
		latest, sum := 0.0, 0
		for i, got := range Hosts([]plan.Host{host}, claims) {
			latest, sum = max(latest, Finish(claims[i].Tasks, got.Total, claims[i].Wall)), sum+got.Total
		}
		if want := earliest(claims, cores); latest != want {
			t.Fatalf("%d cores: the last of %+v finishes after %v s, want %v", cores, claims, latest, want)
		}
		if sum > cores {
			t.Fatalf("%d slots are given, want at most %d", sum, cores)
		}
	})
}

// earliest is the least latest finish of all ways to give every stage at least one of so many slots.
func earliest(claims []Claim, slots int) float64 {
	if len(claims) == 0 {
		return 0
	}
	best, first := math.Inf(1), claims[0]
	for n := 1; n <= slots-len(claims)+1; n++ {
		best = min(best, max(Finish(first.Tasks, n, first.Wall), earliest(claims[1:], slots-n)))
	}
	return best
}

func TestWhatRunsKeepsItsSlotAndAStageThatFitsNowhereHasOne(t *testing.T) {
	t.Parallel()
	hosts := []plan.Host{
		{ID: "a", Capacity: quantity.Size{CPU: quantity.Core}}, {ID: "b", Capacity: quantity.Size{CPU: 2 * quantity.Core}},
	}
	got := Hosts(hosts, []Claim{
		{
			Size: quantity.Size{CPU: quantity.Core}, Tasks: 3, Running: 3, On: map[string]int{"a": 2, "gone": 1}, Wall: 1,
			Slack: math.Inf(1),
		},
		{Size: quantity.Size{CPU: 8 * quantity.Core}, Tasks: 1, Wall: 1, Slack: math.Inf(1)},
		{Size: quantity.Size{CPU: quantity.Core}, Kept: 2, Slack: math.Inf(1)},
	})
	want := []Slots{{Total: 2, On: []int{2, 0}, Limited: true}, {Total: 1, On: []int{0, 1}}, {On: []int{0, 0}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
}

func TestMoreSlotsAtOnceAndFewerAfterAWhile(t *testing.T) {
	t.Parallel()
	held := Held{Slots: 8}
	for _, row := range []struct {
		at     time.Duration
		needed int
		kept   int
	}{
		{1 * time.Second, 9, 10},   // a quarter more than were held
		{2 * time.Second, 7, 8},    // one fewer is not worth a change
		{3 * time.Second, 2, 8},    // since now
		{10 * time.Second, 4, 8},   // the most meanwhile
		{22 * time.Second, 1, 8},   // not long enough
		{23 * time.Second, 1, 4},   // what was the most
		{24 * time.Second, 30, 30}, // at once
	} {
		kept, then := held.Keep(row.needed, fact.Instant(row.at))
		if kept != row.kept {
			t.Errorf("after %s, %d of %d slots are needed: %d stay, want %d", row.at, row.needed, held.Slots, kept, row.kept)
		}
		held = then
	}
}

func TestAHostThatCannotRunAStageHasNoSlotOfIt(t *testing.T) {
	t.Parallel()
	room := quantity.Size{CPU: 4 * quantity.Core, Memory: 8 * quantity.GiB}
	hosts := []plan.Host{{ID: "a", Capacity: room}, {ID: "b", Capacity: room}}
	size := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
	for name, test := range map[string]struct {
		unfit map[string]bool
		want  []int
	}{
		"both can":   {nil, []int{2, 2}},
		"one can":    {map[string]bool{"a": true}, []int{0, 4}},
		"none can":   {map[string]bool{"a": true, "b": true}, []int{0, 0}},
		"it is gone": {map[string]bool{"c": true}, []int{2, 2}},
	} {
		got := Hosts(hosts, []Claim{{Size: size, Tasks: 4, Wall: 1, Slack: math.Inf(1), Unfit: test.unfit}})
		if diff := cmp.Diff(test.want, got[0].On); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
