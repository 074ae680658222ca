package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// inGang is a program on two hosts: each says which it is, and for how long the first goes on a file decides; the other
// is ended with the gang.
const inGang = `
read -r told <&5
case "$told" in
*'"number":0'*) touch "$1/first-$SPILLWAY_ATTEMPT"; while [ ! -e "$1/enough" ]; do sleep 0.1; done;;
*) touch "$1/other-$SPILLWAY_ATTEMPT"; while :; do sleep 1; done;;
esac
`

// TestAnAttemptRunsOnTwoHostsOrOnNone has a program that wants two hosts wait while there is one, run on both when the
// second joins, and begin anew on both after one of them was killed.
func TestAnAttemptRunsOnTwoHostsOrOnNone(t *testing.T) {
	server, join := startServer(t, buildApp(t, 0))
	join = append(slices.Clip(join), "--training-address", "127.0.0.1", "--limits", "none")
	agents := map[string]*testAgent{"host-a": newAgent(t, "host-a"), "host-b": newAgent(t, "host-b")}
	agents["host-a"].start(join)
	single, err := chain.Single("together")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.client.RegisterChain(t.Context(), single); err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	there := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(shared, name)); return err == nil }
	}
	run := server.publish("together", "g", chain.SingleInput{
		Command: loopwire.Command{Arguments: []string{"/bin/sh", "-c", inGang, "sh", shared}, Hosts: 2},
		CPU:     1000, Memory: 64 << 20, MaxAttempts: 1,
	})
	server.until("the attempt waits on the only host", func() bool {
		log, err := os.ReadFile(filepath.Join(agents["host-a"].state, "agent", "spillway.log"))
		return err == nil && strings.Contains(string(log), "an attempt waits for its gang")
	})
	if there("first-1")() {
		t.Error("a program that wants two hosts runs on one")
	}
	agents["host-b"].start(join)
	server.until("it runs on the first host", there("first-1"))
	server.until("it runs on the second host", there("other-1"))

	agents["host-b"].kill() // the second: the first to ask has the task
	server.until("the attempt is lost with it", func() bool {
		all, err := server.client.Attempts(t.Context(), web.AttemptQuery{Run: run, Limit: 10})
		return err == nil && slices.ContainsFunc(all, func(a timeline.Attempt) bool { return a.Outcome == predictor.Lost })
	})
	agents["host-b"].start(join)
	server.until("it runs on the first host again", there("first-2"))
	server.until("it runs on the second host again", there("other-2"))
	if err := os.WriteFile(filepath.Join(shared, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	succeed[json.RawMessage](server, run, patience)
	all := server.attempts(run)
	if len(all) != 2 || all[0].Outcome != predictor.Lost || all[1].Outcome != predictor.Succeeded ||
		!strings.Contains(all[0].Error, "host-b is lost") {
		t.Errorf("the attempts are %+v; want one that was lost with host-b, and one that has succeeded", all)
	}
}
