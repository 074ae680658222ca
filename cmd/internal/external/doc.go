// Package external connects an engine to a Temporal and a NATS that somebody else runs, in the place of those that
// package devserver embeds. What is wrong with an address, a certificate or a right is said once, at the start and
// within seconds, with what to do about it; afterwards both are waited for however long they are away.
package external
