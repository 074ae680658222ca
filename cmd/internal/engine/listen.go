package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/cmd/internal/edge"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/hosts"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/strangers"
	"github.com/spillway-ml/spillway/cmd/internal/temporalproxy"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// ListenConfig is the port by which other machines reach the engine. The zero value is none.
type ListenConfig struct {
	// Address is the host and port to listen on; empty for none.
	Address string
	// Advertise are the names and addresses by which it is reached. Empty are those of the certificate that is given, or
	// else the name of this machine and the addresses that are listened on.
	Advertise []string
	// CertificateFile and KeyFile are the user's own certificate; see access.CertificateOptions.
	CertificateFile, KeyFile string
}

// outside is what an engine has for other machines.
type outside struct {
	tokens      *access.Tokens
	sessions    *access.Sessions
	signIn      *signin.Provider // nil where people sign in nowhere
	hosts       *hosts.Registry
	secret      *access.JoinSecret  // what hosts show to join; nil where there is no port
	joining     *access.JoinSecret  // what other servers show; likewise
	certificate *access.Certificate // likewise
	strange     *strangers.Limit    // who wanted to be a server, and is none
}

// openOutside reads which hosts have joined, and the certificate of the port.
func openOutside(ctx context.Context, f *venues) (o outside, err error) {
	o.tokens, o.strange = access.OpenTokens(f.shared), hosts.NewStrangers()
	o.sessions = access.OpenSessions(f.shared, f.servers.own.Keys(), o.tokens)
	o.sessions.Displaced = func(ctx context.Context, session access.Session) {
		f.logger.WarnContext(ctx, "a session has ended, since who it is of has as many as one may have", "who", session.Name,
			"subject", session.Subject, "way", session.Way, "from", session.From, "made", session.Made)
	}
	if f.config.SignIn != nil {
		options := *f.config.SignIn
		options.Logger = f.logger
		if o.signIn, err = signin.New(options); err != nil {
			return o, err
		}
	}
	if f.config.Listen.Address != "" {
		if !f.servers.own.HasNATS() {
			return o, fmt.Errorf("listen on %s: %w", f.config.Listen.Address, devserver.ErrNoFront)
		}
		if o.secret, err = access.OpenJoinSecret(ctx, f.shared, access.HostsJoin); err != nil {
			return o, err
		}
		if o.joining, err = access.OpenJoinSecret(ctx, f.shared, access.ServersJoin); err != nil {
			return o, err
		}
		if o.certificate, err = openCertificate(f.config); err != nil {
			return o, err
		}
	}
	own := host.Name()
	if f.config.NoPool {
		own = ""
	}
	o.hosts = hosts.Open(hosts.Options{
		Shared: f.shared, Keys: f.servers.own.Keys(), Secret: o.secret, Own: own, Version: f.config.Version,
		Living: f.leases.Hosts, Admit: f.servers.own.AdmitHost, Now: f.config.Clock, Logger: f.logger,
	})
	f.servers.own.HostsIn(o.hosts.IsHost)
	return o, nil
}

// openCertificate opens the certificate of the port.
func openCertificate(config *Config) (*access.Certificate, error) {
	listen := config.Listen
	names := listen.Advertise
	if len(names) == 0 && listen.CertificateFile == "" {
		var err error
		if names, err = ownNames(listen.Address); err != nil {
			return nil, err
		}
	}
	certificate, err := access.OpenCertificate(config.StateDir, access.CertificateOptions{
		Names: names, CertificateFile: listen.CertificateFile, KeyFile: listen.KeyFile, Logger: config.Logger,
	})
	if err != nil {
		return nil, err
	}
	if len(certificate.Names()) == 0 {
		return nil, fmt.Errorf("%s names no machine: say with --advertise by which name others reach this one",
			listen.CertificateFile)
	}
	return certificate, nil
}

// ownNames are the name of this machine and the addresses that are listened on, those of the loopback interface last.
func ownNames(address string) ([]string, error) {
	at, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w; give a host and a port, such as 0.0.0.0:7475", address, err)
	}
	names := []string{host.Name()}
	switch ip := net.ParseIP(at); {
	case ip == nil && at != "":
		names = append([]string{at}, names...)
	case ip != nil && !ip.IsUnspecified():
		names = append([]string{at}, names...)
	default:
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			return nil, fmt.Errorf("find the addresses of this machine: %w; name it with --advertise", err)
		}
		for _, one := range addresses {
			if of, is := one.(*net.IPNet); is && !of.IP.IsLoopback() && !of.IP.IsLinkLocalUnicast() {
				names = append(names, of.IP.String())
			}
		}
	}
	for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// names are those by which other machines reach the engine.
func (o *outside) names() []string {
	if o.certificate == nil {
		return nil
	}
	return o.certificate.Names()
}

