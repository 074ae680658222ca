// Package loop carries the loop's facts over JetStream.
//
// Venues publish through a Recorder, whoever remembers reads with Follow, the leader posts its plan through Plans and
// actuators watch it there, and hosts keep their Leases. Everything here may be stopped and started at any time: what
// matters is in the streams, and every reader says from where it goes on.
package loop
