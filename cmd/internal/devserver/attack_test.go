package devserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/api/adminservice/v1"
	"go.temporal.io/server/api/historyservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/proctest"
)

// serving starts a server in another process and returns the address of its Temporal and the process.
func serving(t *testing.T, dir string) (address string, pid int) {
	t.Helper()
	cmd, out := child(t, dir)
	t.Cleanup(func() { kill(t, cmd) })
	var nats string
	if _, err := fmt.Fscan(out, &address, &nats); err != nil {
		t.Fatalf("read the child's addresses: %v", err)
	}
	return address, cmd.Process.Pid
}

// listening are the TCP addresses that the process listens on.
func listening(t *testing.T, pid int) []netip.AddrPort {
	t.Helper()
	proctest.Need(t, pid)
	addresses := proctest.TCP(t, pid)
	if len(addresses) == 0 {
		t.Fatal("the process listens nowhere")
	}
	for _, address := range addresses {
		if !address.Addr().IsLoopback() {
			t.Errorf("the process listens on %s, beyond this machine", address)
		}
	}
	return addresses
}

// TestAttackAWebPageStartsNothing sends to every port what a page of any origin may make a browser send: text, without
// asking first.
func TestAttackAWebPageStartsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address, pid := serving(t, dir)
	const start = `{"activityType":{"name":"run"},"taskQueue":{"name":"app@1/stage.pool"},"startToCloseTimeout":"60s",` +
		`"requestId":"a",` +
		`"input":[{"command":{"shell":"id"}}]}`
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, address := range listening(t, pid) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		url := fmt.Sprintf("http://%s/api/v1/namespaces/default/activities/attack", address)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(start))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "text/plain")
		request.Header.Set("Origin", "http://attacker.example")
		answer, err := browser.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			t.Errorf("%s speaks HTTP and answers a foreign page: %s", address, answer.Status)
		} else if ctx.Err() != nil {
			t.Errorf("%s neither refuses HTTP nor answers: %v", address, err)
		}
	}
	c := dialTemporal(t, address, dir)
	defer c.Close()
	activities, err := c.WorkflowService().ListActivityExecutions(t.Context(),
		&workflowservice.ListActivityExecutionsRequest{Namespace: Namespace})
	if err != nil || len(activities.GetExecutions()) != 0 {
		t.Errorf("activities after the attack: got %v, error %v; want none", activities.GetExecutions(), err)
	}
}

// TestAttackAStrangerGetsNothingFromTemporal asks every port of a server, with and without TLS, without a credential
// and with wrong ones.
func TestAttackAStrangerGetsNothingFromTemporal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address, pid := serving(t, dir)
	for _, listener := range listening(t, pid) {
		for how, transport := range map[string]credentials.TransportCredentials{
			"plainly": insecure.NewCredentials(), "with TLS": credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
		} {
			for _, shown := range []string{"", "Bearer ", "Bearer wrong", "Basic b3duZXI6"} {
				t.Run(fmt.Sprintf("%s %s %q", listener, how, shown), func(t *testing.T) {
					t.Parallel()
					connection, err := grpc.NewClient(listener.String(), grpc.WithTransportCredentials(transport))
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = connection.Close() }()
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
					defer cancel()
					if shown != "" {
						ctx = metadata.AppendToOutgoingContext(ctx, authorizationHeader, shown)
					}
					attack(ctx, t, connection)
				})
			}
		}
	}
	c := dialTemporal(t, address, dir)
	defer c.Close()
}

