package web

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Hosts says which hosts there are, lets others join, and has them take no new work.
type Hosts interface {
	// Hosts lists all hosts by name: those that have joined, and those that have a lease.
	Hosts(ctx context.Context) ([]Host, error)
	// Join lets a host in that shows a token to join with, or its own. Errors: StatusConflict where it cannot be used as
	// it is, StatusUnauthorized for another token, StatusTooManyRequests after several of those, StatusNotFound where the
	// engine has no port for other machines.
	Join(ctx context.Context, bearer string, way Way, request join.Request) (join.Answer, error)
	// JoinServer gives the keys of the stack to another server of it that shows the token for that. Errors are as those of
	// Join, and StatusNotFound as well where there can be no other.
	JoinServer(ctx context.Context, bearer string, way Way, request join.ServerRequest) (join.ServerAnswer, error)
	// JoinToken is what a host, or another server, joins with: another one from now on where renew is set. StatusNotFound
	// as for Join and JoinServer.
	JoinToken(ctx context.Context, server, renew bool) (string, error)
	// DrainHost has a host take no new work, or take some again; StatusNotFound when there is none.
	DrainHost(ctx context.Context, host string, drained bool) error
	// RemoveHost forgets a host that has joined; StatusNotFound when none has, StatusConflict for the engine's own.
	RemoveHost(ctx context.Context, host string) error
}

// Way is how a request has come.
type Way struct {
	// From is the address that it came from, Reached the host, and the port where one was said, that it went to.
	From, Reached string
	// Secure says that it came over TLS.
	Secure bool
}

// HostState says how a host stands.
type HostState string

// States of hosts.
const (
	HostUp      HostState = "up"      // it has a lease
	HostJoined  HostState = "joined"  // it has joined, and has had no lease since it came last
	HostStopped HostState = "stopped" // it had one, and gave it back, as an agent that is told to end does
	HostLost    HostState = "lost"    // it had one
)

// Host is one that has joined, or that has a lease.
type Host struct {
	Name  string    `json:"name"`
	State HostState `json:"state"`
	// Own says that it is the engine's own.
	Own bool `json:"own,omitempty"`
	// Drained says that it takes no new work.
	Drained bool `json:"drained,omitempty"`
	// DiskFull says that its disk has no room, so that nothing is placed there.
	DiskFull bool `json:"disk_full,omitempty"`
	// Version is that of its program, Platform what that was built for; empty where nobody told.
	Version  string `json:"version,omitempty"`
	Platform string `json:"platform,omitempty"`
	// Capacity is what it offers, Used what running attempts have of it.
	Capacity quantity.Size `json:"capacity"`
	Used     quantity.Size `json:"used"`
	// Joined is when it joined with a token, Seen when it was heard of last; zero where nobody knows.
	Joined time.Time `json:"joined,omitzero"`
	Seen   time.Time `json:"seen,omitzero"`
	// Stages are those that have slots there, as app/stage.
	Stages []string `json:"stages"`
}

// hostsAnswer is the answer of GET /api/v1/hosts.
type hostsAnswer struct {
	Hosts []Host `json:"hosts"`
}

// JoinToken is what a host joins with. It is a secret.
type JoinToken struct {
	Token string `json:"token"`
}

// joinTokenBody is the body of POST /api/v1/hosts/token.
type joinTokenBody struct {
	// Renew makes another one; the one before counts no more.
	Renew bool `json:"renew,omitempty"`
	// Server asks for what another server of the stack joins with.
	Server bool `json:"server,omitempty"`
}

// joinLimit bounds what a host sends that joins.
const joinLimit = 16 << 10

// hosts answers GET /api/v1/hosts.
func (s *Server) hosts(r *http.Request) (hostsAnswer, error) {
	hosts, err := s.engine.Hosts(r.Context())
	for i := range hosts {
		hosts[i].Stages = notNil(hosts[i].Stages)
	}
	return hostsAnswer{notNil(hosts)}, err
}

// joinHost answers POST join.Path.
func (s *Server) joinHost(r *http.Request) (join.Answer, error) {
	var request join.Request
	if err := decodeJoining(r, &request); err != nil {
		return join.Answer{}, err
	}
	shown, _ := access.Bearer(r.Header.Get("Authorization"))
	return s.engine.Join(r.Context(), shown, wayOf(r), request)
}

// joinServer answers POST join.ServerPath.
func (s *Server) joinServer(r *http.Request) (join.ServerAnswer, error) {
	var request join.ServerRequest
	if err := decodeJoining(r, &request); err != nil {
		return join.ServerAnswer{}, err
	}
	shown, _ := access.Bearer(r.Header.Get("Authorization"))
	return s.engine.JoinServer(r.Context(), shown, wayOf(r), request)
}

// wayOf is how a request has come.
func wayOf(r *http.Request) Way {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		from = r.RemoteAddr
	}
	return Way{From: from, Reached: r.Host, Secure: r.TLS != nil}
}

// joinToken answers POST /api/v1/hosts/token.
func (s *Server) joinToken(r *http.Request) (JoinToken, error) {
	var body joinTokenBody
	if err := decodeBody(r, &body); err != nil {
		return JoinToken{}, err
	}
	token, err := s.engine.JoinToken(r.Context(), body.Server, body.Renew)
	return JoinToken{token}, err
}

// drainHost answers POST /api/v1/hosts/{host}/drain and undrain.
func (s *Server) drainHost(drained bool) func(*http.Request) (nothing, error) {
	return func(r *http.Request) (nothing, error) {
		if err := decodeBody(r, &nothing{}); err != nil {
			return nothing{}, err
		}
		return nothing{}, s.engine.DrainHost(r.Context(), r.PathValue("host"), drained)
	}
}

// removeHost answers DELETE /api/v1/hosts/{host}.
func (s *Server) removeHost(r *http.Request) (nothing, error) {
	return nothing{}, s.engine.RemoveHost(r.Context(), r.PathValue("host"))
}
