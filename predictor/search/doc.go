// Package search says what a tuning tries: which configuration next, and which trials go on for longer.
//
// The workflow of a tuning (workflows/runs) asks it, and cmd/spillway-eval measures it.
package search
