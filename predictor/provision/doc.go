// Package provision decides how much pool capacity to hold for a load that is only forecast, where functions take what
// is above it.
//
// No part of an engine launches hosts. Of it, Idle and, as advice, Decide are asked by predictor, with the bound of a
// Hedge; what a Hedge decides is asked by cmd/spillway-eval only.
package provision
