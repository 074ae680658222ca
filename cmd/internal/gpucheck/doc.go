// Package gpucheck shows on a machine with a GPU what of Spillway works there and how fast.
//
// It is a list of steps, of which what matters most comes first. Each step runs in a process of its own with a time
// limit, is ended with all that it started, and is in the report as soon as it is over: what is known of a machine that
// vanishes is what was written before.
package gpucheck
