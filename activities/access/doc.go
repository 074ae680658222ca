// Package access owns the credentials of a state directory and guards the ports of an engine with them.
//
// One secret, made at the first start, is the root of all of them, so that they stay the same over restarts and there
// is one thing to lose:
//
//	<state>/keys/secret         32 random bytes, for nobody's eyes
//	<state>/keys/token          what people and their tools show: derived from the secret
//	<state>/keys/header         the same as a header, for curl: in an argument all users of the machine could read it
//	<state>/keys/nats.json      the same as a context of the nats command, with the address
//	<state>/keys/temporal.toml  the same as a profile of the temporal command, with the address
//	<state>/keys/metrics        what Prometheus shows: it reads /metrics and nothing else
//	<state>/keys/open.html      what `spillway open` shows a browser: a page that leads to a link which logs it in, once
//	<state>/keys/authority.pem  the authority of the TLS port, with its key; made where there is such a port, and random
//
// Tokens that were made for others, and what hosts show to join, are documents that all servers of a stack share
// (package documents), sealed with a key that is derived from the secret.
//
// Beside them lies <state>/lock, which an engine keeps locked for as long as it lives: nobody else is shown a token
// (see EngineLives).
//
// A Guard stands before each port that speaks HTTP. Browsers, which read no files, log in once with a code (Logins) and
// are known by a cookie then.
//
// Whoever can read the directory's files is the owner. Nothing here protects the owner from programs that run as the
// owner.
package access
