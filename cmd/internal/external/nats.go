package external

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
)

const (
	// leastNATS is the oldest NATS server that has what the engine uses: consumers that are made with a filter in their
	// subject, and compressed streams.
	leastNATS = "2.10.0"
	// leastPayload is the largest message, in bytes, that a server must take at least, and usualPayload what it should: a
	// checkpoint of what is known of many runs is one message.
	leastPayload = 1 << 20
	usualPayload = 8 << 20
	// connectTimeout bounds one try to connect to one server.
	connectTimeout = 3 * time.Second
	// reconnectWait and reconnectJitter are between two tries to connect again to the same server.
	reconnectWait   = 500 * time.Millisecond
	reconnectJitter = 250 * time.Millisecond
	// reconnectBuffer is how much of what is published without an acknowledgement waits for a server, in bytes; what is
	// more is refused to whoever publishes it.
	reconnectBuffer = 8 << 20
	// lookPause is between two tries to reach JetStream at the start: servers of a cluster that have just started elect
	// who leads it.
	lookPause = 200 * time.Millisecond
	// askTimeout bounds one request of JetStream.
	askTimeout = 2 * time.Second
	// maxCredentials bounds the file of credentials, in bytes.
	maxCredentials = 1 << 20
)

// NATSConfig says which NATS the engine runs on. The zero value starts one in the engine's process.
type NATSConfig struct {
	// URLs are those of servers of one cluster, such as nats://nats-0.example.com:4222, without credentials; empty starts
	// one in the engine's process.
	URLs []string
	// LeafURLs are where those servers take leaf nodes, such as nats://nats-0.example.com:7422. Workflow workers of builds
	// reach NATS through the engine's process, which is a leaf node then, with what they may do and no more. Empty serves
	// commands and chains alone, which need no worker of their own.
	LeafURLs []string
	// CredentialsFile is a file of a JWT and its seed (.creds), of an nkey seed, or of one line "name:password"; empty
	// shows none. It is read again at each connection.
	CredentialsFile string
	// Replicas is how many servers keep each stream and bucket that the engine makes; 0 means 1.
	Replicas int
	// TLS says how the two know each other; with a URL that begins with tls:// there is TLS in any case.
	TLS TLSConfig
}

// check refuses what cannot be.
func (c NATSConfig) check() error {
	if _, err := parseURLs("--nats-url", c.URLs, 4222); err != nil {
		return err
	}
	_, err := parseURLs("--nats-leaf-url", c.LeafURLs, 7422)
	return err
}

// parseURLs reads the values of a flag. No message shows what may be a password.
func parseURLs(flag string, values []string, port int) (urls []*url.URL, err error) {
	for i, value := range values {
		if !strings.Contains(value, "://") {
			value = "nats://" + value
		}
		parsed, err := url.Parse(value)
		example := fmt.Sprintf("such as nats://nats.example.com:%d", port)
		switch {
		case err != nil || parsed.Hostname() == "":
			return nil, fmt.Errorf("%s, the %d. of %d: it is no URL %s", flag, i+1, len(values), example)
		case parsed.User != nil:
			return nil, fmt.Errorf("%s, the %d. of %d, holds a name or a password, which everybody on this machine can "+
				"read: write name:password into a file that only you can read, and give that with --nats-credentials", flag, i+1,
				len(values))
		case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, parsed.Scheme):
			return nil, fmt.Errorf("%s %s: the scheme %q is none of nats, tls, ws and wss: write a URL %s", flag, value,
				parsed.Scheme, example)
		}
		if parsed.Port() == "" {
			parsed.Host = fmt.Sprintf("%s:%d", parsed.Host, port)
		}
		urls = append(urls, parsed)
	}
	return urls, nil
}

// NATS is a NATS that somebody else runs. Its methods may be called concurrently.
type NATS struct {
	config     NATSConfig
	urls       string // of all servers, with commas
	leafs      []*url.URL
	tls        *tls.Config // nil where URLs say whether there is TLS
	shows      shown
	connection *nats.Conn
	logger     *slog.Logger
}

