// Package memory is what is remembered of the facts, and how that survives a restart.
package memory
