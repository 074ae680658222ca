package engine_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/api/proxy"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // the SDK compresses its requests
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
)

// limited stands before a Temporal and refuses what is over its rate, as Temporal's frontend does, until it is lifted.
type limited struct {
	address           string
	lifted            atomic.Bool
	admitted, refused atomic.Int64

	mu    sync.Mutex
	since time.Time // guarded by mu
	count int       // guarded by mu: since then
}

const (
	rateWindow = 100 * time.Millisecond
	rateMost   = 5 // in a window, of which an idle engine needs about one
)

// limit refuses what is over the rate.
func (l *limited) limit(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	l.mu.Lock()
	if now := time.Now(); now.Sub(l.since) > rateWindow {
		l.since, l.count = now, 0
	}
	l.count++
	over := l.count > rateMost && !l.lifted.Load()
	l.mu.Unlock()
	if over {
		l.refused.Add(1)
		return nil, grpcstatus.Errorf(codes.ResourceExhausted, "namespace rate limit exceeded by %s", info.FullMethod)
	}
	l.admitted.Add(1)
	from, _ := metadata.FromIncomingContext(ctx)
	to := metadata.MD{}
	for _, name := range []string{
		"authorization", "client-name", "client-version", "supported-server-versions", "temporal-namespace",
	} {
		to.Set(name, from.Get(name)...)
	}
	return handler(metadata.NewOutgoingContext(ctx, to), request)
}

// limitRate serves a limit before a Temporal.
func limitRate(t *testing.T, address string) *limited {
	t.Helper()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	l := &limited{}
	server := grpc.NewServer(grpc.UnaryInterceptor(l.limit))
	service, err := proxy.NewWorkflowServiceProxyServer(proxy.WorkflowServiceProxyOptions{
		Client: workflowservice.NewWorkflowServiceClient(connection), DisableHeaderForwarding: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	workflowservice.RegisterWorkflowServiceServer(server, service)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.address = listener.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends with Stop
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
		_ = connection.Close()
	})
	return l
}

// TestATemporalThatRefusesForItsRateIsAskedAgainWithoutAStorm lets through fewer requests than a burst of tasks makes:
// all of it ends, and what is refused is asked again so seldom that it is a part of what is asked.
func TestATemporalThatRefusesForItsRateIsAskedAgainWithoutAStorm(t *testing.T) {
	t.Parallel()
	other := startTemporal(t)
	l := limitRate(t, other.address)
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst", "--temporal-address", l.address,
		"--temporal-namespace", "ml", "--temporal-api-key-file", other.keyFile())
	var runs []string
	for _, event := range []string{"a", "b", "c"} {
		runs = append(runs, e.publish("fan", event, fanInput{Shards: 8, Milliseconds: 1}))
	}
	for _, run := range runs {
		succeed[fanResult](e, run, patience).check(t, 8)
	}
	admitted, refused := l.admitted.Load(), l.refused.Load()
	t.Logf("%d requests were let through and %d refused", admitted, refused)
	if refused == 0 {
		t.Error("nothing was refused: the rate is not low enough to show anything")
	}
	if refused > 3*admitted {
		t.Errorf("%d requests were refused and %d let through: it is asked again too often", refused, admitted)
	}
	l.lifted.Store(true) // so that it ends at once
	e.stop()
}
