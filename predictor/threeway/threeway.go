package threeway

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// ErrCase is wrapped by every refusal of a case.
var ErrCase = errors.New("cannot be compared")

// Case is a stage and the terms on which each way can be had.
type Case struct {
	// Walls are how many seconds its tasks took on a slot of a host, in any order; at least one, each more than 0.
	Walls []float64
	// Slower is by what factor a function of the class takes longer than a slot does; more than 0.
	Slower float64
	// Host is the type of host that would be held, Container the size of container, Functions what they offer.
	Host      Host
	Container Container
	Functions Functions
	// Within is what the 99th percentile of the latency must be within, of what is held; 0 for twice that of the run times
	// alone.
	Within time.Duration
	// Seed makes the same values give the same comparison.
	Seed uint64
}

// Host is a type of host that is held all the time.
type Host struct {
	Name    string         `json:"name"`
	Slots   int            `json:"slots"` // tasks at a time; at least 1
	PerHour quantity.Money `json:"price_per_hour_picodollars"`
}

// Container is a size of container that runs one task at a time.
type Container struct {
	Name string `json:"name"`
	// Size is what it has, PerHour what it costs, billed by the second from when its image is fetched.
	Size    quantity.Size  `json:"size"`
	PerHour quantity.Money `json:"price_per_hour_picodollars"`
	// Start is how long it starts, Least for how long it is billed at least.
	Start time.Duration `json:"start_ns"`
	Least time.Duration `json:"least_billed_ns"`
}

// Functions are environments of one class.
type Functions struct {
	Offered venue.Functions `json:"-"`
	Class   quantity.Bytes  `json:"class_bytes"`
	// Cold is how long an environment starts, Kept for how long one stays that has nothing to do.
	Cold time.Duration `json:"cold_start_ns"`
	Kept time.Duration `json:"kept_ns"`
}

// Way is how tasks are run.
type Way string

// The ways.
const (
	Hosts      Way = "hosts"
	Containers Way = "containers"
	InFunction Way = "functions"
)

// Estimate is what a way comes to at a rate.
type Estimate struct {
	Way Way `json:"way"`
	// Million is what a million tasks cost, in US dollars: of a task a day, more than a Money holds.
	Million float64 `json:"usd_per_million"`
	// P50 and P99 are the seconds from arrival to end, with waiting and starting.
	P50 float64 `json:"p50_seconds"`
	P99 float64 `json:"p99_seconds"`
	// Units is how many hosts or containers are held, or how many containers or environments there were at a time at
	// most.
	Units int `json:"units"`
	// Each says that a container is started for each task; Cold is the part of the tasks that waited for a start.
	Each bool    `json:"each,omitempty"`
	Cold float64 `json:"cold"`
	// Late says that the 99th percentile is not within what was asked.
	Late bool `json:"late,omitempty"`
	// Beyond says that there are not as many environments at a time as the tasks take.
	Beyond bool `json:"beyond,omitempty"`
}

// Point is what all ways come to at a rate.
type Point struct {
	// Rate is tasks in a second.
	Rate float64    `json:"tasks_per_second"`
	Ways []Estimate `json:"ways"` // hosts, containers, functions
}

// Cheapest is the way that costs least, of equal ones the first; among those that are in time, where there is any, and
// never functions beyond what there is of them, while there is another.
func (p Point) Cheapest() Estimate {
	rank := func(e Estimate) int {
		switch {
		case e.Beyond:
			return 2
		case e.Late:
			return 1
		}
		return 0
	}
	return slices.MinFunc(p.Ways, func(a, b Estimate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Million, b.Million))
	})
}

// Span is a range of rates over which one way is cheapest.
type Span struct {
	From float64 `json:"from_tasks_per_second"`
	To   float64 `json:"to_tasks_per_second"`
	Way  Way     `json:"way"`
	// Late says that no way is in time there.
	Late bool `json:"late,omitempty"`
}

// is reports whether the cheapest of a point is that of the span.
func (s Span) is(p Point) bool {
	best := p.Cheapest()
	return best.Way == s.Way && best.Late == s.Late
}

// Comparison is a case at a rate, and over rates.
type Comparison struct {
	Within float64 `json:"within_seconds"`
	At     Point   `json:"at"`
	// Over are rates that rise by equal factors, Cheapest which way is cheapest of them, by rising rate.
	Over     []Point `json:"over"`
	Cheapest []Span  `json:"cheapest"`
}

// The rates that are looked at: from a task in an hour to what keeps many hosts busy, and how often edges between two
// of them are halved: to within a twentieth of the step between them.
const (
	points    = 25
	leastRate = 1. / 3600
	manyHosts = 20
	halvings  = 5
)

// Validate returns the first reason why nothing can be compared.
func (c Case) Validate() error {
	for _, wall := range c.Walls {
		if !(wall > 0) || math.IsInf(wall, 1) {
			return fmt.Errorf("a run time of %v s: %w; give finite ones above 0", wall, ErrCase)
		}
	}
	switch {
	case len(c.Walls) == 0:
		return fmt.Errorf("a stage of which no attempt has succeeded: %w; run it first", ErrCase)
	case !(c.Slower > 0) || math.IsInf(c.Slower, 1):
		return fmt.Errorf("functions that take %v times as long: %w; give a finite factor above 0", c.Slower, ErrCase)
	case c.Host.Slots < 1:
		return fmt.Errorf("a host %q without room for a task: %w; take a larger one", c.Host.Name, ErrCase)
	case c.Host.PerHour <= 0 || c.Container.PerHour <= 0 || c.Functions.Offered.PerGiBSecond <= 0:
		return fmt.Errorf("a host at %s and a container at %s an hour, functions at %s a GiB-second: %w; give prices above 0",
			c.Host.PerHour, c.Container.PerHour, c.Functions.Offered.PerGiBSecond, ErrCase)
	case c.Within < 0 || c.Container.Start < 0 || c.Container.Least < 0 || c.Functions.Cold < 0 || c.Functions.Kept < 0:
		return fmt.Errorf("a negative time: %w; give times of 0 or more", ErrCase)
	}
	return nil
}

// Compare compares the ways at a rate, in tasks per second, and over rates around it.
func (c Case) Compare(rate float64) (Comparison, error) {
	if err := c.Validate(); err != nil {
		return Comparison{}, err
	}
	if !(rate > 0) || math.IsInf(rate, 1) {
		return Comparison{}, fmt.Errorf("%v tasks a second: %w; give a finite rate above 0", rate, ErrCase)
	}
	d := c.draw()
	all := Comparison{Within: d.within, At: d.at(rate)}
	most := max(manyHosts*float64(c.Host.Slots)/d.mean, 10*rate)
	least := min(leastRate, rate/10)
	for i := range points {
		all.Over = append(all.Over, d.at(least*math.Pow(most/least, float64(i)/(points-1))))
	}
	first := all.Over[0].Cheapest()
	all.Cheapest = []Span{{From: least, To: most, Way: first.Way, Late: first.Late}}
	for i, point := range all.Over[1:] {
		last := &all.Cheapest[len(all.Cheapest)-1]
		if last.is(point) {
			continue
		}
		low, high := all.Over[i].Rate, point.Rate
		for range halvings {
			middle := math.Sqrt(low * high)
			if last.is(d.at(middle)) {
				low = middle
			} else {
				high = middle
			}
		}
		last.To = high
		best := point.Cheapest()
		all.Cheapest = append(all.Cheapest, Span{From: high, To: most, Way: best.Way, Late: best.Late})
	}
	return all, nil
}
