// Package activities holds the ports between stages, workflows and the engine, and the context API that stages use at
// every venue.
package activities
