// Package natsaccess lets the workflow workers of users' builds into an embedded NATS server: each into an account of
// its own, whose requests pass a proxy. NATS checks on which subject a client publishes, but neither where it wants the
// answer, nor what a consumer may be like, nor whose run a message tells of, nor how much one client sends; the proxy
// does.
//
//	worker -> account of its build -> service import -> Proxy -> account of the engine -> JetStream
//
// An account is a world of subjects of its own, so that a build hears nothing but answers to itself:
// https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts
package natsaccess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// maxConnections is how many connections a build may have at a time: its worker has one, and one that it has lost may
	// linger beside the next.
	maxConnections = 4
	// barredFor is how long a build whose worker sent too much is kept out.
	barredFor = 10 * time.Second
)

// Options configures a Proxy. The zero value is the default.
type Options struct {
	// Genuine says whether a message on a subject of results is one that the engine signed. Nil takes every one.
	Genuine func(subject string, header nats.Header, data []byte) bool
	// Logger is told of builds that send more than they may. Nil discards.
	Logger *slog.Logger
}

// Proxy lets builds in and passes on what they may ask. Its methods may be called concurrently.
type Proxy struct {
	server  *natsserver.Server
	options Options

	admitting sync.Mutex // held while a build is let in, which asks the server

	mu     sync.Mutex         // not held while the server is asked
	builds map[string]*build  // by name; guarded by mu
	free   []*account         // those of builds that are gone, the one that was given back first first; guarded by mu
	made   int                // how many accounts there are; guarded by admitting
	limits map[string]*limits // by name of a build; guarded by mu
}

// New returns the proxy of a server that runs; nil options are the defaults. Clients that come over a pipe must be let
// into the server's global account with all rights. The caller closes it.
func New(server *natsserver.Server, options *Options) *Proxy {
	p := &Proxy{server: server, builds: map[string]*build{}, limits: map[string]*limits{}}
	if options != nil {
		p.options = *options
	}
	p.options.Logger = cmp.Or(p.options.Logger, slog.New(slog.DiscardHandler))
	return p
}

// Close ends the proxy: what builds ask from then on has no answer.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.builds {
		b.close()
	}
}

// Admit lets the workers of a build of app register until release is called, as often as it was admitted. Then they are
// disconnected, and nothing of the build stays but, for a while, how much it has sent. It returns a BarredError while
// the build is kept out.
func (p *Proxy) Admit(name string, app wire.App) (release func(), err error) {
	p.admitting.Lock()
	defer p.admitting.Unlock()
	b, err := p.again(name)
	if b == nil && err == nil {
		b, err = p.open(name, app)
	}
	if err != nil {
		return nil, fmt.Errorf("let build %s into NATS: %w", name, err)
	}
	return sync.OnceFunc(func() { p.release(b) }), nil
}

// again admits a build once more; nil where it is not in.
func (p *Proxy) again(name string) (*build, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, known := p.limits[name]; known && time.Now().Before(l.barred) {
		return nil, &BarredError{Until: l.barred}
	}
	b, known := p.builds[name]
	if known {
		b.admitted++
	}
	return b, nil
}

// release takes one admission of a build back.
func (p *Proxy) release(b *build) {
	p.mu.Lock()
	b.admitted--
	gone := b.admitted == 0
	if gone {
		delete(p.builds, b.name) // from now on nobody connects as the build
		b.limits.released = time.Now()
	}
	p.mu.Unlock()
	if !gone {
		return
	}
	p.disconnect(b.account)
	b.account.left = ""
	if b.forget() != nil {
		b.account.left = b.name
	}
	b.close()
	p.giveBack(b.account)
}

// giveBack keeps the account of a build that is gone for another.
func (p *Proxy) giveBack(a *account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, a)
}

// Errors of Register.
var (
	// ErrUnknown says that no such build was admitted.
	ErrUnknown = errors.New("the engine has no worker of this build")
	// ErrBarred says that the build was sent away for a while.
	ErrBarred = errors.New("the build sent more than NATS takes for it")
	// ErrConnections says that the build has as many connections as it may have.
	ErrConnections = errors.New("the build has too many connections")
)

// BarredError is ErrBarred with its end.
type BarredError struct{ Until time.Time }

func (e *BarredError) Error() string {
	return fmt.Sprintf("%v: it is kept out until %s", ErrBarred, e.Until.Format(time.TimeOnly))
}

// Unwrap returns ErrBarred.
func (e *BarredError) Unwrap() error { return ErrBarred }

// Register registers a client that has shown that it is the worker of a build.
func (p *Proxy) Register(client natsserver.ClientAuthentication, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock() // until it is registered and so is counted
	b, known := p.builds[name]
	switch {
	case !known:
		return ErrUnknown
	case time.Now().Before(b.limits.barred):
		return ErrBarred
	case b.account.nats.NumLocalConnections() >= maxConnections:
		return ErrConnections
	}
	client.RegisterUser(&natsserver.User{Username: name, Account: b.account.nats, Permissions: &natsserver.Permissions{
		Publish: &natsserver.SubjectPermission{Allow: wire.BuildSubjects(b.app)},
	}})
	return nil
}

