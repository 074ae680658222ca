package ledger

import (
	"maps"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// What static sizes would have cost is computed of all attempts anew. Of a run that goes on and has more than
// fewAttempts it is computed once for each staticLag-th part by which they grow, so that all of it together takes no
// more than staticLag times as long as the last.
const (
	fewAttempts = 1000
	staticLag   = 50
)

// comparison is what a run would have cost at static sizes, all at the pool. A copy of it has all that it is computed
// of as that was when the comparison was made: so whoever asks for it may do so while the ledger takes in more.
type comparison struct {
	prices   int       // their revision when it was made
	attempts int       // how many had ended
	of       *compared // nil once it was computed
	result   Static
}

// compared is what a comparison is computed of.
type compared struct {
	stages             []comparedStage
	attempts           attempts
	prices             spend.Prices
	startedAt, endedAt time.Time
	ended              bool
}

// comparedStage is one stage of a run; stage only says which attempts are of it.
type comparedStage struct {
	stage    *stage
	name     string
	declared quantity.Size
	cost     quantity.Money
}

// comparison returns the run's comparison. A new one is made only where something has changed since the last.
func (a *account) comparison(prices *spend.Prices) *comparison {
	ended := 0 // attempts
	for _, st := range a.stages {
		ended += st.view.Attempts
	}
	if a.frozen {
		return a.static
	}
	if last := a.static; last != nil {
		late := !a.ended() && ended > fewAttempts && ended-last.attempts < ended/staticLag
		if last.prices == prices.Revision() && (!a.stale || late) {
			return last
		}
	}
	of := &compared{
		attempts: a.detail.attempts.snapshot(), prices: prices.Clone(), startedAt: a.startedAt, endedAt: a.endedAt,
		ended: a.ended(),
	}
	for _, st := range a.stages {
		of.stages = append(of.stages, comparedStage{st, st.id.Name, st.view.Declared, st.view.Cost})
	}
	a.stale, a.static = false, &comparison{prices: prices.Revision(), attempts: ended, of: of}
	return a.static
}

// freeze makes the run's comparison for the last time.
func (a *account) freeze(prices *spend.Prices) {
	a.comparison(prices)
	a.frozen = true
}

// static computes the comparison where it was not yet.
func (c *comparison) static() Static {
	if c.of != nil {
		c.result, c.of = c.of.static(), nil
	}
	result := c.result
	result.Sizes = maps.Clone(result.Sizes)
	return result
}

// static returns what the run would have cost at static sizes.
//
// The static size of a stage is what its code asks for; for what it does not ask for, the highest peak of memory of
// any of its attempts and a tenth, the mean of the cores that they used, and the GPUs that they held. The price of an
// attempt is that of the host on which it ran; of one that ran at functions, that of the cheapest host which holds the
// size. How long that would have taken is told once the run has ended: see listSchedule.
// Where a price is not known, or nothing is said to be one, what a static size would have cost is not known either.
func (c *compared) static() Static {
	byStage := map[*stage][]*attempt{}
	for i := range c.attempts.count {
		of := c.attempts.at(i)
		if of.recorded && of.manner.Value().outcome != predictor.Refused {
			byStage[of.stage] = append(byStage[of.stage], of)
		}
	}
	s := Static{Known: len(byStage) > 0, Sizes: map[string]quantity.Size{}}
	for _, st := range c.stages {
		s.Actual = s.Actual.Plus(st.cost)
		attempts := byStage[st.stage]
		if len(attempts) == 0 {
			continue
		}
		size := staticSize(st.declared, attempts)
		s.Sizes[st.name] = size
		cost, short, known := compareStatic(attempts, size, &c.prices)
		s.Cost, s.Short, s.Known = s.Cost.Plus(cost), s.Short+short, s.Known && known
	}
	if !s.Known {
		s.Cost = 0
	}
	if s.Known && c.ended {
		s.Seconds = c.staticSeconds(s.Sizes)
	}
	if len(s.Sizes) == 0 {
		s.Sizes = nil
	}
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

// compareStatic is what attempts of one stage would have cost at size. The price is asked once for each host, for the
// time of all its attempts together.
func compareStatic(
	attempts []*attempt, size quantity.Size, prices *spend.Prices,
) (cost quantity.Money, short int, known bool) {
	byHost := map[string]*pricing.Comparison{}
	for _, of := range attempts {
		m := of.manner.Value()
		host := m.host
		if m.venue == predictor.Function {
			host = ""
		}
		if byHost[host] == nil {
			byHost[host] = &pricing.Comparison{}
		}
		byHost[host].Add(of.priced(), size)
	}
	for name, comparison := range byHost {
		price, priced := prices.Of(name)
		if name == "" {
			price, priced = cheapest(prices, size)
		}
		if !priced || price.PerHour <= 0 {
			return 0, 0, false
		}
		cost = cost.Plus(price.For(size, comparison.Held))
		short += comparison.Short
	}
	return cost, short, true
}

// priced is the attempt as far as its price and its time at another size depend on it.
func (a *attempt) priced() pricing.Attempt {
	return pricing.Attempt{
		Grant: a.grant.Value(), Usage: quantity.Usage{CPU: a.cpu, Wall: a.wall, PeakMemory: a.peak},
		Start:       time.Duration(a.started - a.admitted),
		OutOfMemory: a.manner.Value().outcome == predictor.OutOfMemory,
	}
}

// cheapest is the known host that holds size for the least money, the first by name among equals.
func cheapest(prices *spend.Prices, size quantity.Size) (least pricing.Host, known bool) {
	for _, name := range prices.Hosts() {
		host, _ := prices.Of(name)
		if host.PerHour > 0 && size.Fits(host.Capacity) &&
			(!known || host.For(size, time.Hour) < least.For(size, time.Hour)) {
			least, known = host, true
		}
	}
	return least, known
}
