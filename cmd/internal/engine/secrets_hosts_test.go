package engine_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// TestAttackAHostThatShowsNoProofsPollsAStageWithSecrets: its attempts there would be given none.
func TestAttackAHostThatShowsNoProofsPollsAStageWithSecrets(t *testing.T) {
	t.Parallel()
	files := directory(t, map[string]string{"planted-key": "sk-plant-ed-4711-stage-key"})
	server, _ := startServer(t, "", "--secrets-dir", files)
	registered, err := server.client.RegisterChain(t.Context(), packedChain(t, confiding))
	if err != nil {
		t.Fatal(err)
	}
	base, _, token := server.port()
	poll := func(proves bool, queue string) error {
		answer, status, said := joinAs(t, base, token.Trust("127.0.0.1"), token.Secret, join.Request{
			Host: "gpu-1", Instance: "first", Version: "test", Platform: "linux/amd64", Proves: proves, At: time.Now(),
		})
		if status != http.StatusOK {
			t.Fatalf("join: got %d %s", status, said)
		}
		trust, err := answer.Trust("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		c, err := (&remote{t, answer, trust}).temporal()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // as long as a poll finds nothing
		defer cancel()
		_, err = c.WorkflowService().PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
			Namespace: answer.Namespace, TaskQueue: queueNamed(queue),
		})
		return err
	}
	denied := func(err error) bool {
		_, is := errors.AsType[*serviceerror.PermissionDenied](err)
		return is
	}
	secret := registered.Name + "@" + registered.Build + "/confide"
	for _, queue := range []string{secret, secret + ".pool", secret + "~vision", secret + "~vision.pool"} {
		err := poll(false, queue)
		if !denied(err) || !strings.Contains(err.Error(), "secrets") {
			t.Errorf("it polls %s: got %v, want a refusal that says why", queue, err)
		}
		if err := poll(true, queue); denied(err) {
			t.Errorf("one that shows proofs polls %s: %v", queue, err)
		}
	}
	if err := poll(false, registered.Name+"@"+registered.Build+"/other"); denied(err) {
		t.Errorf("it polls a stage without secrets: %v", err)
	}
}

// TestAHostElsewhereIsGivenTheSecretsOfItsAttempts and leaves none of them behind.
func TestAHostElsewhereIsGivenTheSecretsOfItsAttempts(t *testing.T) {
	t.Parallel()
	const key = "sk-plant-ed-4711-stage-key"
	files := directory(t, map[string]string{"planted-key": key})
	server, joining := startServer(t, "", "--secrets-dir", files)
	agent := newAgent(t, "elsewhere-1")
	agent.start(joining)
	if _, err := server.client.RegisterChain(t.Context(), packedChain(t, confiding)); err != nil {
		t.Fatal(err)
	}
	going := t.TempDir() + "/go"
	if err := os.WriteFile(going, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := server.publish("confiding", "a", map[string]string{"go": going})
	result := succeed[chain.Result](server, run, patience)
	if sum := result.Stages["confide"].Values[0]["sum"]; sum != sumOf(key) {
		t.Errorf("the stage was not given its secret: %v", sum)
	}
	for _, attempt := range server.attempts(run) {
		if attempt.Host != "elsewhere-1" {
			t.Errorf("an attempt of %s was at %q", attempt.Task, attempt.Host)
		}
	}
	secrets := planted{"the secret of the stage": key}
	for where, text := range server.tells(run) {
		secrets.wantNone(t, where, text)
	}
	server.stop()
	agent.kill()
	secrets.wantNone(t, "what the agent prints", []byte(agent.output.String()))
	wantNoneInFiles(t, secrets, agent.state)
	wantNoneInFiles(t, secrets, server.state)
}
