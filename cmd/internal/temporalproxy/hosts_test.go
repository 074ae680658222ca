package temporalproxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// ofHosts are options in which the token of a host is "token of " and its name, and a seal begins with that name.
func ofHosts(t *testing.T) HostOptions {
	t.Helper()
	nowhere, err := grpc.NewClient("passthrough:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nowhere.Close() })
	return HostOptions{
		Temporal: nowhere, Namespace: "default",
		Host: func(token string) (string, bool) { return strings.CutPrefix(token, "token of ") },
		Seal: func(host string, task []byte) []byte { return append([]byte(host+"|"), task...) },
		Open: func(host string, sealed []byte) ([]byte, bool) {
			task, is := strings.CutPrefix(string(sealed), host+"|")
			return []byte(task), is
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// TestTheTokenOfATaskIsTakenBack gives a task to a host, and takes back what that shows.
func TestTheTokenOfATaskIsTakenBack(t *testing.T) {
	t.Parallel()
	options := ofHosts(t)
	hosts, err := NewHosts(options)
	if err != nil {
		t.Fatal(err)
	}
	defer hosts.Close()
	given := &workflowservice.PollActivityTaskQueueResponse{
		TaskToken: []byte("Temporal's"), WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "w", RunId: "r"},
	}
	hosts.give("a", given)
	if task, genuine := TaskToken(options.Open, "a", given.GetTaskToken()); !genuine || string(task) != "Temporal's" {
		t.Errorf("got %q, %v; want what Temporal has given", task, genuine)
	}
	for what, shown := range map[string][]byte{
		"Temporal's own": []byte("Temporal's"), "nothing": nil, "one that is cut short": []byte("a|\x05w"),
	} {
		if task, genuine := TaskToken(options.Open, "a", shown); genuine {
			t.Errorf("%s: got %q, want that it is refused", what, task)
		}
	}
	if _, genuine := TaskToken(options.Open, "b", given.GetTaskToken()); genuine {
		t.Error("another host has shown it")
	}
}

// TestAttackAStrangerSendsAMessageThatDoesNotEnd: who shows no token is answered before anything is read.
func TestAttackAStrangerSendsAMessageThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	hosts, err := NewHosts(ofHosts(t))
	if err != nil {
		t.Fatal(err)
	}
	defer hosts.Close()
	server := httptest.NewUnstartedServer(hosts)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	endless, rest := io.Pipe()
	defer func() { _ = rest.Close() }()
	path := workflowservice.WorkflowService_GetSystemInfo_FullMethodName
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, endless)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	answer, err := server.Client().Do(request)
	if err != nil {
		t.Fatalf("it waits for the message of a stranger: %v", err)
	}
	if got := answer.Header.Get("Grpc-Status"); got != "16" || answer.Body.Close() != nil {
		t.Errorf("the status is %q, want 16", got)
	}

	// A client of gRPC is told the same.
	trust := server.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // it is one
	client, err := grpc.NewClient("passthrough:///"+server.Listener.Addr().String(),
		grpc.WithTransportCredentials(credentials.NewTLS(trust.Clone())), grpc.WithAuthority("example.com"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	_, err = workflowservice.NewWorkflowServiceClient(client).GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	if got := status.Convert(err); got.Code() != codes.Unauthenticated || got.Message() != noToken {
		t.Error(errors.Join(errors.New("a stranger's call"), err))
	}
}
