//go:build linux

package hostscheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// port is where a server is reached by other hosts.
const port = "7475"

// stack is an engine on a host, with the apps of the tests.
type stack struct {
	t       testing.TB
	host    *host
	state   string
	process *process
	begin   func() *process
	client  *http.Client
}

func spillway(arguments ...string) program {
	return program{path: filepath.Join(bin, "spillway"), arguments: arguments}
}

// buildProducts builds what users run, and the apps of the tests.
func buildProducts(t *testing.T) {
	t.Helper()
	build(t, "../..", "./cmd/spillway", "./cmd/digits", "./cmd/internal/chaos/app")
}

// serve starts an engine on a host, whose state is in a directory, and waits until it is ready.
func (h *host) serve(p program, state string, environment []string) *stack {
	h.t.Helper()
	s := &stack{t: h.t, host: h, state: state}
	p.environment = environment
	s.begin = func() *process { return h.start(p.arguments[0], p) }
	s.client = &http.Client{
		Transport: &http.Transport{DialContext: h.dial, DisableKeepAlives: true}, Timeout: 20 * time.Second,
	}
	s.process = s.begin()
	s.process.says(" is ready\n")
	return s
}

// serveAlone starts an engine that has Temporal and NATS in its process, by verb: dev, or server.
func (h *host) serveAlone(verb string, flags ...string) *stack {
	h.t.Helper()
	state := filepath.Join(h.dir, "state")
	return h.serve(spillway(append([]string{
		verb, "--state", state, "--no-ui", "--no-burst", "--app", filepath.Join(bin, "digits"),
		"--app", filepath.Join(bin, "app"),
	}, flags...)...), state, nil)
}

// tell runs a command on the engine's host, and returns what it printed. It must succeed.
func (s *stack) tell(arguments ...string) string {
	s.t.Helper()
	return s.host.must(spillway(append(arguments, "--state", s.state)...))
}

