package access

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// guarded answers with who asks and what was sent.
var guarded = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if refusal, is := errors.AsType[*Refusal](err); is {
		http.Error(w, refusal.Message, refusal.Status)
		return
	}
	_, _ = fmt.Fprintf(w, "caller %d, body %q, authorization %q", CallerOf(r.Context()), body,
		r.Header.Get("Authorization"))
})

// newGuard needs a token of Prometheus for /metrics, none for /open, JSON for what is posted, and 100 bytes at most.
func newGuard(keys *Keys) *Guard {
	return &Guard{
		Keys: keys,
		Rule: func(r *http.Request) Rule {
			return Rule{
				Needs:   map[string]Caller{"/open": Anyone, "/metrics": Scraper}[r.URL.Path],
				Content: map[string]string{http.MethodPost: "application/json"}[r.Method],
				MaxBody: 100,
			}
		},
	}
}

// request is one that came in at port 7474.
func request(t *testing.T, method, path, body string, header http.Header) *http.Request {
	t.Helper()
	ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7474})
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1:7474"+path, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	for name, values := range header {
		if name == "Host" {
			r.Host = values[0]
			continue
		}
		r.Header[name] = values
	}
	return r
}

func answer(g *Guard, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	g.Wrap(guarded).ServeHTTP(w, r)
	return w
}

// fetched is what a browser says of a request that a page of another site makes.
func fetched(site, mode, dest string, more ...string) http.Header {
	header := http.Header{"Sec-Fetch-Site": {site}, "Sec-Fetch-Mode": {mode}, "Sec-Fetch-Dest": {dest}}
	for i := 0; i < len(more); i += 2 {
		header.Set(more[i], more[i+1])
	}
	return header
}

