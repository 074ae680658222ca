// Package search says what a tuning tries: which configuration next, and which trials go on for longer.
package search