// get asks the API, as the owner does.
func (s *stack) get(path string, answer any) error {
	var at struct {
		HTTP string `json:"http"`
	}
	text, err := os.ReadFile(filepath.Join(s.state, "stack.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &at); err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(s.state, "keys", "token"))
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(context.WithoutCancel(s.t.Context()), http.MethodGet, at.HTTP+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// run is the account of a run.
func (s *stack) run(id string) (view ledger.RunView, err error) {
	return view, s.get("/api/v1/runs/"+url.PathEscape(id), &view)
}

// attempts are those of a run, by when they were scheduled.
func (s *stack) attempts(id string) (found []timeline.Attempt, err error) {
	var answer struct {
		Attempts []timeline.Attempt `json:"attempts"`
	}
	return answer.Attempts, s.get("/api/v1/runs/"+url.PathEscape(id)+"/attempts?limit=10000", &answer)
}

// trigger publishes an event, twice, and returns the one run that it starts.
func (s *stack) trigger(pipeline, id, input string) (run string) {
	s.t.Helper()
	return publish([]*stack{s, s}, pipeline, id, input)
}

// publish publishes an event at some engines in turn, and returns the one run that it starts. Where one does not answer
// it is sent again, as who publishes it would.
func publish(at []*stack, pipeline, id, input string) (run string) {
	for _, s := range at {
		s.t.Helper()
		var published struct {
			Run string `json:"run"`
		}
		var text string
		until(s.t, "event "+id+" is published", func() bool {
			var code int
			text, code = s.host.run(spillway("trigger", pipeline, "--id", id, "--input", input, "--json", "--state", s.state))
			if code != 0 {
				s.t.Logf("event %s is not published yet at %s: %s", id, s.host.name, text)
			}
			return code == 0
		})
		if err := json.Unmarshal([]byte(text), &published); err != nil {
			s.t.Fatalf("trigger %s: %v: %s", pipeline, err, text)
		}
		if run != "" && published.Run != run {
			s.t.Errorf("event %s started run %s, and %s when it was sent again", id, run, published.Run)
		}
		run = published.Run
	}
	return run
}

// url is where other hosts reach an engine.
func (s *stack) url() string { return "https://" + net.JoinHostPort(s.host.address, port) }

// leader is the URL of the engine that leads, by the word of this one; empty where it knows of none.
func (s *stack) leader() string {
	var answer struct {
		Servers []struct {
			Address string `json:"address"`
			Leads   bool   `json:"leads"`
		} `json:"servers"`
	}
	if err := s.get("/api/v1/stack", &answer); err != nil {
		return ""
	}
	for _, server := range answer.Servers {
		if server.Leads {
			return server.Address
		}
	}
	return ""
}

// succeeds waits for the end of a run, which must be a good one. An engine that does not answer is asked again.
func (s *stack) succeeds(id string) (view ledger.RunView) {
	s.t.Helper()
	var err error
	until(s.t, "run "+id+" ends", func() bool {
		view, err = s.run(id)
		if s.process.hasEnded() {
			s.t.Fatalf("the engine ended: %v\n%s", s.process.err, s.process.printed())
		}
		if err == nil && view.State == "running" {
			time.Sleep(4 * look) // each look costs the engine something
		}
		return err == nil && view.State != "running"
	})
	if view.State != "succeeded" {
		s.t.Errorf("run %s has %s: %s", id, view.State, view.Error)
	}
	return view
}

// agent is one of a host that joins an engine.
type agent struct {
	*process

	host  *host
	state string
	begin func(joins bool) *process
}

// join starts an agent on a host, which has nothing but the program, and waits until it has joined.
func (s *stack) join(h *host, flags ...string) *agent {
	s.t.Helper()
	a := &agent{host: h, state: filepath.Join(h.dir, "state")}
	token := h.write("token", []byte(s.tell("hosts", "token")), 0o600)
	a.begin = func(joins bool) *process {
		arguments := []string{"agent", "--state", a.state, "--name", h.name}
		if joins {
			arguments = append(arguments, "--join", s.url(), "--token-file", token)
		}
		return h.start("agent", spillway(append(arguments, flags...)...))
	}
	a.process = a.begin(true)
	a.says("has joined")
	return a
}

// again starts an agent again, with what it has from before, and waits until it has joined.
func (a *agent) again() {
	a.process = a.begin(false)
	a.says("has joined")
}

// knows waits until the agent keeps that there is an engine.
func (a *agent) knows(engine *stack) {
	engine.t.Helper()
	until(engine.t, "the agent of "+a.host.name+" knows "+engine.url(), func() bool {
		text, err := os.ReadFile(filepath.Join(a.state, "agent", "joined.json"))
		return err == nil && strings.Contains(string(text), strconv.Quote(strings.TrimPrefix(engine.url(), "https://")))
	})
}

// up waits until the engine has hosts that are up: as many as are named.
func (s *stack) up(names ...string) {
	s.t.Helper()
	until(s.t, fmt.Sprintf("hosts %s are up", names), func() bool {
		var answer struct {
			Hosts []struct {
				Name  string `json:"name"`
				State string `json:"state"`
			} `json:"hosts"`
		}
		if err := s.get("/api/v1/hosts", &answer); err != nil {
			return false
		}
		var up []string
		for _, host := range answer.Hosts {
			if host.State == "up" {
				up = append(up, host.Name)
			}
		}
		slices.Sort(up)
		return slices.Equal(up, names)
	})
}

// interrupt ends a stack and an agent as Ctrl-C does.
const interrupt = syscall.SIGINT

// chain runs the chain of these tests, whose file is on the engine's host, alone in its directory, which is sent along.
// It returns the name of the run.
func (s *stack) chain(id string) (run string) {
	s.t.Helper()
	file, err := os.ReadFile("testdata/rungs.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	input := saltInput(id)
	s.tell("run", s.host.write("chain/rungs.yaml", file, 0o600), "--id", id, "--input", input, "--json", "--quiet")
	return s.trigger("rungs", id, input)
}

// saltInput has a run take no result of another.
func saltInput(id string) string { return fmt.Sprintf(`{"salt": %q}`, id) }
