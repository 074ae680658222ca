// Package frontier computes what a job of several stages may cost and how long it may take: every pair that no other
// choice of allocations beats, and what of it meets a deadline or a budget.
//
// predictor/whatif makes jobs of runs and asks it, to tell people and to divide goals over stages. What a stage under
// way may be given unit by unit (rest.go, choice.go, profile.go) no engine asks yet: cmd/spillway-eval measures it.
package frontier
