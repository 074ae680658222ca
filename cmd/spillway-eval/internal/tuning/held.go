package tuning

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Hosts: a core of c7i on demand in us-east-1 (January 2026), and what LambdaML (SIGMOD'21) measured between ten of
// them and until they were there.
const (
	coreHour         = 0.0446 // USD
	hostStart        = 132.0  // seconds
	networkBandwidth = 120e6  // bytes a second
	networkLatency   = 0.0005 // seconds
)

// clusters are how many cores can be held.
func clusters() (all []int) {
	for cores := 4; cores <= 4096; cores *= 2 {
		all = append(all, cores)
	}
	return all
}

// cluster is what a cluster of so many cores costs for so long.
func cluster(cores int, seconds float64) quantity.Money {
	return quantity.Money(math.Round(float64(cores) * coreHour / 3600 * seconds * float64(quantity.USD)))
}

// on is what a stage takes on a cluster: as many workers for a trial as bring the most, of those that there is room
// for; the others wait. Workers exchange in a ring.
func (m model) on(cores int, s stage) (seconds float64) {
	seconds = math.Inf(1)
	each := min(float64(cores), m.mostCores)
	room := int(float64(cores) / each)
	for workers := 1; workers <= min(room, 200); workers++ {
		n := float64(workers)
		exchange := float64(2*workers-2) * (m.bytes/n/networkBandwidth + networkLatency)
		epoch := m.epoch/(n*each) + float64(m.exchanges)*exchange
		waves := (s.trials + room/workers - 1) / (room / workers)
		seconds = min(seconds, float64(waves)*s.epochs*epoch)
	}
	return seconds
}

// held is a job on a cluster that is held from its start to its end.
func (m model) held(cores int, stages []stage) (seconds float64, cost quantity.Money) {
	seconds = hostStart
	for _, s := range stages {
		seconds += m.on(cores, s)
	}
	return seconds, cluster(cores, seconds)
}

// everywhere is a job each of whose stages may run on functions or on a cluster of its own, which grows while it waits.
func (m model) everywhere(stages []stage, all []allocation) frontier.Job {
	both := job(stages, all, m.epochs(all))
	for s := range stages {
		for i, cores := range clusters() {
			seconds := m.on(cores, stages[s])
			both.Stages[s] = append(both.Stages[s], frontier.Option{
				Seconds: seconds, Cost: cluster(cores, seconds), Capacity: i + 1,
			})
		}
	}
	both.Change = func(from, to int) frontier.Option {
		if to <= from || to == 0 {
			return frontier.Option{} // hosts go at once; functions start within their own option
		}
		return frontier.Option{Seconds: hostStart, Cost: cluster(clusters()[to-1], hostStart)}
	}
	return both
}

// compareHeld compares with clusters that are held for the whole job, those that no other is both faster and cheaper
// than: at what each takes and costs. Ours has functions and hosts to choose from, or functions only.
func (c *Case) compareHeld(m model, stages []stage, all []allocation, functions, exact frontier.Frontier) error {
	venues := m.everywhere(stages, all)
	venues.Most = keptOfEach
	ours, err := frontier.New(venues)
	if err != nil {
		return err
	}
	var static []frontier.Option
	for _, cores := range clusters() {
		seconds, cost := m.held(cores, stages)
		static = append(static, frontier.Option{Seconds: seconds, Cost: cost})
	}
	for _, i := range unbeaten(static) {
		held := static[i]
		budget, deadline := held.Cost.Times(1+bucket), held.Seconds*(1+bucket)
		c.against("held cluster", ours, ours, held.Seconds, deadline, budget, held.Cost)
		c.against("held cluster, functions only", functions, exact, held.Seconds, deadline, budget, held.Cost)
	}
	return nil
}

// Every capacity has a frontier of its own, so each is kept coarsely: that a cluster is held to the end is one of the
// plans, and is found with this much more money, or time.
const (
	keptOfEach = 1024
	bucket     = 0.01
)
