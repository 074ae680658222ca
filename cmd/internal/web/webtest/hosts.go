package webtest

import (
	"context"
	"slices"

	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Listed are the hosts of an Engine, and what lets others join.
type Listed struct {
	Hosts []web.Host
	// Token is what a host joins with, Renewed what it is after it was made anew.
	Token, Renewed string
	// ServerToken is what another server joins with.
	ServerToken string
	// OnJoin answers who joins.
	OnJoin func(bearer string, way web.Way, request join.Request) (join.Answer, error)
	// OnJoinServer answers who is to be another server.
	OnJoinServer func(bearer string, way web.Way, request join.ServerRequest) (join.ServerAnswer, error)
}

// SetListed sets the hosts that Hosts tells, and what lets others join.
func (e *Engine) SetListed(listed Listed) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.listed = listed
}

// Hosts lists them.
func (e *Engine) Hosts(context.Context) ([]web.Host, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.Clone(e.listed.Hosts), e.failure
}

// Join answers with OnJoin; no host can join where that is nil.
func (e *Engine) Join(_ context.Context, bearer string, way web.Way, request join.Request) (join.Answer, error) {
	e.mutex.Lock()
	answer := e.listed.OnJoin
	e.mutex.Unlock()
	if answer == nil {
		return join.Answer{}, web.NotFound("", "this engine has no port for other machines")
	}
	return answer(bearer, way, request)
}

// JoinServer answers with OnJoinServer; no server can join where that is nil.
func (e *Engine) JoinServer(
	_ context.Context, bearer string, way web.Way, request join.ServerRequest,
) (join.ServerAnswer, error) {
	e.mutex.Lock()
	answer := e.listed.OnJoinServer
	e.mutex.Unlock()
	if answer == nil {
		return join.ServerAnswer{}, web.NotFound("", "this engine has no port for other machines")
	}
	return answer(bearer, way, request)
}

// JoinToken returns Token, or ServerToken; renewing makes Token Renewed.
func (e *Engine) JoinToken(_ context.Context, server, renew bool) (string, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if server {
		return e.listed.ServerToken, e.failure
	}
	if renew {
		e.listed.Token = e.listed.Renewed
	}
	return e.listed.Token, e.failure
}

// DrainHost marks a host.
func (e *Engine) DrainHost(_ context.Context, host string, drained bool) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	at := slices.IndexFunc(e.listed.Hosts, func(h web.Host) bool { return h.Name == host })
	if at < 0 {
		return web.NotFound("`spillway hosts` lists them", "there is no host %.100q that has joined", host)
	}
	e.listed.Hosts[at].Drained = drained
	return nil
}

// RemoveHost removes a host.
func (e *Engine) RemoveHost(_ context.Context, host string) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	before := len(e.listed.Hosts)
	e.listed.Hosts = slices.DeleteFunc(e.listed.Hosts, func(h web.Host) bool { return h.Name == host })
	if len(e.listed.Hosts) == before {
		return web.NotFound("`spillway hosts` lists them", "there is no host %.100q that has joined", host)
	}
	return nil
}
