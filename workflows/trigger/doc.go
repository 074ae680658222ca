// Package trigger turns NATS events into runs, exactly one run for each event.
//
// An event is a message on the stream SPILLWAY_EVENTS. A binding says which events start which pipeline; each binding
// reads the stream through a durable consumer of its own, so that a binding that has reached its cap holds no other up.
// The ID of an event is fixed before anything happens (see RunID), the run's workflow ID follows from it, and Temporal
// refuses a second workflow with the same ID. The order of effects is: start the run, then acknowledge the event. A
// crash between the two starts nothing twice, because the redelivered event asks for the same workflow ID. This holds
// as long as Temporal retains closed runs.
//
// An event that cannot start a run, because of what is in it, becomes a dead letter with the reason and can be
// replayed. Trouble of our own (Temporal or NATS away) never makes a dead letter: the event is redelivered with
// back-off. Several events of one binding are in flight at a time, and their order is not guaranteed.
package trigger
