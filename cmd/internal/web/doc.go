// Package web serves the engine's page, HTTP API, metrics and health.
//
// The API is for this machine and its owner only (see access.Guard): it refuses requests whose Host is not a loopback
// name, so that no page of the world can reach it through a name that resolves here, those of pages of other origins,
// and bodies that are not JSON, so that no page can post a form to it. Who asks shows the token of the state directory,
// or a browser the cookie that it has been given for a code. Without either there are the files of the page, one word
// of /healthz, and where codes are sent; with the token of Prometheus /metrics.
//
// # Routes
//
// One table of routes makes both the mux and the OpenAPI document that GET /api/v1/openapi.json answers, and each
// parameter of a query reads itself from what the document says of it. A route says who may call it; what says nothing,
// in the table or beside it, is the owner's. So the document cannot promise what is not there; openapi.json is its
// committed copy. Queries and bodies with names that a route does not know are refused, because they are misspelt ones.
//
// # The stream
//
// GET /api/v1/stream tells what changes, as server-sent events. A new stream begins with the message "reset" and the
// whole state. Then each message has an ID, EPOCH-NUMBER: the number of the change that it tells, which grows within a
// stream, and the engine's process that counts. A client that connects again with the last ID that it has received, as
// Last-Event-ID or as ?after=, and with the same ?run=, is told exactly what it has not been told:
//
//   - Every decision and every alert is a change of its own, and is remembered with its number. Of a run and of the
//     plan only the latest change is remembered, because only the state that it leads to is told.
//   - A change is told in the order of the numbers, so whoever has received N has received, or can do without, all up
//     to N. All that is remembered above N is what is missing, as long as nothing above N was forgotten.
//   - The feed knows the highest number that it has forgotten for lack of room. A client that is further behind, or has
//     the ID of another process, is told "reset" and the whole state instead.
//
// The messages of the whole state have no ID, and the ID that follows them stands for all of them: a client that loses
// the connection among them begins anew. Heartbeats bring the ID of the latest change, so that a stream to which
// nothing is told does not fall behind. A run that has ended is told after all decisions and alerts that came before
// its end, so that a client may stop there.
//
// All streams are told what has changed at the same moments, at most ten times a second, and share the encoded
// messages: a change costs one encoding however many read it, and streams of other runs are not even woken by it. A
// reader that does not take what is written for ten seconds is dropped.
package web
