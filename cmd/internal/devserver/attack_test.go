package devserver

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
)

// serving starts a server in another process and returns the address of its Temporal and the process.
func serving(t *testing.T, dir string) (address string, pid int) {
	t.Helper()
	cmd, out := child(t, dir)
	t.Cleanup(func() { kill(t, cmd) })
	var nats string
	if _, err := fmt.Fscan(out, &address, &nats); err != nil {
		t.Fatalf("read the child's addresses: %v", err)
	}
	return address, cmd.Process.Pid
}

// listening are the TCP ports of this machine's loopback that the process listens on.
func listening(t *testing.T, pid int) []int {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells which process listens where")
	}
	own := map[string]bool{}
	descriptors := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(descriptors, entry.Name())); err == nil {
			own[target] = true
		}
	}
	table, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net/tcp"))
	if err != nil {
		t.Fatal(err)
	}
	var ports []int
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		const listens = "0A"
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != listens || !own["socket:["+fields[9]+"]"] {
			continue
		}
		_, hexadecimal, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseInt(hexadecimal, 16, 32)
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		ports = append(ports, int(port))
	}
	if len(ports) == 0 {
		t.Fatal("the process listens nowhere")
	}
	return ports
}

// TestAttackAWebPageStartsNothing sends to every port what a page of any origin may make a browser send: text, without asking first.
func TestAttackAWebPageStartsNothing(t *testing.T) {
	t.Parallel()
	address, pid := serving(t, t.TempDir())
	const start = `{"activityType":{"name":"run"},"taskQueue":{"name":"app@1/stage.pool"},"startToCloseTimeout":"60s","requestId":"a",` +
		`"input":[{"command":{"shell":"id"}}]}`
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	for _, port := range listening(t, pid) {
		url := fmt.Sprintf("http://127.0.0.1:%d/api/v1/namespaces/default/activities/attack", port)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(start))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "text/plain")
		request.Header.Set("Origin", "http://attacker.example")
		if answer, err := browser.Do(request); err == nil {
			_ = answer.Body.Close()
			t.Errorf("port %d speaks HTTP and answers a foreign page: %s", port, answer.Status)
		}
	}
	c := dialTemporal(t, address)
	defer c.Close()
	activities, err := c.WorkflowService().ListActivityExecutions(t.Context(), &workflowservice.ListActivityExecutionsRequest{Namespace: Namespace})
	if err != nil || len(activities.GetExecutions()) != 0 {
		t.Errorf("activities after the attack: got %v, error %v; want none", activities.GetExecutions(), err)
	}
}
