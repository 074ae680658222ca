package temporalproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/api/proxy"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // workers compress their requests
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// pingEvery is how often a worker may ask whether the proxy is still there; the SDK does it every 30 s.
	pingEvery = 5 * time.Second
	// tellEvery bounds how often one proxy logs what it refuses.
	tellEvery = 10 * time.Second
)

// forwarded are the headers of a worker that Temporal sees. The others could claim to be of somebody else.
var forwarded = []string{"client-name", "client-version", "supported-server-versions", "temporal-namespace"}

// Options say whose proxy it is. All fields are required.
type Options struct {
	// Temporal is a connection to the frontend with all rights. It is not closed.
	Temporal grpc.ClientConnInterface
	// Namespace is the only one that the worker may name.
	Namespace string
	// App and Build name the build.
	App, Build string
	// Logger receives a warning of what is refused, every ten seconds at most.
	Logger *slog.Logger
}

// Proxy is one that is open. Its methods may be called concurrently. The zero value is not useful; use Open.
type Proxy struct {
	listener *listener
	server   *grpc.Server
	rights   rights
	given    *given
	temporal workflowservice.WorkflowServiceClient // with all rights
	logger   *slog.Logger
	served   chan struct{}

	mu   sync.Mutex
	told time.Time // guarded by mu
}

// Open opens a proxy. Whoever connects waits until Admit says who may.
func Open(ctx context.Context, o Options) (*Proxy, error) {
	listener, err := listen(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a proxy of Temporal for %s: %w", wire.WorkflowQueue(o.App, o.Build), err)
	}
	p := &Proxy{
		listener: listener,
		rights:   rights{namespace: o.Namespace, app: o.App, build: o.Build, queue: wire.WorkflowQueue(o.App, o.Build)},
		given:    newGiven(),
		temporal: workflowservice.NewWorkflowServiceClient(o.Temporal),
		logger:   o.Logger,
		served:   make(chan struct{}),
	}
	listener.refused = func(pid int) {
		p.tell("another process than the workflow worker came to its proxy of Temporal", "pid", pid)
	}
	p.server = grpc.NewServer(
		grpc.UnaryInterceptor(p.serve),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
	)
	service, err := proxy.NewWorkflowServiceProxyServer(proxy.WorkflowServiceProxyOptions{
		Client: p.temporal, DisableHeaderForwarding: true,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a proxy of Temporal: %w", err), listener.Close())
	}
	workflowservice.RegisterWorkflowServiceServer(p.server, service)
	go func() {
		defer close(p.served)
		if err := p.server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			p.logger.ErrorContext(ctx, "the proxy of Temporal of a workflow worker ended", "build", p.rights.queue, "error", err)
		}
	}()
	return p, nil
}

// Address is where the worker finds Temporal: what it is to be given as wire.TemporalEnvironment.
func (p *Proxy) Address() string { return p.listener.target }

// Admit lets the process pid in, and nobody else; it is called once. Where the system does not tell who connects,
// whoever can read the private directory of the socket comes in.
func (p *Proxy) Admit(pid int) { p.listener.admit(pid) }

// Close closes the proxy; the worker has ended by then.
func (p *Proxy) Close() {
	p.server.Stop()
	<-p.served
}

// serve hands a request on that the worker may make.
func (p *Proxy) serve(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if err := p.learn(ctx, request); err != nil {
		p.tell("whose the run of a workflow worker is was not found out", "method", info.FullMethod, "error", err)
		code := status.Code(err)
		if errors.Is(err, ErrParentGone) {
			code = codes.FailedPrecondition
		}
		return nil, status.Errorf(code, "%s: %v", p.rights.queue, err)
	}
	if err := p.rights.check(request, p.given); err != nil {
		p.tell("a workflow worker was refused", "method", info.FullMethod, "error", err)
		return nil, status.Errorf(codes.PermissionDenied, "%s: %v", p.rights.queue, err)
	}
	response, err := handler(onBehalf(ctx), request)
	if err == nil {
		p.given.note(request, response, time.Now())
	}
	return response, err
}

// onBehalf is ctx with the headers that Temporal is to see.
func onBehalf(ctx context.Context) context.Context {
	from, _ := metadata.FromIncomingContext(ctx)
	to := metadata.MD{}
	for _, name := range forwarded {
		if values := from.Get(name); len(values) > 0 {
			to.Set(name, values...)
		}
	}
	return metadata.NewOutgoingContext(ctx, to)
}

// tell logs what was refused, unless something was just now.
func (p *Proxy) tell(message string, attributes ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.told) >= tellEvery {
		p.told = now
		//nolint:sloglint // the callers' messages are constants
		p.logger.Warn(message, append(attributes, "build", p.rights.queue)...)
	}
}
