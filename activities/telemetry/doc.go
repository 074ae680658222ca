// Package telemetry shows what passes through the loop as Prometheus series.
package telemetry
