package external

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// openTimeout bounds all that is asked of a server at the start: who typed a wrong address waits no longer.
	openTimeout = 10 * time.Second
	// leastTemporal is the oldest version of Temporal's server that has what the engine uses: priorities of tasks, and
	// how many of them wait in a queue.
	leastTemporal = "1.28.0"
	// UsualRetention is what a namespace should keep closed runs for: as long as the engine itself keeps what they made.
	UsualRetention = 30 * 24 * time.Hour
	// maxAnswer bounds an answer of Temporal, in bytes; it is the bound of Temporal's SDK.
	maxAnswer = 128 << 20
	// keyFor is for how long an API key that was read from its file is shown: one that is replaced there counts after it.
	keyFor = 10 * time.Second
	// maxKey bounds the file of an API key, in bytes.
	maxKey = 64 << 10
)

// TemporalConfig says which Temporal the engine runs on. The zero value starts one in the engine's process.
type TemporalConfig struct {
	// Address is host and port of the gRPC frontend; empty starts one in the engine's process.
	Address string
	// Namespace is where runs are; empty means "default". It must be there.
	Namespace string
	// APIKeyFile is a file that holds an API key; empty shows none. It is read again while the engine runs.
	APIKeyFile string
	// TLS says how the two know each other. With an API key there is TLS in any case, unless the address is of this
	// machine.
	TLS TLSConfig
}

// check refuses what cannot be.
func (c TemporalConfig) check() error {
	_, port, err := net.SplitHostPort(c.Address)
	if number, wrong := strconv.ParseUint(port, 10, 16); err == nil && (wrong != nil || number == 0) {
		err = fmt.Errorf("%q is no port", port)
	}
	if err != nil {
		return fmt.Errorf("--temporal-address %s: %w; write host and port, such as temporal.example.com:7233", c.Address, err)
	}
	return nil
}

// encrypted reports whether connections have TLS.
func (c TemporalConfig) encrypted() bool {
	return !c.TLS.IsZero() || c.APIKeyFile != "" && !isLoopback(c.Address)
}

// isLoopback reports whether an address is of this machine.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Temporal is a Temporal that somebody else runs. Its methods may be called concurrently.
type Temporal struct {
	config     TemporalConfig
	tls        *tls.Config // nil for none
	key        *keyFile    // nil for none
	connection *grpc.ClientConn
	retention  time.Duration
}

// OpenTemporal connects to the Temporal of a configuration, and returns once it is known to be one that an engine can
// run on. What it says of the namespace, it tells logger. The caller closes it.
func OpenTemporal(ctx context.Context, config TemporalConfig, logger *slog.Logger) (*Temporal, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	config.Namespace = cmp.Or(config.Namespace, client.DefaultNamespace)
	t := &Temporal{config: config}
	if err := t.open(ctx, logger); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Temporal) open(ctx context.Context, logger *slog.Logger) (err error) {
	if err := t.config.check(); err != nil {
		return err
	}
	if t.config.APIKeyFile != "" {
		t.key = &keyFile{path: t.config.APIKeyFile}
		if _, err := t.key.read(ctx); err != nil {
			return err
		}
	}
	if t.config.encrypted() {
		if t.tls, err = t.config.TLS.client("temporal", time.Now()); err != nil {
			return err
		}
	} else if !isLoopback(t.config.Address) {
		logger.WarnContext(ctx, "inputs and results of runs go to Temporal unencrypted; the flags --temporal-tls-... encrypt",
			"address", t.config.Address)
	}
	if err := t.knock(ctx); err != nil {
		return fmt.Errorf("connect to Temporal at %s: %w", t.config.Address, err)
	}
	if t.connection, err = t.DialTemporal(); err != nil {
		return err
	}
	frontend := workflowservice.NewWorkflowServiceClient(t.connection)
	info, err := frontend.GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	if err != nil {
		return fmt.Errorf("connect to Temporal at %s: %w", t.config.Address, t.explain(err))
	}
	if olderThan(info.GetServerVersion(), leastTemporal) {
		return fmt.Errorf("the Temporal at %s is of version %s, and %s or newer is needed: upgrade it, or leave "+
			"--temporal-address out for one in the engine", t.config.Address, info.GetServerVersion(), leastTemporal)
	}
	return t.openNamespace(ctx, frontend, info.GetServerVersion(), logger)
}

