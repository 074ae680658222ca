// Package forecast tells how many arrivals each of the next buckets of time will bring, as distributions.
//
// Nothing in an engine asks it yet: cmd/spillway-eval measures it.
package forecast