// startEdge opens the port for other machines, where there is to be one, with the API behind it.
func (e *Engine) startEdge(ctx context.Context, api http.Handler) error {
	if e.certificate == nil {
		return nil
	}
	behind, err := e.servers.DialTemporal()
	if err != nil {
		return err
	}
	e.onClose("the connection of hosts to Temporal", func(context.Context) error { return behind.Close() })
	keys := e.servers.own.Keys()
	temporal, err := temporalproxy.NewHosts(temporalproxy.HostOptions{
		Temporal: behind, Namespace: e.servers.Namespace(), Host: e.hosts.Of, Seal: keys.SealTask, Open: keys.OpenTask,
		Withheld: e.withheld,
		Prove:    func(host string, given wire.Given) string { return keys.ProveGiven(host, given.Encode()) },
		Logger:   e.logger,
	})
	if err != nil {
		return err
	}
	port, err := edge.Listen(ctx, e.config.Listen.Address, edge.Options{
		Certificate: e.certificate.Get, API: api, Temporal: temporal,
		NATS: strings.TrimPrefix(e.servers.own.NATSURL(), "nats://"), Logger: e.logger,
	})
	if err != nil {
		return err
	}
	e.onClose("the port for other machines", func(ctx context.Context) error {
		temporal.Close()
		return port.Close(ctx)
	})
	e.addresses.TLS = e.tlsURL(port.Address())
	e.self.Address = strings.TrimPrefix(e.addresses.TLS, "https://")
	e.working.Go(func() {
		if err := port.Serve(); err != nil {
			e.fail(err)
		}
	})
	return nil
}

// tlsURL is where other machines reach the engine: by the first of its names.
func (e *Engine) tlsURL(address net.Addr) string {
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return ""
	}
	return "https://" + net.JoinHostPort(e.names()[0], port)
}

// livingHosts are the hosts that have a lease now, with which of them are drained, and what is withheld from them.
func (f *front) livingHosts(ctx context.Context) ([]predictor.Host, error) {
	living, err := f.leases.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	return f.withhold(ctx, f.hosts.Mark(living)), nil
}

// Hosts implements web.Hosts.
func (e *Engine) Hosts(ctx context.Context) ([]web.Host, error) {
	plan, err := e.Plan(ctx)
	if err != nil {
		return nil, err
	}
	return e.hosts.List(ctx, plan)
}

// errNoPort says that no other host can join.
func errNoPort() error {
	return web.NotFound("start it with --listen HOST:PORT", "this engine has no port for other machines")
}

// Join implements web.Hosts.
func (e *Engine) Join(ctx context.Context, bearer string, way web.Way, request join.Request) (join.Answer, error) {
	if e.certificate == nil {
		return join.Answer{}, errNoPort()
	}
	if !way.Secure {
		return join.Answer{}, web.Invalid("ask at "+e.addresses.TLS, "a host joins over TLS: its token is a secret")
	}
	token, err := e.hosts.Join(ctx, bearer, way.From, request)
	if err != nil {
		return join.Answer{}, err
	}
	reached := way.Reached
	if _, _, err := net.SplitHostPort(reached); err != nil {
		reached = net.JoinHostPort(strings.Trim(reached, "[]"), "443")
	}
	return join.Answer{
		OwnPlan: true,
		Host:    request.Host, Token: token, API: "https://" + reached, Servers: e.serversFrom(ctx, reached),
		NATS:     []string{"tls://" + reached},
		NATSUser: join.UserPrefix + request.Host, Temporal: reached, Namespace: e.servers.Namespace(),
		CA: e.certificate.Authority(), ResultsKey: hex.EncodeToString(e.servers.own.Keys().PublicKey()),
		Lease: loop.Lease, Version: e.config.Version, At: e.now(),
	}, nil
}

// JoinToken implements web.Hosts.
func (e *Engine) JoinToken(ctx context.Context, server, renew bool) (string, error) {
	if e.certificate == nil {
		return "", errNoPort()
	}
	secret := e.secret
	if server {
		if err := e.errAlone(); err != nil {
			return "", err
		}
		secret = e.joining
	}
	if renew {
		if err := secret.Renew(ctx); err != nil {
			return "", errors.Join(errors.New("make another token to join with"), err)
		}
	}
	return join.Token{Authority: e.certificate.Digest(), Secret: secret.Text()}.String(), nil
}

// DrainHost implements web.Hosts.
func (e *Engine) DrainHost(ctx context.Context, name string, drained bool) error {
	return e.hosts.Drain(ctx, name, drained)
}

// RemoveHost implements web.Hosts.
func (e *Engine) RemoveHost(ctx context.Context, name string) error { return e.hosts.Remove(ctx, name) }