// bar disconnects the workers of a build and keeps them out for a while: each message that NATS takes for the proxy
// costs memory and time of all, also one that is refused.
func (p *Proxy) bar(b *build) {
	p.mu.Lock()
	now := time.Now()
	barred := now.Before(b.limits.barred)
	if !barred {
		b.limits.barred = now.Add(barredFor)
	}
	p.mu.Unlock()
	if !barred {
		p.options.Logger.Warn("a build sends more than NATS takes for it; its worker is kept out for a while",
			"build", b.name, "time", barredFor)
		p.disconnect(b.account)
	}
}

// limitsOf returns the limits of a build that gets a worker now.
func (p *Proxy) limitsOf(build string) *limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, l := range p.limits {
		if !l.released.IsZero() && time.Since(l.released) > limitsLast {
			delete(p.limits, name)
		}
	}
	l, known := p.limits[build]
	if !known {
		l = newLimits()
		p.limits[build] = l
	}
	l.released = time.Time{}
	return l
}

// disconnect ends the connections of an account.
func (p *Proxy) disconnect(a *account) {
	connected, err := p.server.Connz(&natsserver.ConnzOptions{Username: true, Account: a.nats.GetName()})
	if err != nil {
		p.options.Logger.Error("list the connections of a build", "error", err)
		return
	}
	for _, client := range connected.Conns {
		_ = p.server.DisconnectClientByID(client.Cid) // unless it is gone already
	}
}

// account is one of the server's accounts, with what is imported into it. The server forgets none, so the account of a
// build that is gone is the next one's.
type account struct {
	number int
	nats   *natsserver.Account
	left   string // the build of which it may still hold consumers: only that one may have it as it is; empty for none
}

// take returns the first account without a build that fits; nil where there is none.
func (p *Proxy) take(fits func(*account) bool) *account {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.free, fits)
	if i < 0 {
		return nil
	}
	a := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	return a
}

// newAccount makes an account. The caller holds admitting.
func (p *Proxy) newAccount() (*account, error) {
	a := &account{number: p.made}
	p.made++
	a.nats, _ = p.server.LookupOrRegisterAccount(fmt.Sprintf("build-%d", a.number))
	engine := p.server.GlobalAccount()
	connect := func(from, to string, answers natsserver.ServiceRespType) error {
		err := engine.AddServiceExportWithResponse(to, answers, []*natsserver.Account{a.nats})
		if err == nil {
			err = a.nats.AddServiceImport(engine, from, to)
		}
		if err != nil {
			return fmt.Errorf("subject %s: %w", from, err)
		}
		return nil
	}
	for _, subject := range wire.AnyBuildSubjects() {
		if strings.HasPrefix(subject, nextMessage) {
			continue
		}
		if err := connect(subject, a.requests()+subject, natsserver.Singleton); err != nil {
			return nil, err
		}
		if err := engine.SetServiceExportResponseThreshold(a.requests()+subject, answerWait); err != nil {
			return nil, err
		}
	}
	if err := connect(accountInfo, unserved+accountInfo, natsserver.Singleton); err != nil {
		return nil, err
	}
	for _, consumer := range a.consumers() {
		subject := nextMessage + consumer.stream + "." + consumer.name
		if err := connect(subject, subject, natsserver.Streamed); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// open connects the proxy for a build, and admits it. The caller holds admitting.
func (p *Proxy) open(name string, app wire.App) (*build, error) {
	a := p.take(func(a *account) bool { return a.left == name })
	if a == nil {
		a = p.take(func(a *account) bool { return a.left == "" })
	}
	if a == nil { // what another could not remove may go now
		if a = p.take(func(*account) bool { return true }); a != nil {
			if b, err := p.use(a, name, app, true); err == nil {
				return b, nil
			}
		}
		var err error
		if a, err = p.newAccount(); err != nil {
			return nil, err
		}
	}
	return p.use(a, name, app, false)
}

// use connects the proxy for a build in an account, which goes back if it cannot. Forget says that what another has
// left there goes first.
func (p *Proxy) use(a *account, name string, app wire.App, forget bool) (*build, error) {
	b := newBuild(name, app, a, p)
	if err := b.connect(); err != nil {
		p.giveBack(a)
		return nil, err
	}
	if forget {
		if err := b.forget(); err != nil {
			b.close()
			p.giveBack(a)
			return nil, err
		}
		clear(b.consumers)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.admitted = 1
	p.builds[name] = b
	return b, nil
}

// forgetWait bounds the removal of what a build has left in the server. What is not removed is tried again before
// another build gets its account.
const forgetWait = 2 * time.Second

// forget removes the consumers of a build.
func (b *build) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), forgetWait)
	defer cancel()
	for _, consumer := range b.account.consumers() { // also where there is none
		if _, err := b.connection.RequestWithContext(ctx, deleteConsumer+consumer.stream+"."+consumer.name, nil); err != nil {
			return err
		}
	}
	return nil
}
