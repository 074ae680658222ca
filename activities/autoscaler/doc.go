// Package autoscaler leads the loop: one leader at a time folds the stream, decides and publishes the plan.
//
// Temporal elects: the leader is an activity that heartbeats, of a workflow that exists once. JetStream guards: a leader takes the next
// term, puts the plan in force under it, and from then on replaces only the plan that it put there itself. So a leader that was paused,
// cut off or superseded cannot change a grant, whatever it believes of itself. While nobody leads, the last plan stays in force.
//
// What a leader knows is a fold over the loop's stream. A checkpoint saves most of the way: recovery is the checkpoint and the tail
// behind it, and without a usable checkpoint the whole stream.
package autoscaler
