package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/relay"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// UsualCache is what the artifacts that are kept on a host may take, and mostBuilds what its builds may.
const (
	UsualCache = 20 * quantity.GiB
	mostBuilds = 4 * quantity.GiB
)

// JoinedOptions configures the way to an engine elsewhere.
type JoinedOptions struct {
	// Answer is what the engine said when this host joined.
	Answer join.Answer
	// StateDir is that of the host.
	StateDir string
	// Cache is what artifacts that are kept on this host may take; 0 means UsualCache.
	Cache quantity.Bytes
	// Contact is told when the engine is not reached any more, with why, and when it is again, with nil; it does not
	// block. Nil tells nobody.
	Contact func(lost error)
	// Servers is told which servers there are whenever that changes, as Answer.Servers has it; nil is not told.
	Servers func(all []string)
	Logger  *slog.Logger
}

// Joined is the way of a host to an engine elsewhere, on which it waits for whatever is away, for ever. Its methods may
// be called concurrently.
type Joined struct {
	// Ports are what the engine gives; Recorder may be wrapped before they are used.
	Ports Ports

	reach *reach
	// connection is that to NATS.
	connection *nats.Conn
	telling    sync.Mutex         // held while told is called
	told       func(all []string) // nil for nobody
	end        context.CancelFunc
	closing    atomic.Bool
	closers    []func(context.Context) error // the last is called first
	relayed    sync.WaitGroup
}

// Connect connects to the engine that a host has joined. It fails where that cannot be reached now.
func Connect(ctx context.Context, o JoinedOptions) (joined *Joined, err error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	j := &Joined{end: end, reach: newReach(o.Answer), told: o.Servers}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.Close(ctx))
		}
	}()
	ask, err := j.asker(life, o)
	if err != nil {
		return nil, err
	}
	store, err := j.openStore(ctx, life, o, ask)
	if err != nil {
		return nil, err
	}
	if err := j.dialTemporal(ctx, life, o, store); err != nil {
		return nil, err
	}
	stream, err := j.dialNATS(life, o)
	if err != nil {
		return nil, err
	}
	plans, err := loop.NewPlans(ctx, stream, o.Logger)
	if err != nil {
		return nil, err
	}
	if j.Ports.Plans = plans; o.Answer.OwnPlan {
		j.Ports.Plans = plans.Of(o.Answer.Host)
	}
	if j.Ports.Leases, err = loop.NewLeases(ctx, stream, o.Logger); err != nil {
		return nil, err
	}
	//nolint:contextcheck // it tells for as long as the host is joined
	//nolint:contextcheck // it sends until Close, whatever ends before
	recorder := loop.NewRecorder(stream, &loop.RecorderOptions{Proof: ask.proofs.Of, Logger: o.Logger})
	j.onClose(recorder.Close)
	output := logs.NewWriter(stream, logs.WriterOptions{Proof: ask.proofs.Of, Logger: o.Logger})
	j.Ports.Recorder = recorder
	//nolint:contextcheck // what an attempt prints last is sent after its end
	//nolint:contextcheck // what an attempt prints is sent until that is closed
	j.Ports.Output = func(source wire.LogSource) activities.Output { return output.Attempt(source) }
	j.Ports.Declared, j.Ports.Results, j.Ports.Superseded = ask.Declared, ask, ask.Superseded
	j.Ports.Secrets = ask.Secrets
	j.Ports.Proofs = ask.proofs
	j.Ports.InHand, j.Ports.Lease, j.Ports.Elsewhere = ask.inHand, cmp.Or(o.Answer.Lease, join.UsualLease), true
	j.relayed.Go(func() { j.followServers(life, ask) })
	j.Ports.Builds = &builds{ask: ask, stored: build.NewStore(o.StateDir, nil), most: mostBuilds}
	j.Ports.Gangs = ask
	return j, nil
}

func (j *Joined) onClose(closer func(context.Context) error) { j.closers = append(j.closers, closer) }

// Close sends what is left to tell, for as long as ctx lasts, and ends all connections.
func (j *Joined) Close(ctx context.Context) (err error) {
	j.closing.Store(true)
	for _, closer := range slices.Backward(j.closers) {
		err = errors.Join(err, closer(ctx))
	}
	j.closers = nil
	j.end()
	j.relayed.Wait()
	return err
}

// Answers reports whether NATS answers within a time, by whichever server.
func (j *Joined) Answers(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return j.connection.FlushWithContext(ctx) == nil
}

const (
	// answerEvery is how often NATS is asked whether it answers, and answerWait how long it may take to say so: what runs
	// on the host ends with its lease (loop.Lease), and the next server has to be reached before.
	answerEvery = time.Second
	answerWait  = 4 * time.Second
	// suspectAfter is when the server that the way to NATS goes by is asked as well whether it is there.
	suspectAfter = 1500 * time.Millisecond
)

