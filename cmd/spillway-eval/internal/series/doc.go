// Package series reads recorded time series of use, one reader for each text format.
package series