// openNamespace looks whether the namespace is there, and for how long it keeps closed runs.
func (t *Temporal) openNamespace(
	ctx context.Context, frontend workflowservice.WorkflowServiceClient, version string, logger *slog.Logger,
) error {
	described, err := frontend.DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{
		Namespace: t.config.Namespace,
	})
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("the Temporal at %s has no namespace %q: make it with `temporal operator namespace create "+
			"--address %s --namespace %s --retention %s`, or name another with --temporal-namespace", t.config.Address,
			t.config.Namespace, t.config.Address, t.config.Namespace, hours(UsualRetention))
	}
	if err != nil {
		return fmt.Errorf("look at namespace %q of the Temporal at %s: %w", t.config.Namespace, t.config.Address,
			t.explain(err))
	}
	t.retention = described.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
	logger.InfoContext(ctx, "runs on a Temporal that exists", "address", t.config.Address, "namespace", t.config.Namespace,
		"version", version, "retention", t.retention)
	if t.retention < UsualRetention {
		logger.WarnContext(ctx, "results, histories and the knowledge which events have started their run are kept as long "+
			"as Temporal keeps closed runs, which is shorter than usual", "namespace", t.config.Namespace,
			"retention", t.retention, "usual", UsualRetention)
	}
	return nil
}

// hours writes a duration as the temporal command takes it.
func hours(d time.Duration) string { return strconv.Itoa(int(d.Hours())) + "h" }

// knock connects once without gRPC, which does not tell what exactly was wrong.
func (t *Temporal) knock(ctx context.Context) error {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", t.config.Address)
	if err != nil {
		return fmt.Errorf("%w; look whether it runs there, and at --temporal-address", err)
	}
	defer func() { _ = connection.Close() }()
	if t.tls == nil {
		return nil
	}
	config := t.tls.Clone()
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(t.config.Address)
	}
	if err := tls.Client(connection, config).HandshakeContext(ctx); err != nil {
		if hint := explainTLS("temporal", err); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	}
	return nil
}

// explain says what to do about an error of gRPC at the start.
func (t *Temporal) explain(err error) error {
	text, hint := status.Convert(err).Message(), ""
	switch code := status.Code(err); {
	case code == codes.Unauthenticated || code == codes.PermissionDenied:
		hint = "it does not let this engine in: look at --temporal-api-key-file or the --temporal-tls-certificate, and at " +
			"what they may do in namespace " + t.config.Namespace
	case strings.Contains(text, "tls: certificate required") || strings.Contains(text, "tls: bad certificate"):
		hint = "it wants a certificate of this engine: give one with --temporal-tls-certificate and --temporal-tls-key"
	case t.tls != nil && t.config.TLS.CertificateFile == "" && isCut(text):
		hint = "it may want a certificate of this engine: give one with --temporal-tls-certificate and --temporal-tls-key"
	case code == codes.Unavailable && t.tls == nil:
		hint = "it may want TLS (--temporal-tls-ca, or --temporal-tls-server-name), or be no Temporal"
	case code == codes.Unimplemented:
		hint = "it is no Temporal, or an old one"
	case code == codes.DeadlineExceeded:
		hint = "it accepts connections and does not answer: look whether it is a Temporal frontend, and well"
	}
	if hint == "" {
		return errors.New(text)
	}
	return fmt.Errorf("%s; %s", text, hint)
}

// isCut says whether the other side has ended the connection. Of TLS 1.3 a client has done its part of the handshake
// before the server looks at its certificate, so what the server says of that may come too late.
func isCut(text string) bool {
	return slices.ContainsFunc([]string{"broken pipe", "connection reset", "EOF"}, func(one string) bool {
		return strings.Contains(text, one)
	})
}

