package policy

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Arrival is a task that comes.
type Arrival struct {
	// At is counted from the start of the replay; not negative.
	At time.Duration
	// Work is how long one core is busy with it, at the pool and at functions alike; more than 0.
	Work time.Duration
}

// Setting is what all policies have in common.
type Setting struct {
	// Start is the virtual time at which the replay begins.
	Start time.Time
	// Span is the time for which hosts are paid at least; they are paid longer where tasks end later.
	Span time.Duration
	// Cores is how many tasks a host runs at once, at least 1; Memory is what it has, and must do for as many.
	Cores  int
	Memory quantity.Bytes
	// HostPrice is what a host costs in an hour, from its launch until it is given back and has nothing to do any more.
	HostPrice quantity.Money
	// HostStart is how long a host that is launched serves nothing; those that are there at first serve at once.
	HostStart time.Duration
	// Functions are what may be spilled to; each invoke has the first of its classes, which must be one core's.
	Functions predictor.FunctionVenue
	// KeepWarm is for how long an environment of a function that has nothing to do stays warm; 0 is for ever.
	KeepWarm time.Duration
}

// Outcome is what became of arrivals.
type Outcome struct {
	// HostCost is what hosts cost, FunctionCost what functions did.
	HostCost, FunctionCost quantity.Money
	// Latencies are from arrival to end, in the order of the arrivals.
	Latencies []time.Duration
	// MostHosts is how many hosts were paid at once at most.
	MostHosts int
	// MostOnHosts is how many tasks hosts ran at once at most.
	MostOnHosts int
	// Spilled is how many tasks functions ran, Cold how many of those waited for an environment to start.
	Spilled, Cold int
}

// Cost is that of hosts and functions.
func (o Outcome) Cost() quantity.Money { return o.HostCost.Plus(o.FunctionCost) }

// Policy says how many hosts are wanted. It is asked in the order of time and remembers what it was told.
type Policy interface {
	// Every is the time between two questions, in whole seconds, at least one.
	Every() time.Duration
	// Hosts is how many hosts are wanted from now on.
	Hosts(seen Seen) int
}

// Seen is what a policy is told.
type Seen struct {
	// Busy is how many tasks were there, at work or waiting, in the mean of each second since the last question. The
	// policy must not keep it.
	Busy []float64
	// Held is how many hosts are wanted already, Ready how many of those serve.
	Held, Ready int
}

// Fixed holds so many hosts all the time.
type Fixed int

// Every is a minute.
func (Fixed) Every() time.Duration { return time.Minute }

// Hosts implements Policy.
func (f Fixed) Hosts(Seen) int { return int(f) }

// Mean holds what the load of the last minute would have kept busy on hosts of so many cores.
type Mean int

// Every is a minute.
func (Mean) Every() time.Duration { return time.Minute }

// Hosts implements Policy.
func (m Mean) Hosts(seen Seen) int { return int(math.Ceil(mean(seen.Busy) / float64(m))) }

// mean is 0 of nothing.
func mean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum / float64(len(values))
}

// MeanHosts is how many hosts the arrivals keep busy in the mean of the span, rounded up; at least 1.
func MeanHosts(setting Setting, arrivals []Arrival) int {
	work := time.Duration(0)
	for _, arrival := range arrivals {
		work += arrival.Work
	}
	return hosts(setting, work, max(setting.Span, time.Minute))
}

// PeakHosts is how many hosts the arrivals of the minute with most work keep busy for a minute, rounded up; at least 1.
func PeakHosts(setting Setting, arrivals []Arrival) int {
	return hosts(setting, busiest(arrivals), time.Minute)
}

// PodsAtPeak is PeakHosts for hosts of which no more than Utilisation is to be busy.
func PodsAtPeak(setting Setting, arrivals []Arrival) int {
	return hosts(setting, time.Duration(float64(busiest(arrivals))/Utilisation), time.Minute)
}

// busiest is the work of the minute that brings most.
func busiest(arrivals []Arrival) time.Duration {
	most, minute, work := time.Duration(0), time.Duration(-1), time.Duration(0)
	for _, arrival := range arrivals {
		if in := arrival.At / time.Minute; in != minute {
			minute, work = in, 0
		}
		work += arrival.Work
		most = max(most, work)
	}
	return most
}

func hosts(setting Setting, work, in time.Duration) int {
	return max(1, int(math.Ceil(work.Seconds()/in.Seconds()/float64(setting.Cores))))
}
