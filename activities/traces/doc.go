// Package traces makes one OpenTelemetry trace of every run, from the facts of the loop.
//
// Nobody who runs a task has to be instrumented: what attempts do is in their Records, and the IDs of all spans follow
// from what they are of (see wire.AttemptSpanID), so that user code which wants spans of its own finds its parent in
// the environment variable TRACEPARENT.
//
//	event              from its publication to the run's start; below the trace context that the event brought
//	└ run
//	  └ task           from when it was first scheduled to the end of its last attempt
//	    └ attempt      queue, start, fetch, compute, publish
//
// Of fetch and publish a Record tells for how long they were waited for and not when: they are drawn as if all reading
// came first and all writing last.
package traces
