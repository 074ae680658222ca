package edge_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/cmd/internal/edge"
	"github.com/spillway-ml/spillway/cmd/internal/join"
)

// patience bounds what must happen, however busy the machine is.
const patience = time.Minute

// opened is a port with a real NATS behind it, whose other two say who answers.
type opened struct {
	address string
	trust   *tls.Config
}

func open(t *testing.T) opened {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := access.Open(dir); err != nil {
		t.Fatal(err)
	}
	certificate, err := access.OpenCertificate(dir, access.CertificateOptions{Names: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	says := func(who string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s %s", who, r.Proto)
		})
	}
	port, err := edge.Listen(t.Context(), "127.0.0.1:0", edge.Options{
		Certificate: certificate.Get, API: says("API"), Temporal: says("Temporal"),
		NATS: natstest.Start(t).Embedded().Addr().String(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- port.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := port.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate.Authority()))
	return opened{port.Address().String(), &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
}

func (o opened) get(t *testing.T, trust *tls.Config, kind string, h2 bool) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+o.address+"/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", kind)
	transport := &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: h2, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Do(request)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), errors.Join(err, answer.Body.Close())
}

func TestOnePortCarriesThree(t *testing.T) {
	t.Parallel()
	port := open(t)
	for _, c := range []struct {
		kind, want string
		h2         bool
	}{
		{"application/json", "API HTTP/1.1", false},
		{"application/json", "API HTTP/2.0", true},
		{"application/grpc+proto", "Temporal HTTP/2.0", true},
		{"application/grpc", "API HTTP/1.1", false},
	} {
		if got, err := port.get(t, port.trust, c.kind, c.h2); err != nil || got != c.want {
			t.Errorf("%s: got %q, error %v; want %q", c.kind, got, err, c.want)
		}
	}
	messages := port.trust.Clone()
	messages.NextProtos = []string{join.Protocol}
	connection, err := nats.Connect("tls://"+port.address, nats.Secure(messages), nats.TLSHandshakeFirst(),
		nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	heard, err := connection.SubscribeSync("hello")
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 512<<10)
	if err := connection.Publish("hello", []byte(large)); err != nil {
		t.Fatal(err)
	}
	if message, err := heard.NextMsg(patience); err != nil || string(message.Data) != large {
		t.Errorf("over NATS: error %v", err)
	}
	if servers := connection.DiscoveredServers(); len(servers) > 0 {
		t.Errorf("the client was told of other servers: %v", servers)
	}
}

func TestAttackAtThePort(t *testing.T) {
	t.Parallel()
	port := open(t)
	others := open(t)
	if _, err := port.get(t, others.trust, "", true); err == nil ||
		!strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("with the authority of another engine: got %v", err)
	}
	old := port.trust.Clone()
	old.MaxVersion = tls.VersionTLS12
	if _, err := port.get(t, old, "", false); err == nil {
		t.Error("it speaks TLS 1.2")
	}
	unknown := port.trust.Clone()
	unknown.NextProtos = []string{"smtp"}
	if connection, err := tls.Dial("tcp", port.address, unknown); err == nil {
		_ = connection.Close()
		t.Error("it speaks a protocol that it does not know")
	}
	plain, err := net.Dial("tcp", port.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	if err := plain.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(plain, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(plain).ReadString('\n'); err == nil && strings.HasPrefix(line, "HTTP/") {
		t.Errorf("without TLS it answers %q", line)
	}
}

// TestAttackAStrangerWhoSaysNothing connects, shakes hands or not, and says nothing more: the port gives it up.
func TestAttackAStrangerWhoSaysNothing(t *testing.T) {
	t.Parallel()
	port := open(t)
	silent, err := net.Dial("tcp", port.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	messages := port.trust.Clone()
	messages.NextProtos = []string{join.Protocol}
	shaken, err := tls.Dial("tcp", port.address, messages)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shaken.Close() }()
	web, err := tls.Dial("tcp", port.address, port.trust.Clone())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = web.Close() }()
	for what, connection := range map[string]net.Conn{
		"no handshake": silent, "NATS without a name": shaken, "HTTP without a request": web,
	} {
		if err := connection.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, connection); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the port waits for more than %v", what, patience)
		}
	}
}

// TestAttackOneAddressOpensThousands opens more connections than one address may: the next ones are closed, and those
// that there are go on.
func TestAttackOneAddressOpensThousands(t *testing.T) {
	t.Parallel()
	port := open(t)
	kept := make([]net.Conn, 0, 600)
	defer func() {
		for _, connection := range kept {
			_ = connection.Close()
		}
	}()
	for range cap(kept) {
		connection, err := net.Dial("tcp", port.address)
		if err != nil {
			break
		}
		kept = append(kept, connection)
	}
	last := tls.Client(kept[len(kept)-1], &tls.Config{RootCAs: port.trust.RootCAs, ServerName: "127.0.0.1"})
	if err := last.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if err := last.HandshakeContext(t.Context()); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection beyond those that one address may have: got %v, want that it is closed", err)
	}
}
