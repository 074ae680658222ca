// Package slot polls a stage's task queues with a number of slots that changes live.
//
// A [Worker] serves one stage, a [Board] the stages of a whole plan. What polls is Temporal's own worker; this package
// decides when it may poll. It also keeps the books of one [Attempt], the same way at every venue: what it leaves for
// the next attempt, when the attempts are used up, and which error the workflow sees.
package slot
