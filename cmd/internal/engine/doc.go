// Package engine builds a running engine from a configuration: it is where the adapters meet.
package engine
