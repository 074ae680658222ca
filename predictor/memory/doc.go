// Package memory is what is remembered of the facts: which attempts run and which are lost, what stages took, and how
// that survives a restart.
package memory
