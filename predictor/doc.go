// Package predictor decides how much of every venue each stage holds, purely: Fold remembers what happened, Decide says
// what to do.
//
//	state = predictor.Fold(state, event)                  // once per event of the loop's stream
//	plan, state = predictor.Decide(state, snapshot)       // once per tick
//
// The steps are packages through which data falls once: what is told (fact) and remembered (memory), what an attempt
// takes (usage) and is given (size), what is asked and answered at a tick (plan), who gets the room of hosts (share),
// when functions pay (spill), and what a run comes to (outlook). Their vocabulary has its names here, too: who uses the
// predictor imports one package.
//
// Neither function reads a clock, does I/O or draws global randomness, so the same two functions run in production, in
// replays of recorded data and in tests, and a state can always be rebuilt from a checkpoint and the events after it.
package predictor
