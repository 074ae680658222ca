package retention

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// mostListed is how many artifacts a Collection lists one by one.
const mostListed = 1000

// Collection is what one collection did, or would do.
type Collection struct {
	// DryRun says that nothing was removed.
	DryRun bool `json:"dry_run,omitempty"`
	// At is when it began, Took how long it took.
	At   time.Time     `json:"at"`
	Took time.Duration `json:"took_ns"`
	// Ahead is by how much the machine's clock is ahead of the time by which things age: nobody looked for so long, or it
	// was turned ahead. It goes down by a day in an hour.
	Ahead time.Duration `json:"ahead_ns,omitempty"`
	// Policy is the one in force.
	Policy Policy `json:"policy"`
	// Freed is the sum of what goes, Kept that of what stays; Over is by how much the latter exceeds the policy.
	Freed Sum            `json:"freed"`
	Kept  Sum            `json:"kept"`
	Over  quantity.Bytes `json:"over_bytes,omitempty"`
	// Reasons are the sums of what goes by why, the largest first.
	Reasons []ReasonSum `json:"reasons"`
	// Runs are those that give something back, the one that ended first first.
	Runs []RunGiven `json:"runs"`
	// Removed are the artifacts that go, the largest first, at most 1,000.
	Removed []Removal `json:"removed"`
}

// ReasonSum is the sum of what goes for one reason.
type ReasonSum struct {
	Reason string `json:"reason"`
	Sum
}

// RunGiven is a run that gives back what only it reaches.
type RunGiven struct {
	Run    string `json:"run"`
	Reason string `json:"reason"`
}

// Summarize returns what goes, summed up.
func Summarize(removed []Removal) Collection {
	c := Collection{Reasons: []ReasonSum{}, Runs: []RunGiven{}, Removed: slices.Clone(removed)}
	index := map[string]int{}
	for _, one := range removed {
		i, known := index[one.Reason]
		if !known {
			i = len(c.Reasons)
			index[one.Reason] = i
			c.Reasons = append(c.Reasons, ReasonSum{Reason: one.Reason})
		}
		c.Reasons[i].Artifacts++
		c.Reasons[i].Bytes += one.Bytes
		c.Freed.Artifacts++
		c.Freed.Bytes += one.Bytes
	}
	slices.SortStableFunc(c.Reasons, func(a, b ReasonSum) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortStableFunc(c.Removed, func(a, b Removal) int { return cmp.Compare(b.Bytes, a.Bytes) })
	c.Removed = c.Removed[:min(len(c.Removed), mostListed)]
	if c.Removed == nil {
		c.Removed = []Removal{}
	}
	return c
}
