// Package natsaccess lets tenants into an embedded NATS server: the workflow workers of users' builds, and hosts that
// have joined. Each comes into an account of its own, whose requests pass a proxy. NATS checks on which subject a
// client publishes, but neither where it wants the answer, nor what a consumer may be like, nor whose run or host a
// message tells of, nor how much one client sends; the proxy does.
//
//	client -> account of its tenant -> service import -> Proxy -> account of the engine -> JetStream
//
// An account is a world of subjects of its own, so that a tenant hears nothing but answers to itself:
// https://docs.nats.io/running-a-nats-service/configuration/securing_nats/accounts
package natsaccess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
)

// barredFor is how long a tenant that sent too much is kept out.
const barredFor = 10 * time.Second

// Options configures a Proxy. The zero value is the default.
type Options struct {
	// Genuine says whether a message on a subject of results is one that the engine signed. Nil takes every one.
	Genuine func(subject string, header nats.Header, data []byte) bool
	// Given says of which attempt a proof is that a host shows (wire.ProofHeader); genuine is false where the engine has
	// not made it for that host. Nil takes what hosts tell of attempts for their own.
	Given func(host, proof string) (given wire.Given, genuine bool)
	// Instance tells the consumers and answers of this proxy's tenants from those of other proxies before the same
	// streams, where its server is a leaf node: a token of letters and digits. Empty where the streams are the server's
	// own.
	Instance string
	// Logger is told of tenants that send more than they may. Nil discards.
	Logger *slog.Logger
}

// Proxy lets tenants in and passes on what they may ask. Its methods may be called concurrently.
type Proxy struct {
	server  *natsserver.Server
	options Options

	admitting sync.Mutex // held while a tenant is let in, which asks the server

	mu      sync.Mutex         // not held while the server is asked
	tenants map[string]*tenant // by name; guarded by mu
	free    []*account         // those of tenants that are gone, the one that was given back first first; guarded by mu
	made    int                // how many accounts there are; guarded by admitting
	limits  map[string]*limits // by name of a tenant; guarded by mu
}

// New returns the proxy of a server that runs; nil options are the defaults. Clients that come over a pipe must be let
// into the server's global account with all rights. The caller closes it.
func New(server *natsserver.Server, options *Options) *Proxy {
	p := &Proxy{server: server, tenants: map[string]*tenant{}, limits: map[string]*limits{}}
	if options != nil {
		p.options = *options
	}
	p.options.Logger = cmp.Or(p.options.Logger, slog.New(slog.DiscardHandler))
	return p
}

// Close ends the proxy: what tenants ask from then on has no answer.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tenants {
		t.close()
	}
}

// Admit lets the workers of a build of app register until release is called, as often as it was admitted. Then they are
// disconnected, and nothing of the build stays but, for a while, how much it has sent. It returns a BarredError while
// the build is kept out.
func (p *Proxy) Admit(name string, app wire.App) (release func(), err error) {
	return p.admit(builds, name, wire.BuildSubjects(app), buildRules(app, p.options.Genuine))
}

// AdmitHost is Admit for a host that has joined, which connects as wire.HostUserPrefix and its name. It may do what
// wire.HostSubjects and wire.CheckHostTold say. Proves says that it shows of which attempts it tells, and that it was
// given them: one of a version before does not.
func (p *Proxy) AdmitHost(host string, proves bool) (release func(), err error) {
	given := p.options.Given
	if !proves {
		given = nil
	}
	return p.admit(hosts, wire.HostUserPrefix+host, wire.HostSubjects(host), hostRules(host, given))
}

func (p *Proxy) admit(k *kind, name string, subjects []string, r rules) (release func(), err error) {
	p.admitting.Lock()
	defer p.admitting.Unlock()
	t, err := p.again(name)
	if t == nil && err == nil {
		t, err = p.open(k, name, subjects, r)
	}
	if err != nil {
		return nil, fmt.Errorf("let %s %s into NATS: %w", k.name, name, err)
	}
	return sync.OnceFunc(func() { p.release(t) }), nil
}

// again admits a tenant once more; nil where it is not in.
func (p *Proxy) again(name string) (*tenant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, known := p.limits[name]; known && time.Now().Before(l.barred) {
		return nil, &BarredError{Until: l.barred}
	}
	t, known := p.tenants[name]
	if known {
		t.admitted++
	}
	return t, nil
}

// release takes one admission of a tenant back.
func (p *Proxy) release(t *tenant) {
	p.mu.Lock()
	t.admitted--
	gone := t.admitted == 0
	if gone {
		delete(p.tenants, t.name) // from now on nobody connects as it
		t.limits.released = time.Now()
	}
	p.mu.Unlock()
	if !gone {
		return
	}
	p.disconnect(t.account)
	t.account.left = ""
	if t.forget() != nil {
		t.account.left = t.name
	}
	t.close()
	p.giveBack(t.account)
}

// giveBack keeps the account of a tenant that is gone for another.
func (p *Proxy) giveBack(a *account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, a)
}

// Errors of Register.
var (
	// ErrUnknown says that no such tenant was admitted.
	ErrUnknown = errors.New("the engine has no worker of this build, and no such host has joined")
	// ErrBarred says that the tenant was sent away for a while.
	ErrBarred = errors.New("it sent more than NATS takes for it")
	// ErrConnections says that the tenant has as many connections as it may have.
	ErrConnections = errors.New("it has too many connections")
)

// BarredError is ErrBarred with its end.
type BarredError struct{ Until time.Time }

func (e *BarredError) Error() string {
	return fmt.Sprintf("%v: it is kept out until %s", ErrBarred, e.Until.Format(time.TimeOnly))
}

