package venue

import (
	"math/bits"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Functions is what Lambda-style functions offer and cost.
type Functions struct {
	// Enabled is false when nothing may spill.
	Enabled bool `json:"enabled"`
	// Concurrency is the most environments at a time over all stages.
	Concurrency int `json:"concurrency"`
	// MaxMemory is the largest memory class.
	MaxMemory quantity.Bytes `json:"max_memory_bytes"`
	// MaxDuration is the longest an invoke may take.
	MaxDuration time.Duration `json:"max_duration_ns"`
	// Classes are the memory classes, ascending, in bytes.
	Classes []quantity.Bytes `json:"classes_bytes"`
	// PerGiBSecond is the price of one GiB of configured memory for one second, billed by the millisecond, initialisation
	// included.
	PerGiBSecond quantity.Money `json:"per_gib_second_picodollars"`
	// PerRequest is the price of one invoke.
	PerRequest quantity.Money `json:"per_request_picodollars"`
	// Cores is how many CPU cores the venue has altogether when it is local; 0 means as many as it is asked for.
	Cores quantity.Milli `json:"cores_milli"`
	// ColdStart is the expected time to start an environment, before any was measured.
	ColdStart time.Duration `json:"cold_start_ns"`
	// NoCommands is why the venue runs no commands; empty when it does.
	NoCommands string `json:"no_commands,omitempty"`
}

// Price returns the cost of one invoke that holds memory for wall, rounded up to the millisecond, as AWS bills it. It
// is exact until it is rounded once, half up, to the picodollar, so that a bill can be checked against the venue's own
// log to the last unit.
func (f Functions) Price(memory quantity.Bytes, wall time.Duration) quantity.Money {
	milliseconds := (max(wall, 0) + time.Millisecond - 1) / time.Millisecond
	memory = max(memory, 0)
	// The product of three fits 128 bits for any price that somebody may ask: then nothing is allocated, and plans try
	// thousands of prices.
	const whole = uint64(quantity.GiB) * 1000
	high, product := bits.Mul64(uint64(max(f.PerGiBSecond, 0)), uint64(memory))
	overflows := high > 0
	high, product = bits.Mul64(product, uint64(milliseconds))
	product, carry := bits.Add64(product, whole/2, 0)
	if high += carry; !overflows && high < whole {
		if held, _ := bits.Div64(high, product, whole); held < 1<<62 {
			return f.PerRequest.Plus(quantity.Money(held))
		}
	}
	return f.PerRequest.Plus(f.PerGiBSecond.Prorated(
		quantity.Fraction{Of: int64(memory), In: int64(quantity.GiB)}, quantity.Fraction{Of: int64(milliseconds), In: 1000}))
}

// Sane cuts what functions offer to what it can be, at most so many slots, and sorts their classes.
func (f Functions) Sane(most int) Functions {
	f.Concurrency = min(max(0, f.Concurrency), most)
	f.PerGiBSecond, f.PerRequest = max(0, f.PerGiBSecond), max(0, f.PerRequest)
	f.ColdStart, f.MaxDuration = min(max(0, f.ColdStart), fact.MaxWall), min(max(0, f.MaxDuration), fact.MaxWall)
	f.Cores = max(0, f.Cores)
	f.Classes = slices.DeleteFunc(slices.Sorted(slices.Values(f.Classes)), func(class quantity.Bytes) bool {
		return class <= 0 || (f.MaxMemory > 0 && class > f.MaxMemory)
	})
	return f
}
