package external_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/spillway-ml/spillway/cmd/internal/external"
)

// frontend answers what is asked at a start, as Temporal does.
type frontend struct {
	workflowservice.UnimplementedWorkflowServiceServer

	version   string
	key       string // that it wants; empty for none
	retention time.Duration
}

func (f *frontend) admit(ctx context.Context) error {
	shown, _ := metadata.FromIncomingContext(ctx)
	if f.key != "" && strings.Join(shown.Get("authorization"), "") != "Bearer "+f.key {
		return status.Error(codes.PermissionDenied, "Request unauthorized.")
	}
	return nil
}

func (f *frontend) GetSystemInfo(
	ctx context.Context, _ *workflowservice.GetSystemInfoRequest,
) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{ServerVersion: f.version}, f.admit(ctx)
}

func (f *frontend) DescribeNamespace(
	_ context.Context, in *workflowservice.DescribeNamespaceRequest,
) (*workflowservice.DescribeNamespaceResponse, error) {
	if in.GetNamespace() != "ml" {
		return nil, status.Errorf(codes.NotFound, "Namespace %s is not found.", in.GetNamespace())
	}
	return &workflowservice.DescribeNamespaceResponse{Config: &namespacepb.NamespaceConfig{
		WorkflowExecutionRetentionTtl: durationpb.New(f.retention),
	}}, nil
}

