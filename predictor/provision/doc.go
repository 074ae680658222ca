// Package provision decides how much pool capacity to hold for a load that is only forecast, where functions take what
// is above it.
//
// Nothing in an engine asks it yet: cmd/spillway-eval measures it.
package provision
