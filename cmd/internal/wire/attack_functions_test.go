package wire_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAttackNoPortOfAnEngineTakesAFunctionOrGivesAnInvocation(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--value-of-time", "1000")
	e.randomRuns(12, 42) // functions are at work
	var hosts, runtimes int
	for _, port := range listening(t, e.command.Process.Pid) {
		for _, attack := range []struct{ method, path string }{
			{http.MethodPost, "/2015-03-31/functions"},
			{http.MethodGet, "/2018-06-01/runtime/invocation/next"},
			{http.MethodPost, "/2018-06-01/runtime/init/error"},
		} {
			status, answer := strike(t, attack.method, fmt.Sprintf("http://127.0.0.1:%d%s", port, attack.path))
			switch {
			case strings.Contains(answer, "MissingAuthenticationTokenException") && status == http.StatusForbidden:
				hosts++
			case strings.Contains(answer, "there is nothing here") && status == http.StatusNotFound:
				runtimes++
			case status >= 200 && status < 300:
				t.Errorf("%s %s at port %d: got %d %.200q", attack.method, attack.path, port, status, answer)
			}
		}
	}
	if hosts != 3 || runtimes == 0 {
		t.Errorf("got %d refusals of the function host and %d of Runtime APIs, want 3 and some", hosts, runtimes)
	}
}

// strike makes a request as any user of the machine can, and returns the status, 0 without an HTTP answer, and the error
// type with the body.
func strike(t *testing.T, method, url string) (status int, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(`{"FunctionName":"evil"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "AWS4-x")
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if ctx.Err() != nil {
		t.Errorf("%s %s: it waits for what comes", method, url)
	}
	if err != nil {
		return 0, err.Error() // what speaks something else
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // a stream is cut with the test's limit
	return resp.StatusCode, resp.Header.Get("X-Amzn-Errortype") + " " + string(body)
}

// listening returns the TCP ports of this machine on which a process listens.
func listening(t *testing.T, pid int) (ports []int) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	own := make(map[string]bool)
	for _, link := range links {
		target, _ := os.Readlink(link) // it may have been closed meanwhile
		own[target] = true
	}
	if len(own) == 0 {
		t.Skip("the descriptors of the engine are not this user's to see")
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Skipf("the sockets of a process are not to be seen here: %v", err)
	}
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(line))
		if len(fields) < 10 || fields[3] != "0A" || !own["socket:["+fields[9]+"]"] {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseInt(hex, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, int(port))
	}
	return ports
}
