// Package policy replays arrivals in virtual time, on hosts that simple policies hold and on what Spillway decides, and
// says what each comes to.
//
//	outcome, err := policy.Replay(ctx, setting, arrivals, policy.Entrant{Policy: policy.NewKPA(4), First: 1, Most: 16})
//	outcome, err := policy.Ours(ctx, setting, arrivals, 3, time.Second)
//
// Nothing reads a clock or draws a random number.
package policy
