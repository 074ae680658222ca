package engine_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	commonpb "go.temporal.io/api/common/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/worker"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// remote is a host that has joined an engine, as far as it is what the host can reach.
type remote struct {
	t      *testing.T
	answer join.Answer
	tls    *tls.Config
}

// joinAs joins an engine, and returns the status where it may not.
func joinAs(
	t *testing.T, base string, trust *tls.Config, bearer string, request join.Request,
) (answer join.Answer, status int, said string) {
	t.Helper()
	return joinFrom(t, &net.Dialer{}, base, trust, bearer, request)
}

// joinFrom is joinAs from an address of one's own.
func joinFrom(
	t *testing.T, from *net.Dialer, base string, trust *tls.Config, bearer string, request join.Request,
) (answer join.Answer, status int, said string) {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	asking, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+join.Path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	asking.Header.Set("Authorization", "Bearer "+bearer)
	asking.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true, DialContext: from.DialContext}
	got, err := (&http.Client{Transport: transport}).Do(asking)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(got.Body)
	if err := errors.Join(err, got.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if got.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatal(err)
		}
	}
	return answer, got.StatusCode, string(text)
}

// protocol is the remote's configuration of TLS for an application protocol.
func (r *remote) protocol(names ...string) *tls.Config {
	config := r.tls.Clone()
	config.NextProtos = names
	return config
}

// messages connects to NATS.
func (r *remote) messages() (*nats.Conn, error) {
	return nats.Connect(r.answer.NATS[0], nats.UserInfo(r.answer.NATSUser, r.answer.Token), nats.TLSHandshakeFirst(),
		nats.Secure(r.protocol(join.Protocol)), nats.Timeout(patience), nats.NoReconnect())
}

// temporal connects to Temporal.
func (r *remote) temporal() (client.Client, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	return client.DialContext(ctx, client.Options{
		HostPort: r.answer.Temporal, Namespace: r.answer.Namespace,
		Credentials:       client.NewAPIKeyStaticCredentials(r.answer.Token),
		ConnectionOptions: client.ConnectionOptions{TLS: r.protocol("h2")},
	})
}

// ask asks the API and returns the status.
func (r *remote) ask(method, path, body string) int {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.answer.API+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+r.answer.Token)
	request.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: r.tls, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = answer.Body.Close() // the status is all
	return answer.StatusCode
}

