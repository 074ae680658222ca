package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/join"
)

// tryWait bounds one try to connect to one of several servers: the next may answer.
const tryWait = 3 * time.Second

// reach is the way to the servers of the stack: any of them will do, and the one that was reached last is tried first.
// All that a host says to them goes through it, so that it goes on at another one when one is gone. Its methods may be
// called concurrently.
type reach struct {
	trust func(name string) (*tls.Config, error) // a nil configuration is a connection without TLS

	mu        sync.Mutex
	addresses []string                  // guarded by mu: hosts and ports, in the order of their trial; never empty
	open      map[*reachConnection]bool // guarded by mu
}

// reachConnection is one that the way has made; what speaks TLS is above it.
type reachConnection struct {
	net.Conn

	reach   *reach
	address string
}

// Close closes it.
func (c *reachConnection) Close() error {
	c.reach.mu.Lock()
	delete(c.reach.open, c)
	c.reach.mu.Unlock()
	return c.Conn.Close()
}

// newReach returns the way to the servers that an answer names, the one that has answered first.
func newReach(answer join.Answer) *reach {
	r := &reach{
		open:  map[*reachConnection]bool{},
		trust: func(name string) (*tls.Config, error) { return trustIn(answer, name) },
	}
	r.addresses = slices.Compact(slices.Concat([]string{answer.Temporal}, slices.DeleteFunc(
		slices.Clone(answer.Servers), func(at string) bool { return at == answer.Temporal })))
	return r
}

// know takes in which servers there are, and reports whether that is news. Those that are gone are tried last: they may
// come back. One to which there is a connection is not, though no server calls itself by the address by which it was
// joined. An empty list says nothing.
func (r *reach) know(servers []string) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := slices.Sorted(slices.Values(r.addresses))
	there := make(map[string]bool, len(servers))
	for _, at := range servers {
		there[at] = true
	}
	for connection := range r.open {
		there[connection.address] = true
	}
	kept := slices.DeleteFunc(slices.Clone(r.addresses), func(at string) bool { return !there[at] })
	gone := slices.DeleteFunc(slices.Clone(r.addresses), func(at string) bool { return there[at] })
	for _, at := range servers {
		if !slices.Contains(kept, at) {
			kept = append(kept, at)
		}
	}
	const most = 16 // of those that were there once
	r.addresses = slices.Concat(kept, gone[:min(len(gone), max(most-len(kept), 0))])
	return len(servers) > 0 && !slices.Equal(before, slices.Sorted(slices.Values(r.addresses)))
}

// all are the servers, those first that are tried first.
func (r *reach) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.addresses)
}

// prefer has a server tried first from now on.
func (r *reach) prefer(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := slices.Index(r.addresses, address); at > 0 {
		r.addresses = slices.Insert(slices.Delete(r.addresses, at, at+1), 0, address)
	}
}

// demote has a server tried last from now on, and leaves its connections as they are. One that is the only one is left
// as it is; moved says whether it was not.
func (r *reach) demote(address string) (moved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.Index(r.addresses, address)
	if at < 0 || len(r.addresses) == 1 {
		return false
	}
	r.addresses = append(slices.Delete(r.addresses, at, at+1), address)
	return true
}

// avoid ends all connections to a server, and has it tried last from now on: it does not answer any more, which its
// other connections would find out much later. A server that is the only one is left as it is; avoided says whether it
// was not.
func (r *reach) avoid(address string) (avoided bool) {
	if !r.demote(address) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for connection := range r.open {
		if connection.address == address {
			delete(r.open, connection)
			_ = connection.Conn.Close() // whoever uses it is told by that
		}
	}
	return true
}

// there reports whether a server shakes hands within tryWait.
func (r *reach) there(ctx context.Context, address string) bool {
	connection, err := r.dialOne(ctx, address, []string{"http/1.1"})
	if err != nil {
		return false
	}
	_ = connection.Close() // nothing was said
	return true
}

// dial connects to the first server that answers; protocols are those that are offered to it (ALPN).
func (r *reach) dial(ctx context.Context, protocols ...string) (net.Conn, error) {
	connection, _, err := r.dialAny(ctx, protocols)
	return connection, err
}

// dialAny is dial, and says at which address the server was that answered.
func (r *reach) dialAny(ctx context.Context, protocols []string) (net.Conn, string, error) {
	var errs []error
	for _, address := range r.all() {
		connection, err := r.dialOne(ctx, address, protocols)
		if err == nil {
			r.prefer(address)
			return connection, address, nil
		}
		errs = append(errs, fmt.Errorf("reach the server at %s: %w", address, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, "", errors.Join(errs...)
}

func (r *reach) dialOne(ctx context.Context, address string, protocols []string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	trust, err := r.trust(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tryWait)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	connection := &reachConnection{plain, r, address}
	r.mu.Lock()
	r.open[connection] = true
	r.mu.Unlock()
	if trust == nil {
		return connection, nil
	}
	trust.NextProtos = protocols
	secure := tls.Client(connection, trust)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return secure, nil
}

// natsDialer is the way as the client of NATS wants it: it has shaken hands already.
type natsDialer struct {
	reach *reach

	mu sync.Mutex
	at string // the address of the last connection; guarded by mu
}

// Dial connects to a server, whichever was named.
func (d *natsDialer) Dial(string, string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialWait)
	defer cancel()
	connection, address, err := d.reach.dialAny(ctx, []string{join.Protocol})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.at = address
	d.mu.Unlock()
	return connection, nil
}

// address is that of the last connection.
func (d *natsDialer) address() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// SkipTLSHandshake says that there is nothing left to shake.
func (*natsDialer) SkipTLSHandshake() bool { return true }
