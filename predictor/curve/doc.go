// Package curve tells from the losses or metrics of a training so far when it will first reach a level, or that it will
// not, and how far it will get: distributions, from an ensemble of learning curves and from earlier runs of the same
// workload.
//
// Nothing in an engine asks it yet: cmd/spillway-eval measures it.
package curve
