// Package frontier computes what a job of several stages may cost and how long it may take: every pair that no other
// choice of allocations beats.
//
// Nothing in an engine asks it yet: cmd/spillway-eval measures it.
package frontier
