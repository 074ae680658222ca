// Package wire builds a running engine from a configuration: it is where the adapters meet.
package wire