// attack tries what gives something to whoever is let in.
func attack(ctx context.Context, t *testing.T, connection *grpc.ClientConn) {
	t.Helper()
	frontend, admin := workflowservice.NewWorkflowServiceClient(connection), adminservice.NewAdminServiceClient(connection)
	for name, try := range map[string]func() error{
		"system info": func() error {
			_, err := frontend.GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
			return err
		},
		"list runs": func() error {
			_, err := frontend.ListWorkflowExecutions(ctx, &workflowservice.ListWorkflowExecutionsRequest{Namespace: Namespace})
			return err
		},
		"cluster": func() error {
			_, err := admin.DescribeCluster(ctx, &adminservice.DescribeClusterRequest{})
			return err
		},
		"mutable state of history": func() error {
			_, err := historyservice.NewHistoryServiceClient(connection).
				GetMutableState(ctx, &historyservice.GetMutableStateRequest{})
			return err
		},
		"health": func() error {
			_, err := healthpb.NewHealthClient(connection).
				Check(ctx, &healthpb.HealthCheckRequest{Service: "temporal.api.workflowservice.v1.WorkflowService"})
			return err
		},
		"replication": func() error {
			shard := metadata.Pairs("temporal-client-cluster-id", "1", "temporal-client-shard-id", "1",
				"temporal-server-cluster-id", "1", "temporal-server-shard-id", "1")
			shown, _ := metadata.FromOutgoingContext(ctx)
			stream, err := admin.StreamWorkflowReplicationMessages(metadata.NewOutgoingContext(ctx, metadata.Join(shown, shard)))
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
		"reflection": func() error {
			stream, err := reflectionpb.NewServerReflectionClient(connection).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
			if err := stream.Send(ask); err != nil && err != io.EOF { //nolint:errorlint // gRPC returns it as it is
				return err
			}
			_, err = stream.Recv()
			return err
		},
	} {
		switch code := status.Code(try()); code {
		case codes.PermissionDenied, codes.Unavailable, codes.Unimplemented: // refused, no gRPC there, or not there
		default:
			t.Errorf("%s: got %v, want to be refused", name, code)
		}
	}
}

// TestAttackARefusalSaysWhatToDoAndFillsNoLog reads what a stranger gets, and what the engine's log says of it.
func TestAttackARefusalSaysWhatToDoAndFillsNoLog(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	connection, err := grpc.NewClient(s.TemporalAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	_, err = workflowservice.NewWorkflowServiceClient(connection).
		GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
	message := status.Convert(err).Message()
	for _, want := range []string{"keys/token", "keys/temporal.toml", "owner's token"} {
		if !strings.Contains(message, want) || strings.Contains(message, "\n") {
			t.Errorf("the refusal: got %q, want one line with %s", message, want)
		}
	}
	stop(t, s)
	if strings.Contains(logged.String(), "uthoriz") {
		t.Errorf("log after a refusal:\n%s", logged.String())
	}
}

// TestAttackTheUIIsForTheOwner asks the UI as a stranger, as a page of another origin, and under a name that a foreign
// server gave to 127.0.0.1.
func TestAttackTheUIIsForTheOwner(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Dir: t.TempDir()})
	authorization := [2]string{"Authorization", "Bearer " + s.Keys().Token()}
	for _, tt := range []struct {
		name    string
		host    string
		headers [][2]string
		want    int
	}{
		{"the owner", "", [][2]string{authorization}, http.StatusOK},
		{"a stranger", "", nil, http.StatusUnauthorized},
		{"a wrong token", "", [][2]string{{"Authorization", "Bearer wrong"}}, http.StatusUnauthorized},
		{"a rebound name", "attacker.example", [][2]string{authorization}, http.StatusForbidden},
		{
			"a page of another origin", "",
			[][2]string{authorization, {"Origin", "http://attacker.example"}},
			http.StatusForbidden,
		},
		{"a page of another port", "", [][2]string{authorization, {"Sec-Fetch-Site", "same-site"}}, http.StatusForbidden},
	} {
		for _, path := range []string{
			"/", "/api/v1/namespaces/default/workflows", "/api/v1/settings", "/render",
			"/healthz",
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.UIURL()+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = tt.host
			for _, header := range tt.headers {
				request.Header.Set(header[0], header[1])
			}
			answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if refused := answer.StatusCode >= 400; refused != (tt.want >= 400) || refused && answer.StatusCode != tt.want {
				if path == "/render" && tt.want == http.StatusOK {
					continue // it wants a parameter
				}
				t.Errorf("%s of %s: got %s, want %d", path, tt.name, answer.Status, tt.want)
			}
		}
	}
	// The owner's header must not open what a page's cookie alone would: the UI's own check of forged requests goes on.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		s.UIURL()+"/api/v1/namespaces/default/workflows/a", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(authorization[0], authorization[1])
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode < 400 {
		t.Errorf("a POST without the UI's token against forged requests: got %s", answer.Status)
	}
}

// TestTheTemporalCommandHasItsProfile reads the file that TEMPORAL_CONFIG_FILE names.
func TestTheTemporalCommandHasItsProfile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true})
	path := filepath.Join(dir, access.TemporalFile)
	got, err := os.ReadFile(path)
	want := fmt.Sprintf("[profile.default]\naddress = %q\nnamespace = \"default\"\napi_key = "+
		"%q\n\n[profile.default.tls]\ndisabled = true\n",
		s.TemporalAddress(), s.Keys().Token())
	if err != nil || string(got) != want {
		t.Errorf("%s: got %s, error %v; want %s", access.TemporalFile, got, err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: got %v, error %v; want mode 0600", access.TemporalFile, info, err)
	}
}