// TemporalAddress is host and port of the frontend.
func (t *Temporal) TemporalAddress() string { return t.config.Address }

// Namespace is where runs are.
func (t *Temporal) Namespace() string { return t.config.Namespace }

// Retention is for how long closed runs were kept when this was opened.
func (t *Temporal) Retention() time.Duration { return t.retention }

// TemporalOptions are how Temporal's SDK connects. They lack a logger.
func (t *Temporal) TemporalOptions() client.Options {
	options := client.Options{
		HostPort: t.config.Address, Namespace: t.config.Namespace,
		ConnectionOptions: client.ConnectionOptions{TLS: t.tls, TLSDisabled: t.tls == nil},
	}
	if t.key != nil {
		options.Credentials = client.NewAPIKeyDynamicCredentials(t.key.read)
	}
	return options
}

// DialTemporal connects for requests as they come, with all rights that the engine has; the caller closes the
// connection. The options are added to its own.
func (t *Temporal) DialTemporal(options ...grpc.DialOption) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if t.tls != nil {
		transport = credentials.NewTLS(t.tls)
	}
	connection, err := grpc.NewClient(t.config.Address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithUnaryInterceptor(t.show),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to Temporal at %s: %w", t.config.Address, err)
	}
	return connection, nil
}

// show adds the API key to a request, and the namespace, by which some servers choose where it goes.
func (t *Temporal) show(
	ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	headers, _ := metadata.FromOutgoingContext(ctx) // a copy
	if headers == nil {
		headers = metadata.MD{}
	}
	headers.Set("temporal-namespace", t.config.Namespace)
	if t.key != nil {
		key, err := t.key.read(ctx)
		if err != nil {
			return status.Error(codes.Unauthenticated, err.Error())
		}
		headers.Set("authorization", "Bearer "+key)
	}
	return invoke(metadata.NewOutgoingContext(ctx, headers), method, request, answer, connection, options...)
}

// Check reports whether the frontend answers. It waits no longer than ctx.
func (t *Temporal) Check(ctx context.Context) error {
	_, err := workflowservice.NewWorkflowServiceClient(t.connection).GetSystemInfo(ctx,
		&workflowservice.GetSystemInfoRequest{})
	if err != nil {
		return fmt.Errorf("check temporal at %s: %w", t.config.Address, err)
	}
	return nil
}

// Close ends the connection.
func (t *Temporal) Close() error {
	if t.connection == nil {
		return nil
	}
	return t.connection.Close()
}

// keyFile is a file that holds an API key.
type keyFile struct {
	path string

	mu    sync.Mutex
	key   string    // guarded by mu
	until time.Time // guarded by mu: when it is read again
}

// read returns the key; while the file cannot be read, the one that was read last.
func (k *keyFile) read(context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.After(k.until) {
		text, err := os.ReadFile(k.path)
		key := string(bytes.TrimSpace(text))
		switch {
		case err == nil && len(text) > maxKey:
			err = fmt.Errorf("%s is larger than an API key is", k.path)
		case err == nil && (key == "" || strings.ContainsAny(key, "\r\n \t")):
			err = fmt.Errorf("%s holds no API key: it is to be one word", k.path)
		}
		if err == nil {
			k.key = key
		} else if k.key == "" {
			return "", fmt.Errorf("--temporal-api-key-file: %w", err)
		}
		k.until = now.Add(keyFor)
	}
	return k.key, nil
}

// olderThan compares the first three numbers of two versions, such as 1.30.0-148.4; what is no version is not older.
func olderThan(version, least string) bool {
	is, known := numbers(version)
	wanted, _ := numbers(least)
	for i := range wanted {
		if is[i] != wanted[i] {
			return known && is[i] < wanted[i]
		}
	}
	return false
}

// numbers are the first three of a version.
func numbers(version string) (three [3]int, known bool) {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "-")
	for i, part := range strings.SplitN(version, ".", 4) {
		if i == len(three) {
			break
		}
		number, err := strconv.Atoi(part)
		if err != nil {
			return three, false
		}
		three[i] = number
	}
	return three, true
}
