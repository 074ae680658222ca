// Package provision decides how much pool capacity to hold for a load that is only forecast, where functions take what
// is above it.
package provision