// OpenNATS connects to the NATS of a configuration, and returns once it is known to be one that an engine can run on.
// Logger is told when the connection is lost and found. The caller closes it.
func OpenNATS(ctx context.Context, config NATSConfig, logger *slog.Logger) (*NATS, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	n := &NATS{config: config, logger: logger}
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *NATS) open(ctx context.Context) (err error) {
	if err := n.config.check(); err != nil {
		return err
	}
	urls, _ := parseURLs("--nats-url", n.config.URLs, 4222)
	n.leafs, _ = parseURLs("--nats-leaf-url", n.config.LeafURLs, 7422)
	var all []string
	for _, one := range urls {
		all = append(all, one.String())
	}
	n.urls = strings.Join(all, ",")
	if n.config.CredentialsFile != "" {
		if n.shows, err = readCredentials(n.config.CredentialsFile); err != nil {
			return fmt.Errorf("--nats-credentials: %w", err)
		}
	}
	if !n.config.TLS.IsZero() {
		if n.tls, err = n.config.TLS.client("nats", time.Now()); err != nil {
			return err
		}
	}
	if n.connection, err = n.ConnectNATS("spillway check"); err != nil {
		return err
	}
	if is := n.connection.ConnectedServerVersion(); olderThan(is, leastNATS) {
		return fmt.Errorf("the NATS at %s is of version %s, and %s or newer is needed: upgrade it, or leave --nats-url out "+
			"for one in the engine", n.urls, is, leastNATS)
	}
	if most := n.connection.MaxPayload(); most < leastPayload {
		return fmt.Errorf("the NATS at %s takes messages of at most %d bytes, and %d are needed: set max_payload to 8MB "+
			"there", n.urls, most, leastPayload)
	} else if most < usualPayload {
		n.logger.InfoContext(ctx, "NATS takes smaller messages than it should: with tens of thousands of runs at a time the "+
			"autoscaler's checkpoint does not fit, and a start reads more of what was told; max_payload there says how large",
			"bytes", most, "usual", usualPayload)
	}
	return n.openJetStream(ctx)
}

// openJetStream looks whether there is JetStream. What a cluster says that is electing its leader is not the last word.
func (n *NATS) openJetStream(ctx context.Context) error {
	js, err := jetstream.New(n.connection)
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	for {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		account, err := js.AccountInfo(asking)
		cancel()
		switch {
		case err == nil:
			n.logger.InfoContext(ctx, "runs on a NATS that exists", "urls", n.urls,
				"server", n.connection.ConnectedServerName(), "version", n.connection.ConnectedServerVersion(),
				"replicas", max(n.config.Replicas, 1), "bytes", account.Store, "most", account.Limits.MaxStore)
			return nil
		case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
			return fmt.Errorf("the NATS at %s has no JetStream, in which the engine keeps what it is told: add a block "+
				"jetstream { store_dir: ... } to its configuration, or leave --nats-url out for one in the engine", n.urls)
		case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
			return fmt.Errorf("the NATS at %s has JetStream, but not for this engine's account: enable it for the account "+
				"there, or show credentials of another with --nats-credentials", n.urls)
		case n.connection.LastError() != nil && errors.Is(n.connection.LastError(), nats.ErrPermissionViolation):
			return fmt.Errorf("the NATS at %s does not let this engine ask JetStream: %w; its user must be allowed to publish "+
				"$JS.API.> and to subscribe to _INBOX_engine.>", n.urls, n.connection.LastError())
		case !wait.For(ctx, lookPause):
			return fmt.Errorf("JetStream of the NATS at %s does not answer: %w; look whether most of the cluster's servers "+
				"run, and whether they have elected a leader (`nats server report jetstream`)", n.urls, err)
		}
	}
}

// NATSURL is that of the servers, with commas between them where there are several. It holds no credentials.
func (n *NATS) NATSURL() string { return n.urls }

// ConnectNATS connects as the engine, under a name that the servers show. It finds other servers of the cluster by
// itself, and goes on for ever once it was connected.
func (n *NATS) ConnectNATS(name string) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name(name), nats.CustomInboxPrefix("_INBOX_engine"), nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.ReconnectBufSize(reconnectBuffer),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				n.logger.Warn("the connection to NATS is lost; it is tried again", "connection", name, "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			n.logger.Info("connected to NATS again", "connection", name, "server", c.ConnectedServerName())
		}),
	}
	if n.tls != nil {
		options = append(options, nats.Secure(n.tls))
	}
	if show := n.shows.option(); show != nil {
		options = append(options, show)
	}
	connection, err := nats.Connect(n.urls, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", n.urls, n.explain(err))
	}
	return connection, nil
}

