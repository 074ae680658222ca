package session

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/logins"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

// TokenVariable is the environment variable with a token for --server, for programs that nobody signs in for.
const TokenVariable = "SPILLWAY_TOKEN"

// AuthorityVariable is the environment variable with the name of a file of certificates, in PEM, of who has signed that
// of --server; unset are those of the login, or those that this machine trusts.
const AuthorityVariable = "SPILLWAY_TLS_CA"

// Authorities reads the certificates, in PEM, of a file that what names, such as a flag; empty for no file.
func Authorities(what, file string) (string, error) {
	const most = 1 << 20
	if file == "" {
		return "", nil
	}
	text, err := flag.ReadFile(file, most)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
		err = fmt.Errorf("%s has no certificate in PEM", file)
	}
	if err != nil {
		return "", &fault.UsageError{Problem: fmt.Sprintf("%s: %v", what, err), Hint: "give a file of certificates in PEM"}
	}
	return string(text), nil
}

// AuthoritiesOfEnvironment are those that AuthorityVariable names; empty for none.
func AuthoritiesOfEnvironment(t *tool.Tool) (string, error) {
	file, _ := t.Deps.Environment(AuthorityVariable)
	return Authorities(AuthorityVariable, file)
}

// Logins is the file of what servers have let this user in with.
func Logins(t *tool.Tool) (logins.File, error) {
	if home, set := t.Deps.Environment("XDG_CONFIG_HOME"); set && filepath.IsAbs(home) {
		return logins.In(home), nil
	}
	if home, set := t.Deps.Environment("HOME"); set && home != "" {
		return logins.In(filepath.Join(home, ".config")), nil
	}
	return logins.File{}, &fault.UsageError{
		Problem: "neither XDG_CONFIG_HOME nor HOME is set, where logins are kept", Hint: "set one of them",
	}
}

// Server is the URL that --server names; empty where commands ask the stack of the state directory.
func Server(t *tool.Tool) (string, error) {
	if t.Server == "" {
		return "", nil
	}
	server, err := logins.Server(t.Server)
	if err != nil {
		return "", &fault.UsageError{Problem: "--server: " + err.Error()}
	}
	return server, nil
}

// elsewhere returns a client of a server of another machine: with the token of the environment, or else with what it
// has let this user in with.
func elsewhere(t *tool.Tool, server string) (*client.Client, error) {
	file, err := Logins(t)
	if err != nil {
		return nil, err
	}
	login, known, err := file.Get(server)
	if err != nil {
		return nil, err
	}
	token, given := tokenOfEnvironment(t)
	if given {
		login.Token, known = token, true
	}
	authorities, err := AuthoritiesOfEnvironment(t)
	if err != nil {
		return nil, err
	}
	login.CA = cmp.Or(authorities, login.CA)
	if !known {
		return nil, fault.Advise(fmt.Errorf("%s has not let you in", server),
			"sign in with `spillway login --server "+server+"`, or set "+TokenVariable)
	}
	calls, err := client.NewElsewhere(server, login.Token, login.CA)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Path(), err)
	}
	return calls, nil
}

// tokenOfEnvironment is the token that TokenVariable holds.
func tokenOfEnvironment(t *tool.Tool) (token string, given bool) {
	token, _ = t.Deps.Environment(TokenVariable)
	return token, token != ""
}

// refusedHint says what to do when a server does not take what it was shown.
func refusedHint(t *tool.Tool, server string) string {
	if _, given := tokenOfEnvironment(t); given {
		return "it was shown the token in " + TokenVariable + ": set another one, or unset it and sign in with " +
			"`spillway login --server " + server + "`"
	}
	return "`spillway login --server " + server + "` signs in again"
}

// connectElsewhere is Connect for a server of another machine.
func connectElsewhere(ctx context.Context, t *tool.Tool, server string) (*Session, error) {
	calls, err := elsewhere(t, server)
	if err != nil {
		return nil, err
	}
	session := &Session{Client: calls, Server: server}
	fail := func(err error) (*Session, error) {
		calls.Close()
		return nil, err
	}
	probe, cancel := context.WithTimeout(ctx, elsewhereLimit)
	defer cancel()
	session.Stack, err = calls.Stack(probe)
	refused, is := errors.AsType[*web.Error](err)
	switch {
	case err == nil:
	case is && refused.Status == http.StatusUnauthorized:
		return fail(fault.Advise(fmt.Errorf("ask the server %s: %w", server, err),
			refusedHint(t, server)))
	default:
		return fail(fmt.Errorf("ask the server %s: %w", server, err))
	}
	if err := calls.Ready(ctx, sayStarting(t)); err != nil {
		return fail(fmt.Errorf("wait for the server %s: %w", server, err))
	}
	if session.Stack.Version != t.Deps.Version {
		t.Complain("note: the server is version %s, this binary is %s\n", session.Stack.Version, t.Deps.Version)
	}
	return session, nil
}

// elsewhereLimit bounds how long a server of another machine may take to say what it is.
const elsewhereLimit = 15 * time.Second
