// Package predictor decides how much of every venue each stage holds, purely: Fold remembers what happened, Decide says
// what to do.
//
//	state = predictor.Fold(state, event)                  // once per event of the loop's stream
//	plan, state = predictor.Decide(state, snapshot)       // once per tick
//
// Neither function reads a clock, does I/O or draws global randomness, so the same two functions run in production, in
// replays of recorded data and in tests, and a state can always be rebuilt from a checkpoint and the events after it.
package predictor