// explain says what to do about an error of a first connection.
func (n *NATS) explain(err error) error {
	hint := explainTLS("nats", err)
	var network *net.OpError // a TLS alert of the server is one, too, and is not that nobody answers
	unreached := errors.As(err, &network) && network.Op == "dial"
	switch {
	case unreached, errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout):
		hint = "look whether it runs there, and at --nats-url"
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		hint = "it does not let this engine in: give what it knows it by with --nats-credentials"
		if n.config.CredentialsFile != "" {
			hint = "it does not take the credentials in " + n.config.CredentialsFile + " (--nats-credentials)"
		}
	case errors.Is(err, nats.ErrSecureConnWanted):
		hint = "the server speaks no TLS there: leave the --nats-tls flags out, and write nats:// for tls://"
	case hint == "" && strings.Contains(err.Error(), "tls: "):
		hint = "the server wants a certificate of this engine: give one with --nats-tls-certificate and --nats-tls-key"
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, hint)
}

// Streams returns js so that streams are made with the replicas and the bounds for somebody else's servers.
func (n *NATS) Streams(js jetstream.JetStream) jetstream.JetStream {
	return streams.Shared(js, n.config.Replicas)
}

// Leaf is how a server of ours is a leaf node of those of somebody else:
// https://docs.nats.io/running-a-nats-service/configuration/leafnodes
type Leaf struct {
	// URLs are where they take leaf nodes, with name and password where that is how this engine is let in; the first that
	// answers is used. At least one.
	URLs []*url.URL
	// CredentialsFile is a file of a JWT and its seed, and Seed an nkey seed; empty where that is not how.
	CredentialsFile, Seed string
	// TLS is nil where the URLs say whether there is TLS.
	TLS *tls.Config
}

// Leaf returns how a server is a leaf node of these; nil where the configuration does not say where they take one.
func (n *NATS) Leaf() *Leaf {
	if len(n.leafs) == 0 {
		return nil
	}
	leaf := &Leaf{TLS: n.tls}
	for _, one := range n.leafs {
		with := *one
		if n.shows.user != "" {
			with.User = url.UserPassword(n.shows.user, n.shows.password)
		}
		leaf.URLs = append(leaf.URLs, &with)
	}
	leaf.Seed = n.shows.seed
	if n.shows.jwt {
		leaf.CredentialsFile = n.shows.path
	}
	return leaf
}

// Check reports whether the servers answer.
func (n *NATS) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := n.connection.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("check nats at %s: %w", n.urls, err)
	}
	return nil
}

// Close ends the connection.
func (n *NATS) Close() error {
	if n.connection != nil {
		n.connection.Close()
	}
	return nil
}

// shown is what a file shows of the engine. The zero value shows nothing.
type shown struct {
	path           string
	jwt            bool // the file holds a JWT and its seed
	seed           string
	user, password string
}

// seedPattern is an nkey seed of a user: https://pkg.go.dev/github.com/nats-io/nkeys
var seedPattern = regexp.MustCompile(`\bSU[A-Z2-7]{56}\b`)

// readCredentials tells what is in a file of credentials.
func readCredentials(path string) (shown, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return shown{}, err
	}
	c := shown{path: path}
	name, password, pair := strings.Cut(string(bytes.TrimSpace(text)), ":")
	switch {
	case len(text) > maxCredentials:
		return c, fmt.Errorf("%s is larger than credentials are", path)
	case bytes.Contains(text, []byte("BEGIN NATS USER JWT")):
		c.jwt = true
	case seedPattern.Match(text):
		c.seed = string(seedPattern.Find(text))
	case pair && name != "" && !strings.ContainsAny(name+password, "\r\n"):
		c.user, c.password = name, password
	default:
		return c, fmt.Errorf("%s holds none: it is to be a file of a JWT and its seed (as `nsc generate creds` writes), an "+
			"nkey seed, or one line name:password", path)
	}
	return c, nil
}

// option shows the credentials at each connection; nil shows none.
func (c shown) option() nats.Option {
	switch {
	case c.jwt:
		return nats.UserCredentials(c.path)
	case c.seed != "":
		return func(o *nats.Options) error {
			option, err := nats.NkeyOptionFromSeed(c.path)
			if err != nil {
				return fmt.Errorf("read the nkey seed in %s: %w", c.path, err)
			}
			return option(o)
		}
	case c.user != "":
		return nats.UserInfoHandler(func() (string, string) {
			if now, err := readCredentials(c.path); err == nil && now.user != "" {
				return now.user, now.password
			}
			return c.user, c.password
		})
	default:
		return nil
	}
}
