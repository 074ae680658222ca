// Package autoscaler leads the loop: one leader at a time folds the stream, decides and publishes the plan.
//
// A lease in a NATS bucket says who leads, and a term in another is the fence. The leader renews the lease from a
// goroutine and a connection of its own, so that neither the loop's messages nor Temporal's database, which the load
// fills, can take the lead from it. It stops when it could not renew for half the time that a lease lasts; another
// process takes the lease when it was given up, or when that process has itself seen it unchanged for the whole time.
// No wall clock is read or compared.
//
// Should two processes believe that they lead all the same, compare-and-set guards the plan: a leader takes the next
// term, puts the plan in force under it, and from then on replaces only the plan that it put there itself. So a leader
// that was paused, cut off or superseded cannot change a grant, whatever it believes of itself. While nobody leads, the
// last plan stays in force.
//
// What a leader knows is a fold over the loop's stream. A checkpoint saves most of the way: recovery is the checkpoint
// and the tail behind it, and without a usable checkpoint the whole stream.
package autoscaler
