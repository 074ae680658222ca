package partition

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAChangeComesToWhatItsPlacementComesToFromTheBeginning(t *testing.T) {
	t.Parallel()
	resumed, stopped := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstance(t, 24)
		place := rapid.SliceOfN(rapid.IntRange(0, len(in.p.Devices)-1), len(in.blocks), len(in.blocks)).Draw(t, "place")
		line, fresh := in.newTimeline(), in.newTimeline()
		line.simulate(place)
		for range 20 {
			tried := slices.Clone(place)
			moved := rapid.SliceOfNDistinct(rapid.IntRange(0, len(in.blocks)-1), 1, 3, rapid.ID[int]).Draw(t, "moved")
			for _, b := range moved {
				tried[b] = rapid.IntRange(0, len(in.p.Devices)-1).Draw(t, "device")
			}
			want := fresh.simulate(tried)
			limit := want * rapid.SampledFrom([]float64{0.5, 0.9, 1, 2}).Draw(t, "limit")
			got, done := line.try(moved, tried, func(span float64) bool { return span > limit })
			if line.changes.since > 0 {
				resumed++
			}
			if !done {
				if stopped++; limit >= want {
					t.Fatalf("it was stopped at a limit of %v; it takes %v", limit, want)
				}
				line.drop()
				continue
			}
			if got != want {
				t.Fatalf("%v from mark %d on, %v from the beginning", got, line.changes.since, want)
			}
			if rapid.Bool().Draw(t, "drop") {
				line.drop()
				continue
			}
			line.keep()
			place = tried
			if diff := cmp.Diff(fresh.kept.end, line.kept.end); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(fresh.criticalPath(), line.criticalPath()); diff != "" {
				t.Fatal(diff)
			}
		}
	})
	if resumed == 0 || stopped == 0 {
		t.Errorf("%d changes went on from a mark, %d were stopped", resumed, stopped)
	}
}

func TestTheCriticalPathLeadsBackToTheBeginning(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstance(t, 20)
		place := rapid.SliceOfN(rapid.IntRange(0, len(in.p.Devices)-1), len(in.blocks), len(in.blocks)).Draw(t, "place")
		line := in.newTimeline()
		span := line.simulate(place)
		path := line.criticalPath()
		if line.kept.end[path[0]] != span {
			t.Fatalf("it begins with an end at %v, the last is at %v", line.kept.end[path[0]], span)
		}
		for i, op := range path {
			began := line.kept.end[op] - line.works[in.kindOf[place[op]]*len(place)+op]
			if i+1 == len(path) {
				if began > 1e-9 {
					t.Fatalf("the first operation begins at %v", began)
				}
			} else if line.kept.end[path[i+1]] > began+1e-9 {
				t.Fatalf("%d begins at %v, before %d ends", op, began, path[i+1])
			}
		}
	})
}
