// Package frontier computes what a job of several stages may cost and how long it may take: every pair that no other
// choice of allocations beats.
//
// predictor/whatif makes jobs of runs and asks it. What a job does next at every rung and epoch (goal.go, rest.go,
// choice.go, profile.go) no engine asks yet: cmd/spillway-eval measures it.
package frontier
