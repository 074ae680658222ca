// Package spill says what functions would do for a backlog: in what time, and at what price.
package spill
