// Package search says what a tuning tries: which configuration next, and which trials go on for longer.
//
// Nothing in an engine asks it yet: cmd/spillway-eval measures it.
package search
