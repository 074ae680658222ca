package provision

import "math"

// Capacities are compared in cells of a sixteenth of the smallest host, rounded down, so that what two hosts serve
// together is a little more than is counted on, never less. Where that made more than mostCells, a cell is larger, and
// hosts are launched in lots of at least cellsOfLot cells.
const (
	cellsOfSmallest = 16
	mostCells       = 8192
	cellsOfLot      = 8
)

// grid counts capacities in cells.
type grid struct {
	cell  float64 // tasks in a step
	cells int     // how many cells the forecast can want
}

// newGrid covers capacities up to top.
func newGrid(hosts []Host, top float64) grid {
	smallest := math.Inf(1)
	for _, host := range hosts {
		smallest = min(smallest, host.Tasks)
	}
	cell := max(smallest/cellsOfSmallest, top/mostCells)
	return grid{cell: cell, cells: int(math.Ceil(top / cell))}
}

// of is how many cells some hosts serve together.
func (g grid) of(host Host, hosts int) int {
	return int(min(float64(hosts)*host.Tasks/g.cell*(1+1e-9), mostCells))
}

// launch is the option to launch hosts of a type, at a price for each.
func (g grid) launch(terms Terms, host int, price float64) option {
	lot := max(1, int(math.Ceil(cellsOfLot*g.cell/terms.Hosts[host].Tasks)))
	return option{host: host, lot: lot, cells: g.of(terms.Hosts[host], lot), cost: float64(lot) * price}
}

// held are the options to keep hosts of a type, at a price for each: lots of 1, 2, 4, ... and a rest, which together
// make up every number of them.
func (g grid) held(terms Terms, host int, price float64, indices []int) (options []option) {
	for lot := 1; len(indices) > 0; lot *= 2 {
		lot = min(lot, len(indices))
		options = append(options, option{
			host: host, lot: lot, cells: g.of(terms.Hosts[host], lot), cost: float64(lot) * price, held: indices[:lot],
		})
		indices = indices[lot:]
	}
	return options
}

// saved returns for each capacity from 0 to all cells what functions would cost more without it in one step, in which
// base serves besides:
//
//	G(k) = price x (E[min(L, base + k cell)] - E[min(L, base)])
//
// in USD. It rises and is concave in k.
func (g grid) saved(levels, quantiles []float64, base, price float64) []float64 {
	sums := make([]float64, g.cells+1)
	served := reading{levels: levels, quantiles: quantiles}
	before := served.at(base)
	for k := 1; k < len(sums); k++ {
		sums[k] = price * (served.at(base+float64(k)*g.cell) - before)
	}
	return sums
}

// option is a lot of equal hosts that may be held.
type option struct {
	host, lot int
	cells     int
	cost      float64 // USD
	held      []int   // which they are; nil for a launch, of which there may be any number
}

// cover finds the options whose cost is furthest below what they save,
//
//	max over k of G(k) - C(k),  C(k) = min over i of C(k - cells_i) + cost_i
//
// where C(k) is the least cost of k cells or more: the covering knapsack, each lot that is held at most once, launches
// any number of times. Of equal gains the least capacity is taken. It is exact on the grid:
// TestACoverIsTheBestOfAllCombinations.
func cover(saved []float64, options []option) (chosen []option, gain float64) {
	s := newSack(len(saved) - 1)
	for i, o := range options {
		if o.held != nil && o.cells > 0 {
			s.offer(i, o)
		}
	}
	best := 0
	for k := range s.least {
		if k > 0 {
			s.launch(k, options)
		}
		if saved[k]-s.least[k] > saved[best]-s.least[best]+tiny {
			best = k
		}
	}
	return s.chosen(best, options), saved[best] - s.least[best]
}

// sack is a covering knapsack.
type sack struct {
	// least is what so many cells, or more, cost at least, in USD.
	least []float64
	// took says for each held lot at which capacities it is taken, launched which launch is taken last; -1 for none.
	took     map[int][]bool
	launched []int
}

func newSack(cells int) sack {
	s := sack{least: make([]float64, cells+1), took: map[int][]bool{}, launched: make([]int, cells+1)}
	for k := range s.least {
		s.launched[k] = -1
		if k > 0 {
			s.least[k] = math.Inf(1)
		}
	}
	return s
}

// offer takes a held lot where that is cheaper.
func (s sack) offer(i int, o option) {
	took := make([]bool, len(s.least))
	for k := len(s.least) - 1; k > 0; k-- { // from above, so that it is taken once
		if with := s.least[max(0, k-o.cells)] + o.cost; with < s.least[k] {
			s.least[k], took[k] = with, true
		}
	}
	s.took[i] = took
}

// launch takes the launch that makes k cells cheapest; fewer cells are as cheap as they can be.
func (s sack) launch(k int, options []option) {
	for i, o := range options {
		if o.held != nil || o.cells == 0 {
			continue
		}
		if with := s.least[max(0, k-o.cells)] + o.cost; with < s.least[k] {
			s.least[k], s.launched[k] = with, i
		}
	}
}

// chosen are the options that make up so many cells.
func (s sack) chosen(cells int, options []option) (chosen []option) {
	for cells > 0 && s.launched[cells] >= 0 {
		o := options[s.launched[cells]]
		chosen, cells = append(chosen, o), max(0, cells-o.cells)
	}
	for i := len(options) - 1; i >= 0 && cells > 0; i-- {
		if took := s.took[i]; took != nil && took[cells] {
			chosen, cells = append(chosen, options[i]), max(0, cells-options[i].cells)
		}
	}
	return chosen
}

// tiny is less than any price: a gain below a picodollar is rounding.
const tiny = 1e-12