// answer is what is known of a server that NATS is reached by.
type answer int

const (
	answers   answer = iota
	natsSlow         // it is there, and NATS does not answer by it
	goneQuiet        // it is not
)

// listen asks NATS by flush, which ends within answerWait, and where that takes long the server at an address as well.
func (r *reach) listen(ctx context.Context, flush func() error, address string) answer {
	flushed := make(chan error, 1)
	go func() { flushed <- flush() }()
	select {
	case err := <-flushed:
		if err == nil {
			return answers
		}
		flushed <- err
	case <-time.After(suspectAfter):
	}
	there := r.there(ctx, address)
	switch err := <-flushed; {
	case err == nil:
		return answers
	case there:
		return natsSlow
	default:
		return goneQuiet
	}
}

// keepAnswered goes on at another server when NATS does not answer any more by the one that its connection is to, until
// ctx ends. Where that server is there nevertheless, the other connections to it stay: they have nothing to do with
// that NATS is slow, and what they carry would be done again.
func (j *Joined) keepAnswered(ctx context.Context, connection *nats.Conn, way *natsDialer, logger *slog.Logger) {
	flush := func() error { return connection.FlushTimeout(answerWait) }
	for wait.For(ctx, answerEvery) {
		if !connection.IsConnected() {
			continue
		}
		address, moved, why := way.address(), false, ""
		switch j.reach.listen(ctx, flush, address) {
		case answers:
		case natsSlow:
			moved, why = j.reach.demote(address), "NATS does not answer by it"
		case goneQuiet:
			moved, why = j.reach.avoid(address), "it does not answer"
		}
		if !moved || ctx.Err() != nil || !connection.IsConnected() {
			continue
		}
		logger.WarnContext(ctx, "go on at another server", "server", address, "why", why)
		if err := connection.ForceReconnect(); err != nil {
			logger.DebugContext(ctx, "reconnect to NATS", "error", err)
		}
	}
}

// serversEvery is how often a host asks which servers there are, at least: one that comes is known to it within that
// time.
const serversEvery = 3 * time.Second

// followServers keeps up which servers there are, until ctx ends: every answer says so, and this asks for one at once
// and then now and then, where nothing else is asked.
func (j *Joined) followServers(ctx context.Context, ask *asker) {
	for again := true; again; again = wait.For(ctx, serversEvery) {
		var now serversAnswer
		if err := ask.get(ctx, serversPath, &now); err != nil {
			ask.logger.DebugContext(ctx, "which servers there are is not known", "error", err)
			continue
		}
		j.know(now.Servers) // a server of the version before says so in no other answer
	}
}

// know takes in which servers there are, and tells of it where that is news.
func (j *Joined) know(servers []string) {
	if !j.reach.know(servers) || j.told == nil {
		return
	}
	j.telling.Lock() // so that what is kept last is what is known last
	defer j.telling.Unlock()
	j.told(j.reach.all())
}

const (
	// dialWait bounds how long a connection may take, and quietWait how long one that says nothing is taken to live.
	dialWait  = 10 * time.Second
	quietWait = 15 * time.Second
	// reconnectWait is the time between two tries to reach NATS: a lease is soon over.
	reconnectWait = 500 * time.Millisecond
	// connections is how many are kept open to the engine's API.
	connections = 16
)

