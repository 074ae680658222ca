package ledger

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// static returns what the run would have cost at static sizes, all at the pool. It is computed again only when something has changed since.
//
// The static size of a stage is what its code asks for; for what it does not ask for, the highest peak of memory of any of its attempts
// and a tenth, the mean of the cores that they used, and the GPUs that they held. The price of an attempt is that of the host on which it
// ran; of one that ran at functions, that of the cheapest host which holds the size.
// Where a price is not known, or nothing is said to be one, what a static size would have cost is not known either.
func (a *account) static(book *spend.Book) Static {
	if a.frozen || !a.stale && a.comparedAt == book.Revision() {
		return a.compared
	}
	a.stale, a.comparedAt = false, book.Revision()
	byStage := map[*stage][]*attempt{}
	for i := range a.detail.attempts {
		of := &a.detail.attempts[i]
		if of.recorded && of.manner.Value().outcome != predictor.Refused {
			byStage[of.stage] = append(byStage[of.stage], of)
		}
	}
	s := Static{Known: len(byStage) > 0, Sizes: map[string]quantity.Size{}}
	for _, st := range a.stages {
		s.Actual = s.Actual.Plus(st.view.Cost)
		attempts := byStage[st]
		if len(attempts) == 0 {
			continue
		}
		size := staticSize(st.view.Declared, attempts)
		s.Sizes[st.id.Name] = size
		cost, short, known := compareStatic(attempts, size, book)
		s.Cost, s.Short, s.Known = s.Cost.Plus(cost), s.Short+short, s.Known && known
	}
	if !s.Known {
		s.Cost = 0
	}
	if len(s.Sizes) == 0 {
		s.Sizes = nil
	}
	a.compared = s
	return s
}

// staticSize is the declared size, completed by what attempts were seen to need.
func staticSize(declared quantity.Size, attempts []*attempt) quantity.Size {
	var seen quantity.Size
	var cpu, wall float64
	for _, of := range attempts {
		grant := of.grant.Value()
		seen.Memory = max(seen.Memory, of.peak)
		seen.GPU, seen.GPUMemory = max(seen.GPU, grant.GPU), max(seen.GPUMemory, grant.GPUMemory)
		if grant.DeviceClass != "" {
			seen.DeviceClass = grant.DeviceClass
		}
		cpu += of.cpu.Seconds()
		wall += of.wall.Seconds()
	}
	seen.Memory += (seen.Memory + 9) / 10 // what people leave above the highest peak that they have seen: a tenth
	if wall > 0 {
		const rounding = 1e-6 // of the division
		seen.CPU = quantity.Milli(math.Ceil(cpu/wall*float64(quantity.Core) - rounding))
	}
	if declared.CPU > 0 {
		seen.CPU = declared.CPU
	}
	if declared.Memory > 0 {
		seen.Memory = declared.Memory
	}
	if declared.GPU > 0 {
		seen.GPU = declared.GPU
	}
	if declared.GPUMemory > 0 {
		seen.GPUMemory = declared.GPUMemory
	}
	if declared.DeviceClass != "" {
		seen.DeviceClass = declared.DeviceClass
	}
	return seen
}

// compareStatic is what attempts of one stage would have cost at size. The price is asked once for each host, for the time of all its
// attempts together.
func compareStatic(attempts []*attempt, size quantity.Size, book *spend.Book) (cost quantity.Money, short int, known bool) {
	byHost := map[string][]pricing.Attempt{}
	for _, of := range attempts {
		m := of.manner.Value()
		host := m.host
		if m.venue == predictor.Function {
			host = ""
		}
		byHost[host] = append(byHost[host], pricing.Attempt{
			Grant: of.grant.Value(), Usage: quantity.Usage{CPU: of.cpu, Wall: of.wall, PeakMemory: of.peak},
			Start: time.Duration(of.started - of.admitted), OutOfMemory: m.outcome == predictor.OutOfMemory, Cost: of.cost,
		})
	}
	free := func(quantity.Size, time.Duration) quantity.Money { return 0 }
	for name, attempts := range byHost {
		price, priced := book.Price(name)
		if name == "" {
			price, priced = cheapest(book, size)
		}
		if !priced || price.PerHour <= 0 {
			return 0, 0, false
		}
		comparison := pricing.CompareStatic(attempts, size, free)
		cost = cost.Plus(price.For(size, comparison.Held))
		short += comparison.Short
	}
	return cost, short, true
}

// cheapest is the known host that holds size for the least money, the first by name among equals.
func cheapest(book *spend.Book, size quantity.Size) (least pricing.Host, known bool) {
	for _, name := range book.Hosts() {
		host, _ := book.Price(name)
		if host.PerHour > 0 && size.Fits(host.Capacity) && (!known || host.For(size, time.Hour) < least.For(size, time.Hour)) {
			least, known = host, true
		}
	}
	return least, known
}
