// Package exchange trains one model by several workers: each computes its part of a round, and all of them go on with
// the mean of the parts.
//
// A part is a function of the state before the round, the round and the number of the part, so it does not matter who
// computes it: what a worker waits for in vain it computes itself. No worker must be there at the same time as another,
// one that is lost costs the others its work until it is back, and each part counts once, as the first that was posted.
// Parts are added up in the order of their numbers, whoever adds them up.
//
// What is exchanged goes through a [activities.Board], of which functions have one in their store of artifacts, or
// through a parameter server, which adds up itself: [Memory] behind [Handler] is one.
package exchange