// asker is the way to the engine's API.
func (j *Joined) asker(life context.Context, o JoinedOptions) (*asker, error) {
	at, err := url.Parse(o.Answer.API)
	if err != nil || at.Host == "" {
		return nil, fmt.Errorf("the server said that its API is at %q, which is no URL", o.Answer.API)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return j.reach.dial(ctx, "h2", "http/1.1") }
	transport := &http.Transport{
		DialContext: dial, DialTLSContext: dial,
		ForceAttemptHTTP2: o.Answer.CA != "", MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute,
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{SendPingTimeout: quietWait, PingTimeout: quietWait},
	}
	j.onClose(func(context.Context) error { transport.CloseIdleConnections(); return nil })
	return &asker{
		there: j.know,
		base:  o.Answer.API, host: o.Answer.Host, life: life, proofs: &slot.Proofs{}, logger: o.Logger,
		client: &http.Client{
			Transport:     bearer{o.Answer.Token, transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// trustIn is how the engine is verified at a name or an address; nil where it is on a loopback port, without TLS.
func trustIn(answer join.Answer, server string) (*tls.Config, error) {
	if answer.CA == "" {
		return nil, nil //nolint:nilnil // no TLS is no failure
	}
	return answer.Trust(server)
}

// bearer shows a token with every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(request)
}

// openStore opens the engine's store, with a cache on this host, and relays it to the processes of this machine.
func (j *Joined) openStore(
	ctx, life context.Context, o JoinedOptions, ask *asker,
) (activities.Store, error) {
	files, err := artifact.Open(filepath.Join(o.StateDir, "artifact-cache"))
	if err != nil {
		return nil, err
	}
	if err := files.RestoreAll(ctx); err != nil {
		return nil, err
	}
	behind := relay.Behind(o.Answer.API+artifactsPath, ask.client)
	store := &cache{
		files: files, behind: behind, most: cmp.Or(o.Cache, UsualCache), life: life, logger: o.Logger,
	}
	token := rand.Text()
	server, err := relay.Listen(ctx, relay.Handler(relay.Served{
		Store: store, Board: behind, Parameters: behind.Server(),
	}, o.Logger), token, o.Logger)
	if err != nil {
		return nil, err
	}
	j.onClose(func(context.Context) error { return server.Close() })
	j.relayed.Go(func() {
		if err := server.Serve(); err != nil {
			o.Logger.ErrorContext(life, "artifacts are relayed no more", "error", err)
		}
	})
	j.Ports.Store, j.Ports.ArtifactsURL, j.Ports.ServerURL = store, server.URL(), server.URL()
	return store, nil
}

// dialTemporal connects to Temporal with the rights of a host.
func (j *Joined) dialTemporal(ctx, life context.Context, o JoinedOptions, store activities.Store) error {
	if _, _, err := net.SplitHostPort(o.Answer.Temporal); err != nil {
		return fmt.Errorf("the server said that Temporal is at %q: %w", o.Answer.Temporal, err)
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return j.reach.dial(ctx, "h2") }
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	temporal, err := client.DialContext(ctx, client.Options{
		HostPort: "passthrough:///" + o.Answer.Temporal, Namespace: o.Answer.Namespace,
		Logger:          sdklog.NewStructuredLogger(o.Logger),
		Identity:        "spillway agent of " + o.Answer.Host,
		ExternalStorage: artifact.Offload(store, artifact.OffloadThreshold),
		Credentials:     client.NewAPIKeyStaticCredentials(o.Answer.Token),
		ConnectionOptions: client.ConnectionOptions{
			TLSDisabled: true, // what is dialled speaks TLS
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial), slot.TellOutcomes(life)},
		},
	})
	if err != nil {
		return fmt.Errorf("connect to Temporal at %s: %w", o.Answer.Temporal, err)
	}
	j.onClose(func(context.Context) error { temporal.Close(); return nil })
	j.Ports.Temporal = temporal
	return nil
}

// InboxPrefix begins the subjects on which NATS answers a host: others cannot read them.
func InboxPrefix(host string) string { return "_INBOX_host_" + host }

// dialNATS connects to NATS with the rights of a host.
func (j *Joined) dialNATS(life context.Context, o JoinedOptions) (jetstream.JetStream, error) {
	at := o.Answer.NATS
	if len(at) == 0 {
		return nil, errors.New("the server did not say where NATS is")
	}
	contact := func(lost error) {
		if o.Contact != nil && !j.closing.Load() {
			o.Contact(lost)
		}
	}
	var refused sync.Once
	options := []nats.Option{
		nats.Name("spillway agent of " + o.Answer.Host), nats.UserInfo(o.Answer.NATSUser, o.Answer.Token),
		nats.CustomInboxPrefix(InboxPrefix(o.Answer.Host)), nats.Timeout(dialWait),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(quietWait / 3), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			contact(cmp.Or(err, errors.New("it has closed the connection")))
		}),
		nats.ReconnectHandler(func(*nats.Conn) { contact(nil) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			o.Logger.WarnContext(life, "nats", "error", err)
			if errors.Is(err, nats.ErrAuthorization) { // the server is there; once is enough, it is asked every moment
				refused.Do(func() {
					contact(errors.New("it lets this host in no more: it was removed, another machine has joined " +
						"with a copy of its state directory, or the server has begun anew; " +
						"if so, join again with `spillway agent --join URL --token-file FILE`"))
				})
			}
		}),
	}
	way := &natsDialer{reach: j.reach}
	options = append(options, nats.SetCustomDialer(way), nats.SkipHostLookup())
	if o.Answer.CA != "" {
		options = append(options, nats.Secure(), nats.TLSHandshakeFirst())
	}
	connection, err := nats.Connect(strings.Join(at, ","), options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", at[0], err)
	}
	j.connection = connection
	j.onClose(func(context.Context) error { connection.Close(); return nil })
	j.relayed.Go(func() { j.keepAnswered(life, connection, way, o.Logger) })
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return stream, nil
}
