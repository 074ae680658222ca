package engine

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/hosts"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// errAlone says why there can be no other server of the stack; nil where there can.
func (e *Engine) errAlone() error {
	if e.self.Alone == "" {
		return nil
	}
	return web.NotFound("servers of one stack share what they work with: give all of them the same ones",
		"this stack cannot have another server, because this one has %s", e.self.Alone)
}

// JoinServer implements web.Hosts.
func (e *Engine) JoinServer(
	ctx context.Context, bearer string, way web.Way, request join.ServerRequest,
) (answer join.ServerAnswer, err error) {
	if e.certificate == nil {
		return answer, errNoPort()
	}
	if !way.Secure {
		return answer, web.Invalid("ask at "+e.addresses.TLS, "a server joins over TLS: what it is given is secret")
	}
	now := e.now()
	if !e.strange.May(way.From, now) {
		return answer, hosts.TooMany("spillway hosts token --server")
	}
	if !e.joining.Is(bearer) {
		e.strange.Count(way.From, now)
		e.logger.WarnContext(ctx, "somebody who showed no token for servers wanted the keys of the stack", "from", way.From)
		return answer, &web.Error{
			Status: http.StatusUnauthorized, Message: "the token is not one that servers join with, or was made anew since",
			Hint: "take it from `spillway hosts token --server` on the server",
		}
	}
	if err := e.errAlone(); err != nil {
		return answer, err
	}
	if err := admitServer(request, e.config.Version, now); err != nil {
		return answer, err
	}
	if answer.Authority, err = e.certificate.AuthorityAndKey(); err != nil {
		return answer, err
	}
	answer.Secret, answer.Version, answer.At = e.servers.own.Keys().Root(), e.config.Version, now
	e.logger.InfoContext(ctx, "another server was given the keys of the stack", "server", request.Server, "from", way.From,
		"version", request.Version)
	return answer, nil
}

// admitServer says why a machine may not be a server; nil where it may.
func admitServer(request join.ServerRequest, version string, now time.Time) error {
	if err := join.CheckName(request.Server); err != nil {
		return web.Invalid("", "%v", err)
	}
	if join.CheckVersions(request.Version, version) != nil {
		return web.Conflict(fmt.Sprintf("install %s there", version),
			"it has version %s, and this server %s: both may be one minor version apart", request.Version, version)
	}
	if gap := request.At.Sub(now); gap.Abs() > join.MaxClockGap {
		return web.Conflict("set both by NTP (timedatectl set-ntp true)",
			"its clock and this server's are %s apart", gap.Abs().Round(time.Second))
	}
	return nil
}
