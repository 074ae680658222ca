package engine_test

import (
	"os"
	"testing"

	"github.com/spillway-ml/spillway/workflows/chain"
)

// TestAHostElsewhereIsGivenTheSecretsOfItsAttempts and leaves none of them behind.
func TestAHostElsewhereIsGivenTheSecretsOfItsAttempts(t *testing.T) {
	t.Parallel()
	const key = "sk-plant-ed-4711-stage-key"
	files := directory(t, map[string]string{"planted-key": key})
	server, join := startServer(t, "", "--secrets-dir", files)
	agent := newAgent(t, "elsewhere-1")
	agent.start(join)
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
