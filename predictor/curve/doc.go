// Package curve tells from the losses or metrics of a training so far when it will first reach a level, or that it will
// not, and how far it will get: distributions, from an ensemble of learning curves and from earlier runs of the same
// workload.
//
// An engine asks it of each training that reports its metric, to tell how it goes on; nothing is decided by it.
package curve
