package wire_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/wire"
)

// TestAttackADoorToTemporalIsForItsWorker is what another program of the same user can do with all that it finds of a workflow worker.
func TestAttackADoorToTemporalIsForItsWorker(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the directory of the socket is the guard, which this user can enter")
	}
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst")
	succeed[map[string]int](e, e.publish("echo", "a", map[string]int{"index": 4}), patience) // so its worker works
	environment := workerEnvironment(t, e)
	if strings.Contains(strings.Join(environment, "\n"), e.token) {
		t.Error("a workflow worker has the owner's token")
	}
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	doors := 0
	for _, variable := range environment {
		address, is := strings.CutPrefix(variable, wire.TemporalEnvironment+"=")
		if !is {
			continue
		}
		doors++
		for _, address := range []string{address, stack.Addresses.Temporal} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if stranger, err := client.DialContext(ctx, client.Options{HostPort: address}); err == nil {
				stranger.Close()
				t.Errorf("a stranger came in at %s", address)
			}
			cancel()
		}
	}
	if doors != 1 {
		t.Errorf("the worker has %d doors to Temporal, want one", doors)
	}
	e.stop()
}

// workerEnvironment is that of the engine's one workflow worker, as other programs of its user can read it.
func workerEnvironment(t *testing.T, e *engine) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // a process that has ended, or of somebody else
		}
		text := string(content)
		if strings.Contains(text, wire.RoleEnvironment+"="+wire.RoleWorkflows) && strings.Contains(text, "="+"file://"+e.state+"/artifacts") {
			return strings.Split(text, "\x00")
		}
	}
	t.Fatal("no process is the engine's workflow worker")
	return nil
}
