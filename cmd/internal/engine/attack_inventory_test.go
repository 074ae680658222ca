package engine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/cmd/internal/proctest"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// TestAttackEverythingThatIsOpen looks at every listening socket, shared memory and file of an engine at work, and of
// all its processes, as somebody without a credential: each must be shut in a way that is known here. What is opened
// anew without a guard fails it.
func TestAttackEverythingThatIsOpen(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	e := (&testEngine{t: t, state: t.TempDir(), temp: temporary(t)}).start(os.Args[0], buildApp(t, 0), "--no-ui=false")
	run := e.publish("fan", "work", map[string]int{"shards": 400, "milliseconds": 50})
	e.wantGuards(e.guardsUntilTheEnd(run), "token", "session", "certificate", "credential", "signature", "secret path",
		"one process", "mode")
	e.everyFileIsItsOwners()
}

// TestAttackEverythingThatATrainingOpens is the same while a model is trained in two parts, which share memory.
func TestAttackEverythingThatATrainingOpens(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/net/tcp"); err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	torchtest.Python(t) // which the engine tries as well
	e := (&testEngine{t: t, state: t.TempDir(), temp: temporary(t)}).start(os.Args[0], "")
	model, err := filepath.Abs("../../../workflows/characters/model.py")
	if err != nil {
		t.Fatal(err)
	}
	text := directory(t, map[string]string{"text.txt": strings.Repeat(
		"Every stage says how much it needs, and gets what it used before.\n", 20)})
	program, err := json.Marshal([]string{
		"env", asEngine + "=1", os.Args[0], "train", model + ":build", "--data", filepath.Join(text, "text.txt"), "--steps",
		"1500", "--batch", "8", "--micro-batches", "2",
		"--partitions", "2", "--out", "trained",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := packedChain(t, fmt.Sprintf("name: fitting\ncode: none\nstages:\n  fit: {run: %s, outputs: {trained: trained}}\n",
		program))
	if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run := e.publish("fitting", "1", struct{}{})
	e.wantGuards(e.guardsUntilTheEnd(run), "token", "session", "certificate", "credential", "mode",
		"memory without a name")
	succeed[chain.Result](e, run, patience)
}

// guardsUntilTheEnd looks at all that is open again and again until the run has ended, and returns the guards by what
// they guard.
func (e *testEngine) guardsUntilTheEnd(run string) map[string]string {
	e.t.Helper()
	guards := map[string]string{}
	for ended := false; !ended; {
		ended = slices.ContainsFunc([]string{"succeeded", "failed"}, func(state string) bool {
			return e.stateOf(run) == state
		})
		for name, guard := range e.open() {
			if _, known := guards[name]; known {
				continue
			}
			said := guard(e.t.Context())
			if strings.HasPrefix(said, "OPEN") {
				again, still := e.open()[name]
				if !still {
					continue // it was closed before it was asked
				}
				said = again(e.t.Context())
			}
			guards[name] = said
			e.t.Logf("%-55s %s", name, guards[name])
		}
	}
	return guards
}

// wantGuards wants that nothing is open, and that something has each of these guards.
func (e *testEngine) wantGuards(guards map[string]string, wanted ...string) {
	e.t.Helper()
	kinds := map[string]bool{}
	for name, guard := range guards {
		kind, _, _ := strings.Cut(guard, ":")
		kinds[kind] = true
		if kind == "OPEN" {
			e.t.Errorf("%s: %s", name, guard)
		}
	}
	for _, kind := range wanted {
		if !kinds[kind] {
			e.t.Errorf("nothing has the guard %q: the engine was not all at work, or what it opens has changed", kind)
		}
	}
}

func (e *testEngine) stateOf(run string) string {
	view, err := e.client.Run(e.t.Context(), run)
	if err != nil {
		return "" // it has not begun
	}
	return string(view.State)
}

// open is what the engine's processes listen on or share, with how to learn its guard.
func (e *testEngine) open() map[string]func(context.Context) string {
	e.t.Helper()
	found := map[string]func(context.Context) string{}
	for _, address := range e.listens() {
		found["tcp "+address] = func(ctx context.Context) string { return guardOf(ctx, address) }
	}
	processes := proctest.Family(e.t, e.command.Process.Pid)
	for _, name := range proctest.Unix(e.t, processes...) {
		found["unix "+name] = func(ctx context.Context) string { return guardOfUnix(ctx, name) }
	}
	for _, pid := range processes {
		for _, path := range slices.Concat(written(e.t, pid), shared(e.t, pid)) {
			if strings.HasPrefix(path, "/memfd:") {
				found[path] = func(context.Context) string { return "memory without a name: who has its descriptor" }
			} else if strings.HasPrefix(path, "/") {
				found[e.short(path)] = func(context.Context) string { return guardOfFile(path, e.state) }
			}
		}
	}
	for _, path := range e.leftOpen() {
		found[e.short(path)] = func(context.Context) string { return guardOfFile(path, e.state) }
	}
	return found
}

// listens are the TCP addresses on which the engine's processes listen.
func (e *testEngine) listens() (addresses []string) {
	e.t.Helper()
	proctest.Need(e.t, e.command.Process.Pid)
	for _, address := range proctest.TCP(e.t, proctest.Family(e.t, e.command.Process.Pid)...) {
		addresses = append(addresses, address.String())
	}
	return addresses
}

// guardOf asks at an address as a stranger would, in every protocol that anything here speaks.
func guardOf(ctx context.Context, address string) string {
	if host, err := netip.ParseAddrPort(address); err != nil || !host.Addr().IsLoopback() {
		return "OPEN: listens beyond this machine"
	}
	if first, err := greeting(ctx, address); err == nil && strings.HasPrefix(first, "INFO ") {
		if strings.Contains(first, `"auth_required":true`) {
			return "credential: NATS"
		}
		return "OPEN: NATS without a credential"
	}
	if answer, body, err := ask(ctx, address); err == nil {
		switch {
		case answer == http.StatusUnauthorized && strings.Contains(body, "spillway open"):
			return "session: or the owner's token"
		case answer == http.StatusUnauthorized && strings.Contains(body, "no credential of this engine was shown"):
			return "credential: the relay of artifacts, with its boards"
		case answer == http.StatusForbidden && strings.Contains(body, "AWS4-HMAC-SHA256"):
			return "signature: the function host's"
		case answer == http.StatusNotFound && strings.Contains(body, "there is nothing here"):
			return "secret path: a Runtime API"
		default:
			return fmt.Sprintf("OPEN: HTTP answers %d %.200s", answer, body)
		}
	}
	if err := shake(ctx, address); err != nil && strings.Contains(err.Error(), "certificate required") {
		return "certificate: between Temporal's services"
	}
	if code := callTemporal(ctx, address); code == codes.PermissionDenied || code == codes.Unauthenticated {
		return "token: Temporal's frontend"
	}
	return "OPEN: or of a kind that is not known here"
}

// greeting is what a server says before it is asked.
func greeting(ctx context.Context, address string) (string, error) {
	connection, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	return bufio.NewReader(connection).ReadString('\n')
}

// ask asks for what the API has without a credential, as the right host.
func ask(ctx context.Context, address string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/namespaces", http.NoBody)
	if err != nil {
		return 0, "", err
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	return answer.StatusCode, string(text), err
}

// shake tries TLS without a certificate. TLS 1.3 tells of the refusal at the first read.
func shake(ctx context.Context, address string) error {
	//nolint:gosec // a stranger does not mind
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = connection.Read(make([]byte, 1))
	return err
}

func callTemporal(ctx context.Context, target string) codes.Code {
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return codes.Unknown
	}
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = workflowservice.NewWorkflowServiceClient(connection).
		ListNamespaces(ctx, &workflowservice.ListNamespacesRequest{})
	return grpcstatus.Code(err)
}

// guardOfUnix comes to a socket of the abstract namespace, to which this process has no right although it is of the
// same user: a proxy ends the connection before it says anything.
func guardOfUnix(ctx context.Context, name string) string {
	if !strings.HasPrefix(name, "@spillway-") {
		return "OPEN: or of a kind that is not known here"
	}
	connection, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", name)
	if err != nil {
		return "OPEN: " + err.Error()
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return "OPEN: " + err.Error()
	}
	if _, err := connection.Read(make([]byte, 1)); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return "one process: a build's proxy of Temporal"
	} else if err != nil {
		return "OPEN: a proxy keeps a process that it is not for: " + err.Error()
	}
	return "OPEN: a proxy answers a process that it is not for"
}
