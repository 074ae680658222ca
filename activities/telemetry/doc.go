// Package telemetry shows what passes through the loop as Prometheus series.
//
// Counters and histograms begin at zero with each process and count what comes from then on: what was in the stream
// before is replayed into the gauges only. So a restart looks to rate() and increase() as what it is, a counter that
// was reset. A process that counted the stream from its beginning would show them all of the past as one jump, again at
// every restart, and after the oldest messages were discarded it would show less than before. What happened while no
// process counted, between the last message that one applied and the end of the stream that the next one found, is in
// the ledger and in no counter.
package telemetry
