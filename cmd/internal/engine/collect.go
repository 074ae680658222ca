package engine

import (
	"os"
	"runtime/debug"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

const (
	// collectPercent is by how much the heap grows from one collection to the next, in percent of what lives. At the usual
	// 100 a soak holds 90 MiB of garbage more than at 50, and at 50 some 25 more than at this. Collections take 4 percent
	// of the processor time at 100 and 7 at 50, on a machine that has nothing else to do.
	collectPercent = 33
	// limitShare is the part of the host's memory beyond which collections come ever more often: the pool is given four
	// fifths of what is available, and what else runs there needs some too.
	limitShare = 8
	leastLimit = 512 * quantity.MiB
)

// collections says how the Go runtime of this process collects garbage. A zero field leaves it as it is.
type collections struct {
	percent int
	limit   quantity.Bytes
}

// collectionsFor chooses them for a host with so much memory, 0 where that is not known. What the environment says for
// Go itself, GOGC and GOMEMLIMIT, holds.
func collectionsFor(memory quantity.Bytes, lookup func(name string) (value string, set bool)) (chosen collections) {
	if value, _ := lookup("GOGC"); value == "" {
		chosen.percent = collectPercent
	}
	if value, _ := lookup("GOMEMLIMIT"); value == "" && memory > 0 {
		chosen.limit = max(memory/limitShare, leastLimit)
	}
	return chosen
}

// apply is for the whole process: an engine is alone in it.
func (c collections) apply() {
	if c.percent > 0 {
		debug.SetGCPercent(c.percent)
	}
	if c.limit > 0 {
		debug.SetMemoryLimit(int64(c.limit))
	}
}

// boundMemory has the process hold little more than it needs.
func boundMemory() {
	var memory quantity.Bytes
	if host, err := enforce.HostSize(); err == nil {
		memory = host.Memory
	}
	collectionsFor(memory, os.LookupEnv).apply()
}