// port is the URL of the port for other machines, and what they join with, as text and parsed.
func (e *testEngine) port() (base, text string, token join.Token) {
	e.t.Helper()
	stack, err := e.client.Stack(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	if text, err = e.client.JoinToken(e.t.Context(), false, false); err != nil {
		e.t.Fatal(err)
	}
	if token, err = join.ParseToken(text); err != nil {
		e.t.Fatal(err)
	}
	at, err := url.Parse(stack.Addresses.TLS)
	if err != nil {
		e.t.Fatal(err)
	}
	return "https://127.0.0.1:" + at.Port(), text, token
}

// TestAHostJoinsAndRunsATask has a program that is no more than a host that has joined run the task of a run while the
// engine's own host is drained, and try what a host must not.
func TestAHostJoinsAndRunsATask(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst", "--listen", "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stack, err := e.client.Stack(ctx)
	if err != nil {
		t.Fatal(err)
	}
	base, _, token := e.port()
	request := join.Request{
		Host: "gpu-1", Instance: "first", Version: "test", Platform: "linux/amd64", At: time.Now(),
	}
	answer, status, said := joinAs(t, base, token.Trust("127.0.0.1"), token.Secret, request)
	if status != http.StatusOK || answer.Token == "" || answer.API != base {
		t.Fatalf("join: got %d %s", status, said)
	}
	trust, err := answer.Trust("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	host := &remote{t, answer, trust}

	connection, err := host.messages()
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := loop.NewLeases(ctx, js, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.PutHost(ctx, predictor.Host{ID: "gpu-1", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	listed := func(name string) web.Host {
		all, err := e.client.Hosts(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range all {
			if one.Name == name {
				return one
			}
		}
		return web.Host{}
	}
	if got := listed("gpu-1"); got.State != web.HostUp || got.Version != "test" || got.Platform != "linux/amd64" {
		t.Errorf("the host is listed as %+v", got)
	}

	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.client.DrainHost(ctx, own, true); err != nil {
		t.Fatal(err)
	}
	// The pool may take what comes before the leader looks at hosts the next time.
	run := host.runTask(e, stack.Apps[0].Name+"@"+stack.Apps[0].Build+"/echo")
	if got := succeed[map[string]int](e, run, patience); got["index"] != 7 {
		t.Errorf("the run came to %v, want what the host has answered", got)
	}
	if !listed(own).Drained {
		t.Error("the engine's own host is not listed as drained")
	}

	host.mustNot(run)

	if err := e.client.RemoveHost(ctx, "gpu-1"); err != nil {
		t.Fatal(err)
	}
	e.until("the host is disconnected", connection.IsClosed)
	if again, err := host.messages(); err == nil {
		again.Close()
		t.Error("a host that was removed connects to NATS")
	}
	if again, err := host.temporal(); err == nil {
		again.Close()
		t.Error("a host that was removed connects to Temporal")
	}
	if got := host.ask(http.MethodGet, "/api/v1/artifacts/"+strings.Repeat("0", 64), ""); got != http.StatusUnauthorized {
		t.Errorf("the API answers a host that was removed with %d, want %d", got, http.StatusUnauthorized)
	}
	if _, status, said := joinAs(t, base, trust, answer.Token, request); status != http.StatusUnauthorized {
		t.Errorf("it joins again with its token: %d %s", status, said)
	}
}

// runTask polls a queue of a stage as an agent does while runs come that have such a task, until it has answered one
// with its input, and returns the run of that.
func (r *remote) runTask(e *testEngine, queue string) (run string) {
	r.t.Helper()
	c, err := r.temporal()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	ran := make(chan string, 100)
	polling := worker.New(c, queue, worker.Options{
		DisableWorkflowWorker: true, DisableEagerActivities: true, MaxConcurrentActivityExecutionSize: 1,
	})
	polling.RegisterDynamicActivity(func(ctx context.Context, args converter.EncodedValues) (wire.Result, error) {
		var task wire.Task
		var input json.RawMessage
		if err := args.Get(&task, &input); err != nil {
			return wire.Result{}, err
		}
		if err := c.RecordActivityHeartbeat(ctx, activity.GetInfo(ctx).TaskToken, "at work"); err != nil {
			return wire.Result{}, err
		}
		ran <- task.Run
		return wire.Result{Output: input, Venue: predictor.Pool}, nil
	}, activity.DynamicRegisterOptions{})
	if err := polling.Start(); err != nil {
		r.t.Fatal(err)
	}
	defer polling.Stop()
	last, published := "", 0
	e.until("the host was given a task", func() bool {
		if len(ran) > 0 {
			return true
		}
		if view, err := e.client.Run(r.t.Context(), last); last == "" || err == nil && view.State != predictor.RunRunning {
			published++
			last = e.publish("echo", fmt.Sprintf("remote%d", published), map[string]int{"index": 7})
		}
		return false
	})
	return <-ran
}

// mustNot tries what a host must not, at Temporal and at the API.
func (r *remote) mustNot(run string) {
	t, ctx := r.t, r.t.Context()
	t.Helper()
	c, err := r.temporal()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	service, namespace := c.WorkflowService(), r.answer.Namespace
	_, started := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "mine", TaskQueue: "app@1"}, "echo")
	_, described := c.DescribeWorkflowExecution(ctx, run, "")
	_, listed := c.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Namespace: namespace})
	_, history := service.GetWorkflowExecutionHistory(ctx, &workflowservice.GetWorkflowExecutionHistoryRequest{
		Namespace: namespace, Execution: executionOf(run),
	})
	_, namespaces := service.ListNamespaces(ctx, &workflowservice.ListNamespacesRequest{})
	_, workflows := service.PollWorkflowTaskQueue(ctx, &workflowservice.PollWorkflowTaskQueueRequest{
		Namespace: namespace, TaskQueue: queueNamed("app@1"),
	})
	_, engines := service.PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
		Namespace: namespace, TaskQueue: queueNamed("spillway-engine"),
	})
	_, forged := service.RespondActivityTaskCompleted(ctx, &workflowservice.RespondActivityTaskCompletedRequest{
		Namespace: namespace, TaskToken: bytes.Repeat([]byte("t"), 64),
	})
	_, byID := service.RespondActivityTaskCompletedById(ctx, &workflowservice.RespondActivityTaskCompletedByIdRequest{
		Namespace: namespace, WorkflowId: run, ActivityId: "5",
	})
	_, updated := service.UpdateWorkflowExecution(ctx, &workflowservice.UpdateWorkflowExecutionRequest{
		Namespace: namespace, WorkflowExecution: executionOf(run), Request: updateNamed(wire.ReserveUpdate),
	})
	for what, err := range map[string]error{
		"start a run": started, "describe one": described, "list them": listed, "read a history": history,
		"cancel": c.CancelWorkflow(ctx, run, ""), "terminate": c.TerminateWorkflow(ctx, run, "", ""),
		"signal": c.SignalWorkflow(ctx, run, "", "s", nil), "list namespaces": namespaces,
		"poll workflow tasks": workflows, "poll the engine's own queue": engines, "answer a task that it made up": forged,
		"answer a task by its name": byID, "ask a run for money that it has no task of": updated,
	} {
		if code := grpcstatus.Code(err); code != codes.PermissionDenied && !strings.Contains(errorText(err), "host gpu-1:") {
			t.Errorf("a host may %s: got error %v", what, err)
		}
	}
	for path, method := range map[string]string{
		"/api/v1/runs": http.MethodGet, "/api/v1/runs/" + run + "/cancel": http.MethodPost, "/api/v1/hosts": http.MethodGet,
		"/api/v1/hosts/token": http.MethodPost, "/api/v1/events": http.MethodPost, "/metrics": http.MethodGet,
		"/api/v1/logins": http.MethodPost, "/api/v1/apps": http.MethodPost,
	} {
		if got := r.ask(method, path, "{}"); got != http.StatusForbidden {
			t.Errorf("a host asks %s %s: got %d, want %d", method, path, got, http.StatusForbidden)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestAttackAtThePortForOtherMachines has strangers come to the port.
func TestAttackAtThePortForOtherMachines(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), "", "--no-burst", "--listen", "127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	base, text, token := e.port()
	trust := token.Trust("127.0.0.1")
	request := join.Request{Host: "gpu-1", Instance: "first", Version: "test", Platform: "linux/amd64", At: time.Now()}
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	apart, named, engines := request, request, request
	apart.At, named.Host, engines.Host = time.Now().Add(-5*time.Minute), "../gpu", own
	for what, c := range map[string]struct {
		request join.Request
		status  int
		said    string
	}{
		"a clock that is behind":   {apart, http.StatusConflict, "behind"},
		"a name that is none":      {named, http.StatusBadRequest, "cannot be called"},
		"the engine's own name":    {engines, http.StatusConflict, "the server's own"},
		"a host that is as it was": {request, http.StatusOK, ""},
	} {
		if _, status, said := joinAs(t, base, trust, token.Secret, c.request); status != c.status ||
			!strings.Contains(said, c.said) {
			t.Errorf("%s: got %d %s, want %d with %q", what, status, said, c.status, c.said)
		}
	}
	renewed, err := e.client.JoinToken(ctx, false, true)
	if err != nil || renewed == text {
		t.Errorf("another token: got the same (%t), error %v", renewed == text, err)
	}
	refused := 0
	for range 8 {
		_, status, said := joinAs(t, base, trust, token.Secret, request)
		switch status {
		case http.StatusUnauthorized:
			refused++
		case http.StatusTooManyRequests:
		default:
			t.Errorf("with a token that was made anew since: got %d %s", status, said)
		}
		if strings.Contains(said, token.Secret) {
			t.Error("the answer repeats the secret")
		}
	}
	if refused == 8 {
		t.Error("eight wrong tokens were looked at, want that it takes a while after five")
	}
	other := token
	other.Authority[0]++
	transport := &http.Transport{TLSClientConfig: other.Trust("127.0.0.1"), DisableKeepAlives: true}
	asking, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := (&http.Client{Transport: transport}).Do(asking); err == nil {
		_ = answer.Body.Close()
		t.Error("a host takes a server with another authority than its token names")
	} else if !errors.Is(err, join.ErrOtherAuthority) {
		t.Errorf("a server with another authority: got %v", err)
	}
	at := strings.TrimPrefix(base, "https://")
	stranger := &remote{t: t, tls: trust, answer: join.Answer{
		Host: "gpu-1", Token: "gpu-1~wrong", API: base, NATS: []string{"tls://" + at},
		NATSUser: join.UserPrefix + "gpu-1", Temporal: at, Namespace: "default",
	}}
	if connection, err := stranger.messages(); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a stranger at NATS: got connection %v and error %v, want %v", connection, err, nats.ErrAuthorization)
	}
	if c, err := stranger.temporal(); err == nil {
		c.Close()
		t.Error("a stranger is let into Temporal")
	}
	if got := stranger.ask(http.MethodGet, "/api/v1/runs", ""); got != http.StatusUnauthorized {
		t.Errorf("a stranger at the API: got %d, want %d", got, http.StatusUnauthorized)
	}
	log, err := os.ReadFile(e.state + "/spillway.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{token.Secret, strings.TrimPrefix(renewed, text[:65])} {
		if bytes.Contains(log, []byte(secret)) {
			t.Error("the log has a secret to join with")
		}
	}
}

func queueNamed(name string) *taskqueuepb.TaskQueue { return &taskqueuepb.TaskQueue{Name: name} }

func executionOf(run string) *commonpb.WorkflowExecution {
	return &commonpb.WorkflowExecution{WorkflowId: run}
}

func updateNamed(name string) *updatepb.Request {
	return &updatepb.Request{
		Meta: &updatepb.Meta{UpdateId: name + "/x"}, Input: &updatepb.Input{Name: name},
	}
}
