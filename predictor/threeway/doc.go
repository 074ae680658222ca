// Package threeway says what a million tasks of a stage cost, and how long each takes, on hosts, in a container
// service and in functions, by the rate at which they arrive.
package threeway
