// Package forecast tells how many arrivals each of the next buckets of time will bring, as distributions.
package forecast