// serve serves a frontend and returns its address.
func serve(t *testing.T, f *frontend, secure *tls.Config) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var options []grpc.ServerOption
	if secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(secure)))
	}
	server := grpc.NewServer(options...)
	workflowservice.RegisterWorkflowServiceServer(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

func TestATemporalThatSuitsIsOpened(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	key := filepath.Join(t.TempDir(), "key")
	write(t, key, "secret-1\n")
	address := serve(t, &frontend{version: "1.30.0-148.4", key: "secret-1", retention: 72 * time.Hour}, &tls.Config{
		Certificates: []tls.Certificate{authority.issue(t, time.Hour, "temporal.test")},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: authority.pool,
	})
	certificate, own := authority.files(t, time.Hour, "engine.test")
	var told bytes.Buffer
	temporal, err := external.OpenTemporal(t.Context(), external.TemporalConfig{
		Address: address, Namespace: "ml", APIKeyFile: key,
		TLS: external.TLSConfig{
			CAFile: authority.file, CertificateFile: certificate, KeyFile: own, ServerName: "temporal.test",
		},
	}, slog.New(slog.NewTextHandler(&told, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = temporal.Close() }()
	if got := temporal.Retention(); got != 72*time.Hour {
		t.Errorf("retention: got %s, want 72h", got)
	}
	if err := temporal.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(told.String(), "which event") || strings.Contains(told.String(), "secret-1") {
		t.Errorf("the log says %q, want that 72h are short, and no key", told.String())
	}
}

func TestATemporalThatDoesNotSuitIsRefusedInOneLine(t *testing.T) {
	t.Parallel()
	authority, other := newAuthority(t), newAuthority(t)
	secured := func(lasts time.Duration) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{authority.issue(t, lasts, "temporal.test")}}
	}
	mutual := secured(time.Hour)
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, authority.pool
	good := &frontend{version: "1.32.1", retention: external.UsualRetention}
	expired, expiredKey := authority.files(t, -time.Minute, "engine.test")
	key := filepath.Join(t.TempDir(), "key")
	write(t, key, "hush-hush")
	trusting := external.TLSConfig{CAFile: authority.file, ServerName: "temporal.test"}
	for name, c := range map[string]struct {
		config external.TemporalConfig
		want   []string
	}{
		"nobody listens": {
			external.TemporalConfig{Address: "127.0.0.1:1"}, []string{"127.0.0.1:1", "refused", "--temporal-address"},
		},
		"no port": {
			external.TemporalConfig{Address: "temporal"}, []string{"--temporal-address temporal", "host and port"},
		},
		"a port that is none": {
			external.TemporalConfig{Address: "temporal:http"}, []string{`"http" is no port`},
		},
		"no such namespace": {
			external.TemporalConfig{Address: serve(t, good, nil), Namespace: "absent"},
			[]string{`"absent"`, "temporal operator namespace create", "--retention 720h"},
		},
		"too old": {
			external.TemporalConfig{Address: serve(t, &frontend{version: "1.24.2"}, nil)}, []string{"1.24.2", "upgrade"},
		},
		"no key is shown": {
			external.TemporalConfig{Address: serve(t, &frontend{version: "1.32.1", key: "k"}, nil), Namespace: "ml"},
			[]string{"unauthorized", "--temporal-api-key-file"},
		},
		"a wrong key is shown": {
			external.TemporalConfig{Address: serve(t, &frontend{version: "1.32.1", key: "k"}, nil), APIKeyFile: key},
			[]string{"unauthorized", "--temporal-api-key-file"},
		},
		"no file of the key": {
			external.TemporalConfig{Address: serve(t, good, nil), APIKeyFile: key + "-absent"},
			[]string{"--temporal-api-key-file", "no such file"},
		},
		"TLS where there is none": {
			external.TemporalConfig{Address: serve(t, good, nil), TLS: trusting}, []string{"speaks no TLS"},
		},
		"no TLS where it is": {
			external.TemporalConfig{Address: serve(t, good, secured(time.Hour))}, []string{"may want TLS"},
		},
		"an unknown authority": {
			external.TemporalConfig{
				Address: serve(t, good, secured(time.Hour)),
				TLS:     external.TLSConfig{CAFile: other.file, ServerName: "temporal.test"},
			},
			[]string{"unknown authority", "--temporal-tls-ca"},
		},
		"another name": {
			external.TemporalConfig{
				Address: serve(t, good, secured(time.Hour)), TLS: external.TLSConfig{CAFile: authority.file},
			},
			[]string{"127.0.0.1", "--temporal-tls-server-name"},
		},
		"its certificate is expired": {
			external.TemporalConfig{Address: serve(t, good, secured(-time.Minute)), TLS: trusting},
			[]string{"expired", "renew it there"},
		},
		"it wants a certificate": {
			external.TemporalConfig{Address: serve(t, good, mutual), TLS: trusting},
			[]string{"--temporal-tls-certificate and --temporal-tls-key"},
		},
		"our certificate is expired": {
			external.TemporalConfig{Address: serve(t, good, mutual), TLS: external.TLSConfig{
				CAFile: authority.file, ServerName: "temporal.test", CertificateFile: expired, KeyFile: expiredKey,
			}},
			[]string{expired, "expired on", "renew it"},
		},
		"a certificate without its key": {
			external.TemporalConfig{Address: serve(t, good, mutual), TLS: external.TLSConfig{CertificateFile: expired}},
			[]string{"--temporal-tls-certificate", "without --temporal-tls-key"},
		},
		"a file that holds no certificate": {
			external.TemporalConfig{Address: serve(t, good, mutual), TLS: external.TLSConfig{CAFile: key}},
			[]string{"--temporal-tls-ca", "no certificate in PEM"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := external.OpenTemporal(t.Context(), c.config, slog.New(slog.DiscardHandler))
			if err == nil {
				t.Fatal("it is opened")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error is %q, want %q in it", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "hush") {
				t.Errorf("the error is %q, want one line without a secret", err)
			}
		})
	}
}

func TestAnAPIKeyThatIsReplacedIsShown(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	write(t, key, "old")
	f := &frontend{version: "1.32.1", key: "old", retention: time.Hour}
	temporal, err := external.OpenTemporal(t.Context(), external.TemporalConfig{
		Address: serve(t, f, nil), Namespace: "ml", APIKeyFile: key,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = temporal.Close() }()
	external.ForgetKey(temporal)
	write(t, key, "")
	if err := temporal.Check(t.Context()); err != nil { // half a file is written
		t.Errorf("while the file is empty: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
