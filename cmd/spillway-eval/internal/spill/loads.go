package spill

import (
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
)

// Seconds reads a file with the tasks of one second a line, and returns those of each full minute, times factor.
func Seconds(path string, factor float64) ([]float64, error) {
	seconds, err := series.Open(path, series.PerSecond)
	if err != nil {
		return nil, err
	}
	var loads []float64
	for ; len(seconds) >= stepSeconds; seconds = seconds[stepSeconds:] {
		sum := 0.0
		for _, n := range seconds[:stepSeconds] {
			sum += n * factor
		}
		loads = append(loads, sum)
	}
	return loads, nil
}

// Stamps reads a file of requests and returns how many there are in each full minute from the first on, times factor.
func Stamps(path string, factor float64) ([]float64, error) {
	requests, err := series.Open(path, series.Requests)
	if err != nil {
		return nil, err
	}
	var loads []float64
	for _, at := range requests {
		for minute := int(at.Sub(requests[0]) / time.Minute); len(loads) <= minute; {
			loads = append(loads, 0)
		}
		loads[len(loads)-1] += factor
	}
	return loads[:len(loads)-1], nil // the last minute is cut off
}
