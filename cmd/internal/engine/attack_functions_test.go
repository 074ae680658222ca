package engine_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAttackNoPortOfAnEngineTakesAFunctionOrGivesAnInvocation(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--value-of-time", "1000")
	e.randomRuns(12, 42) // functions are at work
	var hosts, runtimes int
	for _, address := range e.listens() {
		for _, attack := range []struct{ method, path string }{
			{http.MethodPost, "/2015-03-31/functions"},
			{http.MethodGet, "/2018-06-01/runtime/invocation/next"},
			{http.MethodPost, "/2018-06-01/runtime/init/error"},
		} {
			status, answer := strike(t, attack.method, "http://"+address+attack.path)
			switch {
			case strings.Contains(answer, "MissingAuthenticationTokenException") && status == http.StatusForbidden:
				hosts++
			case strings.Contains(answer, "there is nothing here") && status == http.StatusNotFound:
				runtimes++
			case status >= 200 && status < 300:
				t.Errorf("%s %s at %s: got %d %.200q", attack.method, attack.path, address, status, answer)
			}
		}
	}
	if hosts != 3 || runtimes == 0 {
		t.Errorf("got %d refusals of the function host and %d of Runtime APIs, want 3 and some", hosts, runtimes)
	}
}

// strike makes a request as any user of the machine can, and returns the status, 0 without an HTTP answer, and the
// error type with the body.
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
