// Package check tests what is deployed beside Spillway: that every series and label that a rule, an alert or a
// dashboard asks for is one that Spillway has.
package check
