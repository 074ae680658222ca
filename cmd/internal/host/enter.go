package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/join"
)

// joinedFile is the file of a host's state directory that says which engine it has joined. It holds a secret.
const joinedFile = "joined.json"

// Membership is what a host keeps of the engine that it has joined.
type Membership struct {
	// Server is the URL at which it has joined.
	Server string `json:"server"`
	// Answer is what it was told then.
	Answer join.Answer `json:"answer"`
	// Instance is the start of the host that has joined last, and Place where its state directory was then: a copy of that
	// is elsewhere.
	Instance string `json:"instance,omitempty"`
	Place    string `json:"place,omitempty"`
}

// former is the instance that an agent with the lock of the state directory knows to have ended, with all that it ran;
// empty where it knows of none. Elsewhere than on Linux what an agent has started may outlive it: see package spawn.
func (m Membership) former(stateDir string) string {
	if here, err := place(stateDir); err == nil && m.Place == here && runtime.GOOS == "linux" {
		return m.Instance
	}
	return ""
}

// place names a directory of a machine: no copy of it has the same.
func place(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil || !known {
		return "", fmt.Errorf("what tells this machine from others is not known: %w", err)
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", machine, is.Dev, is.Ino))
	return hex.EncodeToString(digest[:]), nil
}

// ReadMembership returns what the host of a state directory has joined; it wraps fs.ErrNotExist where that is nothing.
func ReadMembership(stateDir string) (m Membership, err error) {
	name := filepath.Join(stateDir, joinedFile)
	info, err := os.Lstat(name)
	if err != nil {
		return m, err
	}
	if !info.Mode().IsRegular() || !safefile.Own(info) || info.Mode().Perm()&0o077 != 0 {
		return m, fmt.Errorf("%s holds a secret, and is not this user's alone: remove it, and join again with a token", name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Answer.Token == "" {
		return m, fmt.Errorf("%s is damaged: remove it, and join again with a token", name)
	}
	return m, nil
}

// write keeps it in the state directory, which belongs to this user alone.
func (m Membership) write(stateDir string) error {
	text, err := json.Marshal(m)
	if err == nil {
		err = safefile.WriteFile(filepath.Join(stateDir, joinedFile), append(text, '\n'), 0o600, false)
	}
	if err != nil {
		return fmt.Errorf("keep what the server has answered: %w", err)
	}
	return nil
}

// RefusedError is why a host was not let in: it helps nobody to ask again as it is.
type RefusedError struct {
	// Problem is what was wrong, Hint what to do.
	Problem, Hint string
	// Later says that it may be let in later: another host of its name lives, which may be what this one was before.
	Later bool
}

// Error is the problem.
func (e *RefusedError) Error() string { return e.Problem }

// Advice is the hint.
func (e *RefusedError) Advice() string { return e.Hint }

// UnreachableError says that no server answered: it may later.
type UnreachableError struct {
	// Server is its URL.
	Server string
	Err    error
}

// Error says what was tried, and the cause.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no server answers at %s: %v", e.Server, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Advice says where to look.
func (e *UnreachableError) Advice() string {
	return "see whether `spillway server --listen` runs there, whether name and port are those that it says, and " +
		"whether a firewall lets them through"
}

// CheckServer returns the URL of a server without a final slash, or why it is none.
func CheckServer(text string) (string, error) {
	at, err := url.Parse(strings.TrimSuffix(text, "/"))
	switch {
	case err != nil || at.Host == "" || at.Hostname() == "":
		return "", errors.New("it is no URL, such as https://server.example.com:7475")
	case at.Scheme != "https":
		return "", fmt.Errorf("it begins with %q, and hosts join over TLS: https://%s", at.Scheme+"://", at.Host)
	case at.User != nil || at.Path != "" || at.RawQuery != "" || at.Fragment != "":
		return "", fmt.Errorf("give scheme, name and port alone: https://%s", at.Host)
	}
	return at.String(), nil
}

// Enter joins the server at a URL that CheckServer has returned, and keeps what it is told in the state directory, of
// which the caller has the lock: with what this host was told before, and where that is nothing, or counts no more,
// with a token, which may be nil. It asks once: the error is a *RefusedError or an *UnreachableError where another
// try is, or may be, of use.
func Enter(
	ctx context.Context, stateDir, server string, token *join.Token, request join.Request,
) (Membership, error) {
	at, err := url.Parse(server)
	if err != nil {
		return Membership{}, err
	}
	before, err := ReadMembership(stateDir)
	request.Former = before.former(stateDir)
	if err != nil && (token == nil || !errors.Is(err, fs.ErrNotExist)) {
		return Membership{}, err
	}
	var answer join.Answer
	if err == nil {
		var trust *tls.Config
		if trust, err = before.Answer.Trust(at.Hostname()); err == nil {
			answer, err = ask(ctx, server, before.Answer.Token, trust, request)
		}
	}
	if refused, is := errors.AsType[*RefusedError](err); err != nil && token != nil && (!is || !refused.Later) {
		answer, err = ask(ctx, server, token.Secret, token.Trust(at.Hostname()), request)
	}
	if err != nil {
		return Membership{}, err
	}
	if err := errors.Join(join.CheckVersions(request.Version, answer.Version),
		join.CheckClocks(request.At, answer.At)); err != nil {
		return Membership{}, &RefusedError{Problem: err.Error()}
	}
	joined := Membership{Server: server, Answer: answer, Instance: request.Instance}
	if joined.Place, err = place(stateDir); err != nil {
		joined.Place = "" // it is not known again: the next start waits until the lease of this one has ended
	}
	return joined, joined.write(stateDir)
}

// joinWait bounds one request to join.
const joinWait = 15 * time.Second

// ask sends the request to join.
func ask(
	ctx context.Context, server, secret string, trust *tls.Config, request join.Request,
) (answer join.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	asking, err := http.NewRequestWithContext(ctx, http.MethodPost, server+join.Path, bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	asking.Header.Set("Content-Type", "application/json")
	asking.Header.Set("Authorization", "Bearer "+secret)
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialWait}).DialContext, TLSClientConfig: trust, TLSHandshakeTimeout: dialWait,
		DisableKeepAlives: true,
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(asking)
	if err != nil {
		return answer, unreached(server, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxAsked))
	if err != nil {
		return answer, unreached(server, err)
	}
	if response.StatusCode != http.StatusOK {
		return answer, refused(server, response.StatusCode, text)
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Token == "" || answer.API == "" {
		return answer, &RefusedError{
			Problem: "what answers at " + server + " is no server of spillway, or one of another version",
			Hint:    "give the URL that `spillway server --listen` prints",
		}
	}
	return answer, nil
}

// unreached tells a connection that was not made, which may be later, from a server that is none of ours.
func unreached(server string, err error) error {
	if failed, is := errors.AsType[*url.Error](err); is { // it repeats the URL
		err = failed.Err
	}
	if errors.Is(err, join.ErrOtherAuthority) {
		return &RefusedError{Problem: err.Error()}
	}
	if named, is := errors.AsType[x509.HostnameError](err); is {
		return &RefusedError{
			Problem: fmt.Sprintf("the server's certificate is not for %s: %v", named.Host, named),
			Hint:    "start the server with --advertise " + named.Host + ", or join it by a name that it has",
		}
	}
	if invalid, is := errors.AsType[x509.CertificateInvalidError](err); is {
		return &RefusedError{
			Problem: fmt.Sprintf("the server's certificate does not count: %v", invalid),
			Hint:    "compare the clocks of both machines (timedatectl), and renew the certificate of the server",
		}
	}
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		return &RefusedError{
			Problem: "the server has another certificate than when this host joined it",
			Hint: "if its credentials were made anew, join again with a token: `spillway hosts token` on the server " +
				"prints it",
		}
	}
	if _, is := errors.AsType[tls.RecordHeaderError](err); is {
		return &RefusedError{
			Problem: "what answers at " + server + " does not speak TLS",
			Hint:    "give the port that `spillway server --listen` prints",
		}
	}
	return &UnreachableError{Server: server, Err: err}
}

// refused tells what it means that a server did not let this host in.
func refused(server string, status int, text []byte) error {
	var said struct {
		Error struct {
			Message, Hint string
		}
	}
	if json.Unmarshal(text, &said) != nil || said.Error.Message == "" {
		said.Error.Message = fmt.Sprintf("it answers %d %s", status, http.StatusText(status))
	}
	problem := "the server at " + server + " does not let this host in: " + said.Error.Message
	switch {
	case status == http.StatusConflict:
		return &RefusedError{Problem: problem, Hint: said.Error.Hint, Later: true}
	case status == http.StatusUnauthorized && said.Error.Hint == "":
		return &RefusedError{Problem: problem, Hint: "take the token anew: `spillway hosts token` on the server prints it"}
	case status >= http.StatusInternalServerError || status == http.StatusTooManyRequests:
		return &UnreachableError{Server: server, Err: errors.New(said.Error.Message)}
	}
	return &RefusedError{Problem: problem, Hint: said.Error.Hint}
}
