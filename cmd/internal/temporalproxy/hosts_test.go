package temporalproxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	commonpb "go.temporal.io/api/common/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
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
		Prove: func(host string, given wire.Given) string {
			return host + " was given " + string(given.Encode())
		},
		Withheld: func(_ context.Context, host, queue string) error {
			if host == "older" && strings.HasPrefix(queue, "digits@1/secret") {
				return errors.New("the stage has secrets")
			}
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// TestAttackAQueueIsWithheldFromAHost polls queues of stages as two hosts.
func TestAttackAQueueIsWithheldFromAHost(t *testing.T) {
	t.Parallel()
	hosts, err := NewHosts(ofHosts(t))
	if err != nil {
		t.Fatal(err)
	}
	defer hosts.Close()
	for _, c := range []struct {
		host, queue, refused string
	}{
		{"older", "digits@1/secret", "the stage has secrets"},
		{"older", "digits@1/open", ""},
		{"newer", "digits@1/secret", ""},
		{"newer", "digits@1", "none of a stage"},
	} {
		err := hosts.admit(t.Context(), c.host, &workflowservice.PollActivityTaskQueueRequest{
			Namespace: "default", TaskQueue: queue(c.queue),
		})
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s polls %s: got %v, want %q", c.host, c.queue, err, c.refused)
		}
	}
}

// TestATaskComesWithTheProofThatItWasGiven looks what a host is given with tasks, and that what is no task of a stage
// comes without.
func TestATaskComesWithTheProofThatItWasGiven(t *testing.T) {
	t.Parallel()
	stage := predictor.StageID{App: "digits", Build: "f93", Name: "score"}
	task := wire.Task{Version: wire.Version, Run: "digits-1", Stage: stage, ID: "score-17", CacheVersion: "2"}
	polled := func(task wire.Task, input any) *workflowservice.PollActivityTaskQueueResponse {
		payloads, err := converter.GetDefaultDataConverter().ToPayloads(task, input)
		if err != nil {
			t.Fatal(err)
		}
		return &workflowservice.PollActivityTaskQueueResponse{
			TaskToken: []byte("Temporal's"), ActivityId: "score-17", Attempt: 2, Input: payloads,
			WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "digits-1/map-0", RunId: "r"},
		}
	}
	outside := polled(task, nil)
	digest := strings.Repeat("ab", 32)
	reference := `{"driverName":"spillway-artifacts","claimData":{"digest":"` + digest + `"}}`
	outside.Input.Payloads[1] = &commonpb.Payload{
		Metadata: map[string][]byte{
			"encoding": []byte("json/protobuf"), "messageType": []byte("temporal.api.sdk.v1.ExternalStorageReference"),
		},
		Data: []byte(reference),
	}
	other, unnamed := task, task
	other.Run, unnamed.ID = "digits-2", "score-18"
	key := wire.NewResultKey(stage, false, "2", json.RawMessage(`{"shard":17}`))
	shard := map[string]int{"shard": 17}
	for _, c := range []struct {
		name, queue string
		answer      *workflowservice.PollActivityTaskQueueResponse
		want        *wire.Given
	}{
		{"a task", stage.Queue(), polled(task, shard), &wire.Given{Key: key}},
		{"of the pool's own queue", stage.PoolQueue(), polled(task, shard), &wire.Given{Key: key, PoolOnly: true}},
		{"with an input that is an artifact", stage.Queue(), outside, &wire.Given{Input: digest, CacheVersion: "2"}},
		{"of another run than its workflow's", stage.Queue(), polled(other, shard), nil},
		{"of another name than its activity's", stage.Queue(), polled(unnamed, shard), nil},
		{"of another stage's queue", "digits@f93/other", polled(task, shard), nil},
		{"of no arguments", stage.Queue(), &workflowservice.PollActivityTaskQueueResponse{TaskToken: []byte("T")}, nil},
	} {
		options := ofHosts(t)
		hosts, err := NewHosts(options)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now().Truncate(time.Millisecond)
		hosts.give("a", &workflowservice.PollActivityTaskQueueRequest{
			TaskQueue: &taskqueuepb.TaskQueue{Name: c.queue},
		}, c.answer)
		hosts.Close()
		if _, genuine := TaskToken(options.Open, "a", c.answer.GetTaskToken()); !genuine {
			t.Errorf("%s: the host cannot answer its task", c.name)
		}
		proof, _ := wire.SplitProof(c.answer.GetTaskToken())
		if c.want == nil {
			if proof != "" {
				t.Errorf("%s: it comes with the proof %q, want none", c.name, proof)
			}
			continue
		}
		text, is := strings.CutPrefix(proof, "a was given ")
		got, err := wire.DecodeGiven([]byte(text))
		if !is || err != nil || got.At.Before(began) || got.At.After(time.Now()) {
			t.Errorf("%s: the proof is %q, given at %v, error %v", c.name, proof, got.At, err)
		}
		want := *c.want
		want.Run, want.Stage, want.Task, want.Attempt, want.At = "digits-1", stage, "score-17", 2, got.At
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
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
	hosts.give("a", &workflowservice.PollActivityTaskQueueRequest{}, given)
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
