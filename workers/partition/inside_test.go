package partition

import (
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// drawInstance draws a graph with whole costs and devices, two of them on the host.
func drawInstance(t *rapid.T, most int) *instance {
	var g graph.Graph
	n := rapid.IntRange(2, most).Draw(t, "ops")
	for i := range n {
		work := graph.Seconds(rapid.IntRange(1, 9).Draw(t, "work"))
		g.Ops = append(g.Ops, graph.Op{
			ID:    strconv.Itoa(i),
			Costs: map[string]graph.Cost{"gpu": {Forward: work}, "cpu": {Forward: 4 * work}}, Workspace: 1,
		})
		size := quantity.Bytes(rapid.IntRange(1, 9).Draw(t, "bytes"))
		for j := i + 1; j < n; j++ {
			if rapid.IntRange(0, 2).Draw(t, "edge") == 0 {
				g.Edges = append(g.Edges, graph.Edge{From: i, To: j, Bytes: size})
			}
		}
	}
	p := Problem{Graph: g, Links: Links{
		Between:     Link{BytesPerSecond: 1},
		ThroughHost: rapid.Bool().Draw(t, "through host"),
	}}
	for d := range 3 {
		p.Devices = append(p.Devices, Device{ID: strconv.Itoa(d), Class: "gpu"})
	}
	p.Devices = append(p.Devices, Device{ID: "host", Class: "cpu", Host: true})
	if rapid.Bool().Draw(t, "pairs") && !p.Links.ThroughHost {
		p.Links.Pairs = map[[2]string]Link{{"0", "1"}: {BytesPerSecond: 4}, {"1", "host"}: {BytesPerSecond: 0.5}}
	}
	in, err := newInstance(p)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestLoadsThatFollowMovesAreThoseOfThePlacement(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstance(t, 9)
		a := newAnneal(in, make([]int, len(in.blocks)))
		for range 30 {
			block, to := rapid.IntRange(0, len(in.blocks)-1).Draw(t, "block"),
				rapid.IntRange(0, len(in.p.Devices)-1).Draw(t, "device")
			a.move(block, to)
		}
		for d, want := range in.loads(a.place) {
			if math.Abs(a.loads[d]-want) > 1e-9 {
				t.Fatalf("device %d has load %v, want %v", d, a.loads[d], want)
			}
		}
	})
}

// bestFavourites returns the least span over all ways to give operations favourite children.
func bestFavourites(f *favours) float64 {
	best := math.Inf(1)
	var choose func(edge int)
	choose = func(edge int) {
		if edge == len(f.edges) {
			best = min(best, f.span())
			return
		}
		choose(edge + 1)
		if e := f.edges[edge]; f.child[e.from] < 0 && f.parent[e.to] < 0 {
			f.child[e.from], f.parent[e.to] = e.to, e.from
			choose(edge + 1)
			f.child[e.from], f.parent[e.to] = -1, -1
		}
	}
	choose(0)
	return best
}

func TestFavouritesAreCloseToTheBest(t *testing.T) {
	t.Parallel()
	sum, worst, n := 0.0, 1.0, 0
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstance(t, 6)
		f := newFavours(in)
		if len(f.edges) > 14 {
			return
		}
		best := bestFavourites(f)
		f = newFavours(in)
		child := in.favourites()
		parents := map[int]bool{}
		for from, to := range child {
			if to < 0 {
				continue
			}
			if parents[to] {
				t.Fatalf("operation %d is the favourite of two", to)
			}
			parents[to] = true
			f.child[from] = to
		}
		got := f.span()
		if got < best-1e-9 || got > 1.5*best {
			t.Fatalf("the longest path is %v, the best choice has %v", got, best)
		}
		sum += got / best
		worst = max(worst, got/best)
		n++
	})
	if sum/float64(n) > 1.02 {
		t.Errorf("the longest path is %.3f times the best on average", sum/float64(n))
	}
	t.Logf("the longest path is %.3f times the best on average, %.3f at most", sum/float64(n), worst)
}

func TestOrdersLeadForward(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInstance(t, 12)
		for _, order := range in.orders() {
			at := make([]int, len(in.blocks))
			for i := range at {
				at[i] = -1
			}
			for i, b := range order.blocks {
				at[b] = i
			}
			for b, successors := range in.next {
				for _, c := range successors {
					if at[b] < 0 || at[b] >= at[c] {
						t.Fatalf("%s: %d does not come before %d", order.name, b, c)
					}
				}
			}
		}
	})
}
