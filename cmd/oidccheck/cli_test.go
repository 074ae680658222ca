package oidccheck

import (
	"bytes"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

// commandLine runs commands as somebody at a machine of their own.
type commandLine struct {
	t    *testing.T
	home string
	more map[string]string // of the environment
}

func (c *commandLine) run(stderr io.Writer, args ...string) (code int, stdout string) {
	c.t.Helper()
	var out bytes.Buffer
	deps := cli.Deps{Version: "v0.1.0", Environment: func(name string) (string, bool) {
		if name == "HOME" {
			return c.home, true
		}
		value, set := c.more[name]
		return value, set
	}}
	code = cli.Execute(c.t.Context(), args, &out, stderr, deps)
	return code, out.String()
}

// prompts hands on the first link that a command prints.
type prompts struct {
	links chan string
	once  sync.Once
	text  lines
}

// Write implements io.Writer.
func (p *prompts) Write(text []byte) (int, error) {
	if _, after, found := strings.Cut(string(text), "http://"); found {
		link, _, _ := strings.Cut(after, "\n")
		p.once.Do(func() { p.links <- "http://" + link })
	}
	return p.text.Write(text)
}

func TestSomebodySignsInAtTheCommandLine(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles})
	stack.provider.Join("ada", "vision")
	server := stack.servers[0]
	line := &commandLine{t: t, home: t.TempDir()}
	var refused bytes.Buffer
	if code, _ := line.run(&refused, "runs", "--server", server.URL); code != 1 ||
		!strings.Contains(refused.String(), "spillway login --server "+server.URL) {
		t.Errorf("a command before the login ends with %d: %s", code, &refused)
	}
	said := &prompts{links: make(chan string, 1)}
	var working sync.WaitGroup
	var code int
	var out string
	working.Go(func() { code, out = line.run(said, "login", "--server", server.URL) })
	b := newBrowser(t)
	confirm := b.get(b.signIn(<-said.links, "ada"))
	_, secret, _ := strings.Cut(confirm.body, `name="secret" value="`)
	secret, _, _ = strings.Cut(secret, `"`)
	_, userCode, _ := strings.Cut(confirm.body, `name="code" value="`)
	userCode, _, _ = strings.Cut(userCode, `"`)
	b.post(server.URL+"/sign-in/device", url.Values{"code": {userCode}, "secret": {secret}, "answer": {"let"}})
	working.Wait()
	if code != 0 || !strings.Contains(out, "as ada@example.com, operator of team vision, until") {
		t.Fatalf("login ends with %d: %s%s", code, out, &said.text)
	}
	file := filepath.Join(line.home, ".config", "spillway", "logins.json")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what was given is kept in mode %v, %v; want 0600", info.Mode(), err)
	}
	line.more = map[string]string{"SPILLWAY_SERVER": server.URL}
	var complained bytes.Buffer
	if code, out := line.run(&complained, "whoami"); code != 0 ||
		!strings.HasPrefix(out, "ada@example.com, operator of team vision\nsubject ada of "+stack.provider.Issuer+"\n") {
		t.Errorf("whoami ends with %d: %s%s", code, out, &complained)
	}
	if code, out := line.run(&complained, "runs"); code != 0 {
		t.Errorf("runs ends with %d: %s%s", code, out, &complained)
	}
	complained.Reset()
	if code, _ := line.run(&complained, "token", "list"); code != 1 ||
		!strings.Contains(complained.String(), "an operator's token") {
		t.Errorf("what an admin alone may ask ends with %d: %s", code, &complained)
	}
	if code, out := line.run(&complained, "logout"); code != 0 || !strings.HasPrefix(out, "signed out at ") {
		t.Errorf("logout ends with %d: %s%s", code, out, &complained)
	}
	if left := server.Sessions.All(); len(left) > 0 {
		t.Errorf("after the logout there are %d sessions", len(left))
	}
	line.more["SPILLWAY_TOKEN"] = stack.keys.Token()
	if code, out := line.run(&complained, "whoami"); code != 0 || !strings.HasPrefix(out, "owner, admin\n") {
		t.Errorf("whoami with a token ends with %d: %s%s", code, out, &complained)
	}
}
