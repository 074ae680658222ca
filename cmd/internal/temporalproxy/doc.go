// Package temporalproxy lets who runs users' code into the engine's Temporal, with the rights that it needs and no
// more: the workflow worker of one build (Proxy), and hosts that have joined (Hosts).
//
// Temporal takes the owner's token only, and a workflow worker runs a user's code: it is given no token but a proxy of
// its own, a socket that only its process may use. The engine serves it, looks at every request, and hands on what a
// workflow worker has use for, with the token. Workers that were compiled for earlier engines work through it, too: all
// they know of it is an address.
//
// A worker may poll the workflow queue of its build, answer the workflow tasks that it was given, and read the
// histories of their runs. Its runs may order tasks of stages of that build, start and signal runs below themselves,
// and continue as new. It can start, end, list or read nothing else.
//
// A host comes over the TLS port with a token of its own, and may poll the queues of stages and answer the tasks that
// it was given. Tokens of tasks, which Temporal does not sign, are sealed for it.
package temporalproxy