func TestAttackOnAGuardedPort(t *testing.T) {
	t.Parallel()
	keys, others := open(t, newDir(t)), open(t, newDir(t))
	owner := func(more ...string) http.Header {
		header := http.Header{"Authorization": {"Bearer " + keys.Token()}}
		for i := 0; i < len(more); i += 2 {
			header.Set(more[i], more[i+1])
		}
		return header
	}
	const posted = "application/json"
	for name, test := range map[string]struct {
		method, path, body string
		header             http.Header
		status             int
		contains           string
	}{
		"the owner": {"GET", "/", "", owner(), 200, `caller 0, body "", authorization ""`},
		"the owner by another spelling": {
			"GET", "/", "",
			http.Header{"Authorization": {"bearer  " + keys.Token()}},
			200, "caller 0",
		},
		"the owner posts": {
			"POST", "/", "{}", owner("Content-Type", posted+"; charset=utf-8"),
			200, `body "{}"`,
		},
		"the owner's page": {
			"POST", "/", "{}",
			owner("Content-Type", posted, "Origin", "http://127.0.0.1:7474", "Sec-Fetch-Site", "same-origin"), 200, "caller 0",
		},
		"localhost":                          {"GET", "/", "", owner("Host", "localhost:7474"), 200, "caller 0"},
		"IPv6":                               {"GET", "/", "", owner("Host", "[::1]:7474"), 200, "caller 0"},
		"what is open, without a credential": {"GET", "/open", "", nil, 200, "caller 4"},
		"what is open, with a wrong one": {
			"GET", "/open", "",
			http.Header{"Authorization": {"Bearer x"}},
			200,
			"caller 4",
		},
		"what is open, with a token": {"GET", "/open", "", owner(), 200, "caller 0"},
		"metrics by Prometheus": {
			"GET", "/metrics", "",
			http.Header{"Authorization": {"Bearer " + keys.MetricsToken()}},
			200, "caller 3",
		},
		"metrics by the owner": {"GET", "/metrics", "", owner(), 200, "caller 0"},
		"a link to a page": {
			"GET", "/open", "", fetched("cross-site", "navigate", "document"), 200,
			"caller 4",
		},
		"nobody": {"GET", "/", "", nil, 401, "spillway open"},
		"nobody posts": {
			"POST", "/", "{}",
			http.Header{"Content-Type": {posted}},
			401,
			"no credential",
		},
		"nobody reads metrics": {"GET", "/metrics", "", nil, 401, "no credential"},
		"a token of another directory": {
			"GET", "/", "",
			http.Header{"Authorization": {"Bearer " + others.Token()}},
			401, "not one of this engine's",
		},
		"an empty token": {
			"GET", "/", "",
			http.Header{"Authorization": {"Bearer "}},
			401,
			"not one of this engine's",
		},
		"a longer token": {
			"GET", "/", "", owner("Authorization", "Bearer "+keys.Token()+"x"),
			401, "not one of this engine's",
		},
		"the token as a password": {
			"GET", "/", "", owner("Authorization", "Basic "+keys.Token()), 401,
			"not one of this engine's",
		},
		"the token of a build": {
			"GET", "/", "",
			owner("Authorization", "Bearer "+keys.BuildToken("digits@0")), 401, "not one of this engine's",
		},
		"Prometheus asks for more": {
			"GET", "/", "",
			http.Header{"Authorization": {"Bearer " + keys.MetricsToken()}},
			403, "/metrics and nothing else",
		},
		"a rebound name": {
			"GET", "/open", "", owner("Host", "evil.example:7474"), 403,
			"evil.example",
		},
		"a rebound name that begins like an address": {
			"GET", "/open", "", owner("Host", "127.0.0.1.evil.example:7474"), 403,
			"loopback",
		},
		"a name below localhost": {
			"GET", "/open", "", owner("Host", "evil.localhost:7474"), 403,
			"loopback",
		},
		"an address of the world": {"GET", "/open", "", owner("Host", "10.0.0.1:7474"), 403, "loopback"},
		"another port":            {"GET", "/open", "", owner("Host", "127.0.0.1:7475"), 403, "7475"},
		"no port":                 {"GET", "/open", "", owner("Host", "127.0.0.1"), 403, "127.0.0.1:7474"},
		"no host":                 {"GET", "/open", "", owner("Host", ""), 403, "loopback"},
		"a page of elsewhere": {
			"POST", "/open", "{}",
			owner("Content-Type", posted, "Origin", "https://evil.example"), 403, "evil.example",
		},
		"a page without an origin": {
			"POST", "/open", "{}", owner("Content-Type", posted, "Origin", "null"),
			403, "null",
		},
		"a page of another port": {
			"GET", "/open", "", owner("Origin", "http://127.0.0.1:9999"), 403,
			"9999",
		},
		"a script of elsewhere": {
			"GET", "/open", "", fetched("cross-site", "no-cors", "script"), 403,
			"cross-site",
		},
		"a frame of elsewhere": {
			"GET", "/open", "", fetched("cross-site", "navigate", "iframe"), 403,
			"cross-site",
		},
		"a form of elsewhere": {
			"POST", "/open", "a=b",
			fetched("cross-site", "navigate", "document", "Content-Type", "text/plain"), 403, "cross-site",
		},
		"a fetch of another port": {
			"GET", "/open", "", fetched("same-site", "cors", "empty"), 403,
			"same-site",
		},
		"a form": {
			"POST", "/", "a=b",
			owner("Content-Type", "application/x-www-form-urlencoded"), 415, "application/json",
		},
		"plain text": {
			"POST", "/", "{}", owner("Content-Type", "text/plain"), 415,
			"application/json",
		},
		"a post without a type": {"POST", "/", "{}", owner(), 415, "application/json"},
		"a large body": {
			"POST", "/", strings.Repeat("x", 101), owner("Content-Type", posted),
			413, "larger",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(newGuard(keys), request(t, test.method, test.path, test.body, test.header))
			if got.Code != test.status || !strings.Contains(got.Body.String(), test.contains) {
				t.Errorf("got %d %s, want %d with %q", got.Code, got.Body, test.status, test.contains)
			}
			if text := got.Body.String(); strings.Contains(text, keys.Token()) || strings.Contains(text, keys.MetricsToken()) {
				t.Errorf("the answer has a token: %s", text)
			}
			if challenge := got.Header().Get("WWW-Authenticate"); (challenge != "") != (test.status == http.StatusUnauthorized) {
				t.Errorf("status %d with the challenge %q", test.status, challenge)
			}
		})
	}
	t.Run("a request through no port", func(t *testing.T) {
		t.Parallel()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:7474/open", nil)
		if got := answer(newGuard(keys), r); got.Code != http.StatusForbidden {
			t.Errorf("got %d, want %d", got.Code, http.StatusForbidden)
		}
	})
	t.Run("a guard that was not configured", func(t *testing.T) {
		t.Parallel()
		if got := answer(&Guard{}, request(t, http.MethodGet, "/", "", owner())); got.Code != http.StatusUnauthorized {
			t.Errorf("got %d, want %d", got.Code, http.StatusUnauthorized)
		}
	})
}

