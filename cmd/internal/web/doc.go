// Package web serves the engine's page, HTTP API, metrics and health.
//
// The API is for this machine only: it refuses requests whose Host is not a loopback name, so that no page of the world can reach it
// through a name that resolves here, and it refuses bodies that are not JSON, so that no page can post a form to it.
// Whoever may connect to the loopback port may use the API: on a machine that people share, that is everyone who has an account there.
package web
