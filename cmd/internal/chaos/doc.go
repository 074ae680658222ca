// Package chaos runs an engine under load, kills it and its processes at seeded moments, fills its disk and skews its
// clocks, and checks what is left of it: every run ends as it should, nothing is lost or doubled, the rest is done as
// fast as it would have been, the ledger agrees with the hosts' own log, and nothing stays behind.
package chaos