// TestOverTLSOnlyHostsAskByOtherNames has a server asked by its own name and by that of another one, which a host has
// joined.
func TestOverTLSOnlyHostsAskByOtherNames(t *testing.T) {
	t.Parallel()
	keys := open(t, newDir(t))
	g := newGuard(keys)
	g.Names = []string{"one.example.com"}
	g.Hosts = func(token string) (string, bool) { return "gpu-1", token == "gpu-1's" }
	g.Rule = func(*http.Request) Rule { return Rule{Hosts: true} }
	for name, test := range map[string]struct {
		host, authorization string
		status              int
	}{
		"the owner by its own name":     {"one.example.com", "Bearer " + keys.Token(), http.StatusOK},
		"a host by its own name":        {"one.example.com:7475", "Bearer gpu-1's", http.StatusOK},
		"a host by another's":           {"two.example.com:7475", "Bearer gpu-1's", http.StatusOK},
		"the owner by another's":        {"two.example.com:7475", "Bearer " + keys.Token(), http.StatusMisdirectedRequest},
		"a wrong token by another's":    {"two.example.com:7475", "Bearer gpu-2's", http.StatusMisdirectedRequest},
		"without a token by another's":  {"two.example.com:7475", "", http.StatusMisdirectedRequest},
		"another credential of a token": {"two.example.com:7475", "Basic gpu-1's", http.StatusMisdirectedRequest},
	} {
		r := request(t, http.MethodGet, "/", "", http.Header{"Host": {test.host}, "Authorization": {test.authorization}})
		r.TLS = &tls.ConnectionState{}
		if w := answer(g, r); w.Code != test.status {
			t.Errorf("%s: got %d %s, want %d", name, w.Code, w.Body, test.status)
		}
	}
}

func TestSessionsLastAndEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys, others := open(t, newDir(t)), open(t, newDir(t))
		cookieOf := func(w *httptest.ResponseRecorder) *http.Cookie {
			for _, cookie := range w.Result().Cookies() {
				return cookie
			}
			return nil
		}
		ask := func(cookie *http.Cookie) *httptest.ResponseRecorder {
			r := request(t, http.MethodGet, "/", "", nil)
			r.AddCookie(cookie)
			return answer(newGuard(keys), r)
		}
		w := httptest.NewRecorder()
		keys.SetSession(w, false)
		cookie := cookieOf(w)
		if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || strings.Contains(cookie.Value, keys.Token()) {
			t.Errorf("the cookie is %+v, want one that no script reads and no other site sends, and not the token", cookie)
		}
		got := ask(cookie)
		if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), "caller 0") || cookieOf(got) != nil {
			t.Errorf("with a new session: got %d %s, cookie %v; want the owner, and no other cookie", got.Code, got.Body,
				cookieOf(got))
		}
		time.Sleep(sessionLife - time.Minute)
		got = ask(cookie)
		renewed := cookieOf(got)
		if got.Code != http.StatusOK || renewed == nil || renewed.Value == cookie.Value {
			t.Fatalf("with an old session: got %d, cookie %v; want another", got.Code, renewed)
		}
		time.Sleep(time.Hour)
		if got := ask(cookie); got.Code != http.StatusUnauthorized {
			t.Errorf("with a session that is over: got %d, want %d", got.Code, http.StatusUnauthorized)
		}
		if got := ask(renewed); got.Code != http.StatusOK {
			t.Errorf("with its successor: got %d, want %d", got.Code, http.StatusOK)
		}
		w = httptest.NewRecorder()
		others.SetSession(w, false)
		foreign := cookieOf(w)
		if foreign.Name == renewed.Name {
			t.Error("two state directories have one cookie: each logs the other out")
		}
		for name, value := range map[string]string{
			"of another directory": foreign.Value, "the token": keys.Token(), "empty": "", "cut": renewed.Value[1:],
			"later": keys.session(time.Now().Add(time.Hour))[:11] + renewed.Value[11:],
		} {
			if got := ask(&http.Cookie{Name: renewed.Name, Value: value}); got.Code != http.StatusUnauthorized {
				t.Errorf("with the session %q (%s): got %d, want %d", value, name, got.Code, http.StatusUnauthorized)
			}
		}
	})
}

func TestALoginIsForOneBrowserAndMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logins Logins
		code := logins.Code("ada")
		redeem := func(code string) bool {
			of, known := logins.Redeem(code)
			return known && of == "ada"
		}
		if redeem("") || redeem(code+"x") || !redeem(code) || redeem(code) {
			t.Error("a code works not exactly once")
		}
		late := logins.Code("ada")
		time.Sleep(loginLife)
		if redeem(late) {
			t.Error("a code works after its time")
		}
		first := logins.Code("")
		time.Sleep(time.Second)
		second := logins.Code("")
		for range 10 * mostLogins { // of somebody else
			logins.Code("ada")
		}
		if len(logins.codes) != mostLogins+2 {
			t.Errorf("%d codes are kept, want %d of each at most", len(logins.codes), mostLogins)
		}
		for range mostLogins - 1 {
			time.Sleep(time.Millisecond)
			logins.Code("")
		}
		if _, known := logins.Of(first); known {
			t.Error("who has many has the oldest yet")
		}
		for range 2 { // which looks and takes nothing
			if of, known := logins.Of(second); of != "" || !known {
				t.Errorf("a code that is not the oldest is of %q, %t", of, known)
			}
		}
	})
}

// pipes is a listener whose connections are pipes, so that a test decides over time.
type pipes struct {
	made   chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7474} }

// pipeEnd says of a pipe what a connection says of itself.
type pipeEnd struct{ net.Conn }

func (pipeEnd) LocalAddr() net.Addr { return (*pipes)(nil).Addr() }

// serve serves the guard; dial makes connections to it.
func serve(t *testing.T, g *Guard, handler http.Handler) (dial func() net.Conn) {
	t.Helper()
	listener := &pipes{made: make(chan net.Conn), closed: make(chan struct{})}
	server := NewServer(g.Wrap(handler), slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return func() net.Conn {
		client, server := net.Pipe()
		listener.made <- pipeEnd{server}
		return client
	}
}

// TestAttackWithBodiesThatDoNotCome sends the half of a body on many connections: each is answered, and closed, when
// its time is over.
func TestAttackWithBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := open(t, newDir(t))
		dial := serve(t, newGuard(keys), guarded)
		for name, authorization := range map[string]string{
			"by the owner": "Bearer " + keys.Token(),
			"by nobody":    "Bearer x",
		} {
			began := time.Now()
			ended := make(chan string)
			const many = 20
			for range many {
				connection := dial()
				go func() {
					_, _ = fmt.Fprintf(connection, "POST / HTTP/1.1\r\nHost: 127.0.0.1:7474\r\nAuthorization: %s\r\n"+
						"Content-Type: application/json\r\nContent-Length: 90\r\n\r\nhalf of", authorization)
					text, _ := io.ReadAll(connection) // until the server closes it
					ended <- string(text)
				}()
			}
			want := map[string]string{"by the owner": "408 Request Timeout", "by nobody": "401 Unauthorized"}[name]
			for range many {
				if text := <-ended; !strings.Contains(text, want) {
					t.Errorf("half a body %s: got %q, want %q", name, text, want)
				}
			}
			if took := time.Since(began); took > bodyPatience+time.Second {
				t.Errorf("half bodies %s were held for %s, want %s at most", name, took, bodyPatience)
			}
		}
	})
}

