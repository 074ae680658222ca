// Package runner runs commands as a Lambda function.
//
// It is what the agent is to a command at the pool: it fetches what the command brings along, runs it with as many
// threads as the function has cores, follows what it reports, keeps its outputs and checkpoints, and says how it ended.
// What a function cannot do for a command, the pool may: then the answer says what it lacks (wire.StageFailure.Unfit).
//
// An environment serves one invoke at a time, and the next one may be another command's. So whatever a program leaves
// running is ended, and its files are deleted; only unpacked code stays, for the next attempt.
package runner
