// Package memory is what is remembered of the facts.
package memory
