// Package access owns the credentials of a state directory and guards the ports of an engine with them.
//
// One secret, made at the first start, is the root of all of them, so that they stay the same over restarts and there is one thing to lose:
//
//	<state>/keys/secret   32 random bytes, for nobody's eyes
//	<state>/keys/token    what people and their tools show: derived from the secret, written for nats and temporal
//	<state>/keys/header   the same as a header, for curl: in an argument all users of the machine could read it
//	<state>/keys/metrics  what Prometheus shows: it reads /metrics and nothing else
//
// A Guard stands before each port that speaks HTTP. Browsers, which read no files, log in once with a code (Logins) and are known by a cookie then.
//
// Whoever can read the directory's files is the owner. Nothing here protects the owner from programs that run as the owner.
package access
