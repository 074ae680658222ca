// Package results keeps what tasks returned, so that later runs can take it instead of running the tasks again.
package results
