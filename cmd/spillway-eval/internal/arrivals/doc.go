// Package arrivals replays counts of arrivals, bucket by bucket, against what forecasts them.
package arrivals
