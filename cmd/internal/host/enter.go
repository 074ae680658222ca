package host

import (
	"bytes"
	"cmp"
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

	"github.com/spillway-ml/spillway/activities/access"
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

	unknown bool // the server, of a version before, does not know a field of what it was sent
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

// Told keeps which servers there are, so that this host finds another when the one that it joined is gone.
func (m Membership) Told(stateDir string, servers []string) error {
	m.Answer.Servers = servers
	return m.write(stateDir)
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
		answer, err = askAny(ctx, server, before.Answer, request)
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

// askAny asks the server at a URL, and where that does not answer the others that this host was told of.
func askAny(
	ctx context.Context, server string, before join.Answer, request join.Request,
) (answer join.Answer, err error) {
	urls := []string{server}
	for _, address := range before.Servers {
		if other := "https://" + address; other != server {
			urls = append(urls, other)
		}
	}
	var first error
	for _, one := range urls {
		at, err := url.Parse(one)
		if err != nil {
			return answer, err
		}
		trust, err := before.Trust(at.Hostname())
		if err != nil {
			return answer, err
		}
		answer, err = ask(ctx, one, before.Token, trust, request)
		if _, away := errors.AsType[*UnreachableError](err); !away {
			return answer, err
		}
		first = cmp.Or(first, err)
	}
	return answer, first
}

// joinWait bounds one request to join.
const joinWait = 15 * time.Second

// ask sends the request to join.
func ask(
	ctx context.Context, server, secret string, trust *tls.Config, request join.Request,
) (answer join.Answer, err error) {
	err = post(ctx, server, join.Path, secret, trust, request, &answer)
	if refused, is := errors.AsType[*RefusedError](err); is && refused.unknown && request != request.First() {
		err = post(ctx, server, join.Path, secret, trust, request.First(), &answer)
	}
	if err == nil && (answer.Token == "" || answer.API == "") {
		err = noServer(server)
	}
	return answer, err
}

// post sends a request to a server that this machine does not know yet, and decodes the answer.
func post(ctx context.Context, server, path, secret string, trust *tls.Config, request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	asking, err := http.NewRequestWithContext(ctx, http.MethodPost, server+path, bytes.NewReader(body))
	if err != nil {
		return err
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
		return unreached(server, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxAsked))
	if err != nil {
		return unreached(server, err)
	}
	if response.StatusCode != http.StatusOK {
		return refused(server, response.StatusCode, text)
	}
	if json.Unmarshal(text, answer) != nil {
		return noServer(server)
	}
	return nil
}

func noServer(server string) error {
	return &RefusedError{
		Problem: "what answers at " + server + " is no server of spillway, or one of another version",
		Hint:    "give the URL that `spillway server --listen` prints",
	}
}

// EnterStack is given the keys of the stack of the server at a URL that CheckServer has returned, and makes them those
// of the state directory, which has none yet. It asks once; errors are as those of Enter.
func EnterStack(
	ctx context.Context, stateDir, server string, token join.Token, request join.ServerRequest,
) error {
	at, err := url.Parse(server)
	if err != nil {
		return err
	}
	var answer join.ServerAnswer
	trust := token.Trust(at.Hostname())
	if err := post(ctx, server, join.ServerPath, token.Secret, trust, request, &answer); err != nil {
		return err
	}
	if answer.Secret == "" {
		return noServer(server)
	}
	return access.TakeKeys(stateDir, answer.Secret, answer.Authority)
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
	problem := "the server at " + server + " does not let this machine in: " + said.Error.Message
	switch {
	case status == http.StatusConflict:
		return &RefusedError{Problem: problem, Hint: said.Error.Hint, Later: true}
	case status == http.StatusBadRequest && strings.Contains(said.Error.Message, "unknown field"):
		return &RefusedError{Problem: problem, Hint: said.Error.Hint, unknown: true}
	case status == http.StatusUnauthorized && said.Error.Hint == "":
		return &RefusedError{Problem: problem, Hint: "take the token anew: `spillway hosts token` on the server prints it"}
	case status >= http.StatusInternalServerError || status == http.StatusTooManyRequests:
		return &UnreachableError{Server: server, Err: errors.New(said.Error.Message)}
	}
	return &RefusedError{Problem: problem, Hint: said.Error.Hint}
}
