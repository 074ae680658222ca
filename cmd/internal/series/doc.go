// Package series reads recorded data, time series of use, arrivals and tasks of workflows, one reader for each text
// format.
package series