// Unwrap returns ErrBarred.
func (e *BarredError) Unwrap() error { return ErrBarred }

// Register registers a client that has shown that it is the worker of a build, or a host.
func (p *Proxy) Register(client natsserver.ClientAuthentication, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock() // until it is registered and so is counted
	t, known := p.tenants[name]
	switch {
	case !known:
		return ErrUnknown
	case time.Now().Before(t.limits.barred):
		return ErrBarred
	case t.account.nats.NumLocalConnections() >= t.kind.maxConnections:
		return ErrConnections
	}
	client.RegisterUser(&natsserver.User{Username: name, Account: t.account.nats, Permissions: &natsserver.Permissions{
		Publish: &natsserver.SubjectPermission{Allow: t.subjects},
	}})
	return nil
}

// bar disconnects a tenant and keeps it out for a while: each message that NATS takes for the proxy
// costs memory and time of all, also one that is refused.
func (p *Proxy) bar(t *tenant) {
	p.mu.Lock()
	now := time.Now()
	barred := now.Before(t.limits.barred)
	if !barred {
		t.limits.barred = now.Add(barredFor)
	}
	p.mu.Unlock()
	if !barred {
		p.options.Logger.Warn("NATS is sent more than it takes; who sends it is kept out for a while",
			t.kind.name, t.name, "time", barredFor)
		p.disconnect(t.account)
	}
}

// limitsOf returns the limits of a tenant that comes in now.
func (p *Proxy) limitsOf(tenant string, k *kind) *limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, l := range p.limits {
		if !l.released.IsZero() && time.Since(l.released) > limitsLast {
			delete(p.limits, name)
		}
	}
	l, known := p.limits[tenant]
	if !known {
		l = newLimits(k)
		p.limits[tenant] = l
	}
	l.released = time.Time{}
	return l
}

// disconnect ends the connections of an account.
func (p *Proxy) disconnect(a *account) {
	connected, err := p.server.Connz(&natsserver.ConnzOptions{Username: true, Account: a.nats.GetName()})
	if err != nil {
		p.options.Logger.Error("list the connections of a tenant", "error", err)
		return
	}
	for _, client := range connected.Conns {
		_ = p.server.DisconnectClientByID(client.Cid) // unless it is gone already
	}
}

// account is one of the server's accounts, with what is imported into it. The server forgets none, so the account of a
// tenant that is gone is the next one's.
type account struct {
	number int
	kind   *kind  // of the tenants that it may be of
	name   string // of the account among those of all proxies: its number, behind the instance where there is one
	nats   *natsserver.Account
	left   string // the tenant of which it may still hold consumers: only that one may have it as it is; empty for none
}

// take returns the first account without a tenant that fits; nil where there is none.
func (p *Proxy) take(k *kind, fits func(*account) bool) *account {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.free, func(a *account) bool { return a.kind == k && fits(a) })
	if i < 0 {
		return nil
	}
	a := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	return a
}

// newAccount makes an account. The caller holds admitting.
func (p *Proxy) newAccount(k *kind) (*account, error) {
	a := &account{number: p.made, kind: k, name: strconv.Itoa(p.made)}
	if p.options.Instance != "" {
		a.name = p.options.Instance + "-" + a.name
	}
	p.made++
	a.nats, _ = p.server.LookupOrRegisterAccount(fmt.Sprintf("%s-%d", k.name, a.number))
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
	for _, subject := range k.subjects {
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
	if k.serial {
		for _, stream := range k.streams {
			if err := connect(nextMessage+stream+".*", nextMessage+stream+".*", natsserver.Streamed); err != nil {
				return nil, err
			}
		}
	}
	for _, consumer := range a.consumers() {
		subject := nextMessage + consumer.stream + "." + consumer.name
		if err := connect(subject, subject, natsserver.Streamed); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// open connects the proxy for a tenant, and admits it. The caller holds admitting.
func (p *Proxy) open(k *kind, name string, subjects []string, r rules) (*tenant, error) {
	a := p.take(k, func(a *account) bool { return a.left == name })
	if a == nil {
		a = p.take(k, func(a *account) bool { return a.left == "" })
	}
	if a == nil { // what another could not remove may go now
		if a = p.take(k, func(*account) bool { return true }); a != nil {
			if t, err := p.use(newTenant(name, subjects, r, a, p), true); err == nil {
				return t, nil
			}
		}
		var err error
		if a, err = p.newAccount(k); err != nil {
			return nil, err
		}
	}
	return p.use(newTenant(name, subjects, r, a, p), false)
}

// use connects the proxy for a tenant in its account, which goes back if it cannot. Forget says that what another has
// left there goes first.
func (p *Proxy) use(t *tenant, forget bool) (*tenant, error) {
	if err := t.connect(); err != nil {
		p.giveBack(t.account)
		return nil, err
	}
	if forget {
		if err := t.forget(); err != nil {
			t.close()
			p.giveBack(t.account)
			return nil, err
		}
		clear(t.consumers)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.admitted = 1
	p.tenants[t.name] = t
	return t, nil
}

// forgetWait bounds the removal of what a build has left in the server. What is not removed is tried again before
// another tenant gets its account.
const forgetWait = 2 * time.Second

// forget removes the consumers of a tenant.
func (t *tenant) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), forgetWait)
	defer cancel()
	for _, consumer := range t.account.consumers() { // also where there is none
		if _, err := t.connection.RequestWithContext(ctx, deleteConsumer+consumer.stream+"."+consumer.name, nil); err != nil {
			return err
		}
	}
	return nil
}
