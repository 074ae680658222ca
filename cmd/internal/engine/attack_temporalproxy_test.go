package engine_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/spillway-ml/spillway/activities/wire"
)

// TestAttackAProxyOfTemporalIsForItsWorker is what another program of the same user can do with all that it finds of a
// workflow worker.
func TestAttackAProxyOfTemporalIsForItsWorker(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the directory of the socket is the guard, which this user can enter")
	}
	e := sharedEngine(t)
	succeed[map[string]int](e, e.publish("echo", "a", map[string]int{"index": 4}), patience) // so its worker works
	environment := workerEnvironment(t, e)
	if strings.Contains(strings.Join(environment, "\n"), e.token) {
		t.Error("a workflow worker has the owner's token")
	}
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proxies := 0
	for _, variable := range environment {
		address, is := strings.CutPrefix(variable, wire.TemporalEnvironment+"=")
		if !is {
			continue
		}
		proxies++
		if code := callTemporal(t.Context(), address); code != codes.Unavailable {
			t.Errorf("a stranger at the proxy %s: got %v, want that the connection ends", address, code)
		}
		e.until("the log says who came to the proxy", func() bool {
			text, err := os.ReadFile(filepath.Join(e.state, "spillway.log"))
			return err == nil && strings.Contains(string(text),
				"another process than the workflow worker came to its proxy of Temporal") &&
				strings.Contains(string(text), strconv.Itoa(os.Getpid()))
		})
	}
	if code := callTemporal(t.Context(), stack.Addresses.Temporal); code != codes.PermissionDenied {
		t.Errorf("a stranger at Temporal's port: got %v, want to be refused", code)
	}
	if proxies != 1 {
		t.Errorf("the worker has %d proxies of Temporal, want one", proxies)
	}
}

// workerEnvironment is that of the engine's one workflow worker, as other programs of its user can read it.
func workerEnvironment(t *testing.T, e *testEngine) []string {
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
		if strings.Contains(text, wire.RoleEnvironment+"="+wire.RoleWorkflows) &&
			strings.Contains(text, "="+"file://"+e.state+"/artifacts") {
			return strings.Split(text, "\x00")
		}
	}
	t.Fatal("no process is the engine's workflow worker")
	return nil
}
