// Package relay hands artifacts on to processes of this machine that have no credentials of the store: stages of the
// pool, workflow workers and local functions run users' code, which is given the right to put and to open artifacts,
// and no other right of whoever runs the engine.
//
// PUT / stores the body and answers with its reference as JSON; GET /DIGEST answers with the bytes. Below /boards/ is
// the store's board, and below /server/ a parameter server in the engine's memory, as exchange.Handler serves them. The
// credential is in the user part of the URL, which is told to those processes alone.
//
// Handler alone is for hosts elsewhere, which the engine knows by credentials of their own: each has a Server before
// the store Behind it, for its own processes.
package relay
