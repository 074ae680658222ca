package engine_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// served is the build of an app that a server serves; empty where it serves none.
func served(e *testEngine, app string) string {
	stack, err := e.client.Stack(e.t.Context())
	if err != nil {
		return ""
	}
	for _, one := range stack.Apps {
		if one.Name == app && one.Current {
			return one.Build
		}
	}
	return ""
}

// asViewer asks a server for its stream with a token, and returns the status and what ends with the stream.
func asViewer(t *testing.T, e *testEngine, token string) (status int, ended <-chan struct{}) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.address+"/api/v1/stream", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request) //nolint:bodyclose // it is closed where it is read
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}()
	return answer.StatusCode, over
}

// TestARunGoesOnWhenTheServerThatHasBuiltItIsGone begins a run by a build and a chain of a server that is killed then,
// with its state directory. The other has joined it with a token, and has nothing but what it was told.
func TestARunGoesOnWhenTheServerThatHasBuiltItIsGone(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	first := c.start(buildApp(t, 0))
	second := c.start("")
	digest := served(first, "testapp")
	if digest == "" || served(second, "testapp") != digest {
		t.Fatalf("the first serves build %q and the second %q", digest, served(second, "testapp"))
	}
	ownFirst, errFirst := access.ReadToken(first.state)
	ownSecond, errSecond := access.ReadToken(second.state)
	if errFirst != nil || errSecond != nil || ownFirst != ownSecond {
		t.Errorf("they have other keys: %v, %v", errFirst, errSecond)
	}
	one, err := chain.Parse("c.yaml", []byte("name: greet\ncode: none\nstages: {only: {run: echo hello}}\n"),
		chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.client.RegisterChain(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	agent := c.agent("gpu-1", second)
	run := first.publish("fan", "one", fanInput{Shards: 20, Milliseconds: 200})
	second.until("tasks run", func() bool { return strings.Contains(agent.output.String(), "attempt 1: succeeded") })
	first.kill()
	if err := os.RemoveAll(first.state); err != nil {
		t.Fatal(err)
	}
	succeed[fanResult](second, run, patience).check(t, 20)
	greeted := second.publish("greet", "two", map[string]any{})
	if view := second.wait(greeted, patience); view.Error != "" {
		t.Errorf("the chain of the first: %s", view.Error)
	}
	later := second.publish("fan", "three", fanInput{Shards: 3, Milliseconds: 10})
	succeed[fanResult](second, later, patience).check(t, 3)
	text, err := os.ReadFile(filepath.Join(second.state, "spillway.log"))
	if err != nil || strings.Contains(string(text), ownSecond) {
		t.Errorf("the log has the owner's token, or cannot be read: %v", err)
	}
}

// TestWhatCountsNoMoreAtOneServerCountsAtNone revokes a token and removes a host at one server of two.
func TestWhatCountsNoMoreAtOneServerCountsAtNone(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	first := c.start("")
	second := c.start("")
	token, err := first.client.MakeToken(t.Context(), web.NewToken{Name: "ann", Role: "viewer"})
	if err != nil {
		t.Fatal(err)
	}
	var stream <-chan struct{}
	second.until("the token counts at the second", func() bool {
		status, ended := asViewer(t, second, token)
		stream = ended
		return status == http.StatusOK
	})
	agent := c.agent("gpu-1", second)
	listed := func(e *testEngine) (state string) {
		hosts, err := e.client.Hosts(t.Context())
		for _, host := range hosts {
			if err == nil && host.Name == "gpu-1" {
				state = string(host.State)
				if host.Drained {
					state += ", drained"
				}
			}
		}
		return state
	}
	first.until("the first knows who has joined the second", func() bool { return listed(first) == "up" })
	if err := first.client.DrainHost(t.Context(), "gpu-1", true); err != nil {
		t.Fatal(err)
	}
	second.until("it is drained at the second", func() bool { return listed(second) == "up, drained" })

	if err := first.client.RevokeToken(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stream:
	case <-time.After(patience):
		t.Fatal("a stream of the second goes on with a token that was revoked at the first")
	}
	if status, _ := asViewer(t, second, token); status != http.StatusUnauthorized {
		t.Errorf("the second answers a token that was revoked at the first with %d", status)
	}
	if err := first.client.RemoveHost(t.Context(), "gpu-1"); err != nil {
		t.Fatal(err)
	}
	second.until("the host is sent away from the second", func() bool {
		return strings.Contains(agent.output.String(), "it lets this host in no more")
	})

	renewed, err := first.client.JoinToken(t.Context(), true, true)
	if err != nil {
		t.Fatal(err)
	}
	second.until("the second knows the token for servers", func() bool {
		known, err := second.client.JoinToken(t.Context(), true, false)
		return err == nil && known == renewed
	})
}

// TestAServerThatIsNoneOfTheStackIsRefused starts servers with other keys on the same NATS, and with tokens that are
// none of servers.
func TestAServerThatIsNoneOfTheStackIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	first := c.start("")
	ofHosts, err := first.client.JoinToken(t.Context(), false, false)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(ofHosts), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]struct {
		flags []string
		said  []string
	}{
		"other keys": {nil, []string{"with other keys", "--join URL --token-file FILE", "hosts token --server"}},
		"the token of hosts": {
			[]string{"--join", c.at(first), "--token-file", file}, []string{"not one that servers join with", "--server"},
		},
		"no token": {[]string{"--join", c.at(first)}, []string{"no --token-file"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		arguments := append([]string{"server", "--state", t.TempDir(), "--no-ui"}, c.shared...)
		command := exec.CommandContext(ctx, os.Args[0], append(arguments, try.flags...)...)
		command.Env = append(append(os.Environ(), asEngine+"=1"), s3Environment...)
		printed, err := command.CombinedOutput()
		cancel()
		if err == nil {
			t.Errorf("%s: it has started", name)
		}
		for _, said := range try.said {
			if !strings.Contains(string(printed), said) {
				t.Errorf("%s: it says %q, want %q in it", name, printed, said)
			}
		}
		if strings.Contains(string(printed), ofHosts) {
			t.Errorf("%s: it prints the token", name)
		}
	}
}
