// Package edge is the one port of an engine that other machines reach. It speaks TLS 1.3 and carries three things, so
// that a firewall opens one port:
//
//	application protocol "nats"                     NATS, as it comes (nats.TLSHandshakeFirst)
//	HTTP/2 with content type application/grpc       Temporal, with the rights of a host (package temporalproxy)
//	all else                                        the API, the page and artifacts
package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/join"
)

const (
	// handshakePatience is how long a stranger may take to shake hands.
	handshakePatience = 10 * time.Second
	// mostConnections is how many there may be at a time, and mostOfOne how many of one address: a host has about ten.
	mostConnections = 8192
	mostOfOne       = 512
	// mostStreams is how many requests a connection may have open at a time: a host polls each of its stages.
	mostStreams = 4096
	// closePatience is how long requests may go on when the port is closed: streams would for ever.
	closePatience = 2 * time.Second
	// acceptPause is the time between two tries to accept where the system has no more files to give.
	acceptPause = 100 * time.Millisecond
)

// Options configures a Port. All fields are required.
type Options struct {
	// Certificate is tls.Config.GetCertificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// API answers what is neither of the other two. It looks at credentials itself.
	API http.Handler
	// Temporal answers requests of gRPC. It looks at credentials itself.
	Temporal http.Handler
	// NATS is the host and port of NATS, which looks at credentials itself; it is on this machine.
	NATS string
	// Logger takes what is said of broken connections, at debug level.
	Logger *slog.Logger
}

// Port is one that is open. Use Listen.
type Port struct {
	options  Options
	listener net.Listener
	server   *http.Server
	plain    chan *tls.Conn // connections of HTTP that have shaken hands
	closed   chan struct{}
	//nolint:containedctx // it ends with the port, and handshakes with it
	life  context.Context
	ended sync.WaitGroup // the connections that are not the server's

	mu    sync.Mutex
	open  int                // connections; guarded by mu
	from  map[netip.Addr]int // those of each address; guarded by mu
	close func()
}

// Listen opens the port; nothing is answered before Serve.
func Listen(ctx context.Context, address string, options Options) (*Port, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w; choose an address of this machine and a port that is free", address, err)
	}
	p := &Port{
		options: options, listener: listener, plain: make(chan *tls.Conn), closed: make(chan struct{}),
		from: map[netip.Addr]int{},
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	p.life = life
	p.close = sync.OnceFunc(func() { close(p.closed); end() })
	p.server = access.NewServer(http.HandlerFunc(p.answer), options.Logger)
	p.server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: mostStreams}
	return p, nil
}

// Address is the host and port that are listened on.
func (p *Port) Address() net.Addr { return p.listener.Addr() }

// Serve answers until Close; it then returns nil.
func (p *Port) Serve() error {
	var serving sync.WaitGroup
	serving.Go(func() { _ = p.server.Serve(handed{p}) }) // it ends when the port is closed
	defer serving.Wait()
	for {
		connection, err := p.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			p.options.Logger.Warn("the TLS port takes no connection for a moment", "error", err)
			time.Sleep(acceptPause)
			continue
		}
		from := addressOf(connection)
		if !p.enter(from) {
			_ = connection.Close() // of somebody who has too many
			continue
		}
		p.ended.Go(func() { p.meet(&counted{Conn: connection, leave: sync.OnceFunc(func() { p.leave(from) })}) })
	}
}

// Close ends all connections and frees the port. Requests may go on for two seconds, and until ctx ends.
func (p *Port) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	err := p.listener.Close()
	p.close()
	if shut := p.server.Shutdown(ctx); shut != nil { // long polls and streams are cut
		shut = p.server.Close()
		err = errors.Join(err, shut)
	}
	p.ended.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// meet shakes hands and hands the connection on.
func (p *Port) meet(connection net.Conn) {
	secure := tls.Server(connection, &tls.Config{
		MinVersion: tls.VersionTLS13, GetCertificate: p.options.Certificate,
		NextProtos: []string{join.Protocol, "h2", "http/1.1"},
	})
	ctx, cancel := context.WithTimeout(p.life, handshakePatience)
	err := secure.HandshakeContext(ctx)
	cancel()
	if err != nil {
		p.options.Logger.Debug("a handshake failed", "from", connection.RemoteAddr().String(), "error", err)
		_ = connection.Close() // nothing is left to say
		return
	}
	if secure.ConnectionState().NegotiatedProtocol == join.Protocol {
		p.carry(secure)
		return
	}
	select {
	case p.plain <- secure:
	case <-p.closed:
		_ = secure.Close()
	}
}

// answer hands a request on.
func (p *Port) answer(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		p.options.Temporal.ServeHTTP(w, r)
		return
	}
	p.options.API.ServeHTTP(w, r)
}

// enter counts a connection; false where it is one too many.
func (p *Port) enter(from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open >= mostConnections || p.from[from] >= mostOfOne {
		return false
	}
	p.open++
	p.from[from]++
	return true
}

func (p *Port) leave(from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	if p.from[from]--; p.from[from] == 0 {
		delete(p.from, from)
	}
}

// ownNetwork is how many bits of an IPv6 address name the network of one machine, which has all addresses in it
// (RFC 4291, section 2.5.4).
const ownNetwork = 64

// addressOf is where a connection comes from, without the port: of IPv6 the network.
func addressOf(connection net.Conn) netip.Addr {
	if from, is := connection.RemoteAddr().(*net.TCPAddr); is {
		address := from.AddrPort().Addr().Unmap()
		if network, err := address.Prefix(ownNetwork); address.Is6() && err == nil {
			return network.Addr()
		}
		return address
	}
	return netip.Addr{}
}

// counted is a connection that leaves once, when it is closed.
type counted struct {
	net.Conn

	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// handed is the listener of the server of HTTP: its connections have shaken hands.
type handed struct{ port *Port }

// Accept implements net.Listener.
func (h handed) Accept() (net.Conn, error) {
	select {
	case connection := <-h.port.plain:
		return connection, nil
	case <-h.port.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h handed) Close() error {
	h.port.close()
	return nil
}

// Addr implements net.Listener.
func (h handed) Addr() net.Addr { return h.port.listener.Addr() }
