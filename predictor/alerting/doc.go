// Package alerting decides when people are told that the goal of a run is at risk, and words what they are told.
package alerting