// TestASlowUploadAndALongAnswerAreWaitedFor and a body that is no upload is not, once it has trickled for two minutes.
func TestASlowUploadAndALongAnswerAreWaitedFor(t *testing.T) {
	t.Parallel()
	for _, upload := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			keys := open(t, newDir(t))
			guard := newGuard(keys)
			guard.Rule = func(*http.Request) Rule { return Rule{Upload: upload} }
			began, refused := time.Now(), time.Duration(0)
			long := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if no := (*Refusal)(nil); !upload && errors.As(err, &no) {
					refused = time.Since(began)
					http.Error(w, no.Message, no.Status)
					return
				}
				if err != nil {
					t.Error(err)
				}
				select {
				case <-time.After(10 * bodyPatience): // as a stream does
				case <-r.Context().Done():
					t.Error("the request was given up while it was answered")
				}
				_, _ = w.Write(body)
			})
			connection := serve(t, guard, long)()
			body := strings.Repeat("x", 20)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = fmt.Fprintf(connection, "POST / HTTP/1.1\r\nHost: 127.0.0.1:7474\r\nAuthorization: Bearer %s\r\n"+
					"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", keys.Token(), len(body))
				for i := range body {
					time.Sleep(bodyPatience - time.Second)
					if _, err := io.WriteString(connection, body[i:i+1]); err != nil {
						return // it was given up
					}
				}
			}()
			text, err := io.ReadAll(connection)
			switch {
			case upload && (err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 200") ||
				!strings.HasSuffix(string(text), body)):
				t.Errorf("got %q, %v; want the body back", text, err)
			case !upload && (!strings.HasPrefix(string(text), "HTTP/1.1 408") || refused != bodyPatiences*bodyPatience):
				t.Errorf("what trickles and is no upload: got %q after %s, want a refusal after %s", text, refused,
					bodyPatiences*bodyPatience)
			}
			_ = connection.Close()
			<-sent
		})
	}
}

// TestAttackWithAnswersThatNobodyTakes asks for long answers and takes nothing of them, by a handler that writes and by
// one that copies: each ends when its time is over. Who takes them slowly, or waits for what a handler has to say yet,
// has them whole, and another on the same connection.
func TestAttackWithAnswersThatNobodyTakes(t *testing.T) {
	t.Parallel()
	const pieces, piece = 40, 1 << 16
	for name, answer := range map[string]func(w http.ResponseWriter) error{
		"written": func(w http.ResponseWriter) error {
			for range pieces {
				if _, err := w.Write(make([]byte, piece)); err != nil {
					return err
				}
			}
			return nil
		},
		"copied": func(w http.ResponseWriter) error {
			_, err := io.CopyN(w, zeros{}, pieces*piece)
			return err
		},
		"with pauses": func(w http.ResponseWriter) error {
			for range pieces {
				time.Sleep(2 * bodyPatience)
				if _, err := w.Write(make([]byte, piece)); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		for _, taken := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				keys := open(t, newDir(t))
				ended := make(chan error, 2)
				dial := serve(t, newGuard(keys), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					ended <- answer(w)
				}))
				connection := dial()
				defer func() { _ = connection.Close() }()
				ask := func() {
					_, _ = fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: 127.0.0.1:7474\r\nAuthorization: Bearer %s\r\n\r\n",
						keys.Token())
				}
				ask()
				began := time.Now()
				if !taken {
					if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("%s: the handler ends with %v, want a deadline", name, err)
					}
					if took := time.Since(began); took > 5*bodyPatience {
						t.Errorf("%s: it was held for %s", name, took)
					}
					return
				}
				reader := bufio.NewReader(connection)
				for _, again := range []bool{true, false} {
					got, err := http.ReadResponse(reader, nil) //nolint:bodyclose // the connection is closed
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					read := 0
					for buffer := make([]byte, 4096); err == nil; {
						var n int
						n, err = got.Body.Read(buffer)
						if read += n; read%piece == 0 {
							time.Sleep(bodyPatience / 10) // slower than the whole may take in one piece
						}
					}
					if err != io.EOF || read != pieces*piece { //nolint:errorlint // as it is read
						t.Errorf("%s: got %d bytes and %v, want %d", name, read, err, pieces*piece)
					}
					if err := <-ended; err != nil {
						t.Errorf("%s: the handler ends with %v", name, err)
					}
					if again {
						time.Sleep(2*bodyPatience + time.Second) // the deadline of the answer before has passed
						ask()
					}
				}
			})
		}
	}
}

// zeros is a source without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func BenchmarkGuard(b *testing.B) {
	keys, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	handler := (&Guard{Keys: keys}).Wrap(nothing)
	ctx := context.WithValue(b.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7474})
	for name, h := range map[string]http.Handler{"guarded": handler, "bare": nothing} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:7474/", nil)
				r.Header.Set("Authorization", "Bearer "+keys.Token())
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
