package host

import (
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/join"
)

// secret is one of a token, which no error may repeat.
const secret = "a-secret-of-the-server"

// answering is a server that answers requests to join with what answer returns, and its token.
func answering(
	t *testing.T, answer func(bearer string, request join.Request) (status int, body any),
) (server *httptest.Server, token *join.Token) {
	t.Helper()
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request join.Request
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != join.Path {
			t.Errorf("%s was asked, %v", r.URL.Path, err)
		}
		status, body := answer(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), request)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // of handshakes that shall fail
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, &join.Token{Authority: sha256.Sum256(server.Certificate().Raw), Secret: secret}
}

// answerOf lets a host in.
func answerOf(server *httptest.Server, token string) join.Answer {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return join.Answer{
		Host: "h1", Token: token, API: server.URL, Temporal: "127.0.0.1:1", NATS: []string{"tls://127.0.0.1:1"},
		CA: string(authority), At: time.Now(),
	}
}

func TestAHostShowsTheTokenOnceAndItsOwnLater(t *testing.T) {
	t.Parallel()
	var shown []string
	var server *httptest.Server
	removed := false
	server, token := answering(t, func(bearer string, request join.Request) (int, any) {
		shown = append(shown, bearer)
		if request.Host != "h1" || request.Instance == "" {
			t.Errorf("got %+v", request)
		}
		if removed && bearer != secret {
			return http.StatusUnauthorized, map[string]any{"error": map[string]string{"message": "it was removed"}}
		}
		return http.StatusOK, answerOf(server, "own")
	})
	dir := t.TempDir()
	request := join.Request{Host: "h1", Instance: "i1", At: time.Now()}
	if _, err := Enter(t.Context(), dir, server.URL, nil, request); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a token, and joined to nothing: got %v", err)
	}
	for range 2 {
		joined, err := Enter(t.Context(), dir, server.URL, token, request)
		if err != nil || joined.Answer.Token != "own" {
			t.Fatalf("got %+v, %v", joined, err)
		}
	}
	if _, err := Enter(t.Context(), dir, server.URL, nil, request); err != nil {
		t.Error(err)
	}
	removed = true
	if _, err := Enter(t.Context(), dir, server.URL, token, request); err != nil {
		t.Errorf("a host that was removed, with a token: %v", err)
	}
	if want := []string{secret, "own", "own", "own", secret}; strings.Join(shown, " ") != strings.Join(want, " ") {
		t.Errorf("shown were %v, want %v", shown, want)
	}
	info, err := os.Stat(filepath.Join(dir, joinedFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("what is kept: %v, %v; want a file that only its owner reads", info, err)
	}
	if err := os.Chmod(filepath.Join(dir, joinedFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMembership(dir); err == nil || !strings.Contains(err.Error(), "holds a secret") {
		t.Errorf("a file that others can read: got %v", err)
	}
}

func TestWhyAHostIsNotLetIn(t *testing.T) {
	t.Parallel()
	refusal := func(message, hint string) any {
		return map[string]any{"error": map[string]string{"message": message, "hint": hint}}
	}
	for name, test := range map[string]struct {
		status int
		body   any
		edit   func(server *string, token *join.Token)
		want   string // in the error and its hint
		later  bool   // it is of use to ask again as it is
	}{
		"a wrong token": {
			http.StatusUnauthorized, refusal("the token does not count", ""), nil,
			"spillway hosts token", false,
		},
		"another host of the name lives": {
			http.StatusConflict, refusal("host h1 lives already", "give another --name"),
			nil, "--name", true,
		},
		"too many tries": {http.StatusTooManyRequests, refusal("wait a minute", ""), nil, "wait a minute", true},
		"no server of ours": {
			http.StatusOK, map[string]string{"hello": "world"}, nil, "no server of spillway", false,
		},
		"another authority": {
			http.StatusOK, nil, func(_ *string, token *join.Token) { token.Authority[0]++ },
			"another certificate", false,
		},
		"another name": {
			http.StatusOK, nil, func(server *string, _ *join.Token) {
				*server = strings.Replace(*server, "127.0.0.1", "localhost", 1)
			}, "--advertise localhost", false,
		},
		"a clock that is apart": {
			http.StatusOK,
			join.Answer{Token: "own", API: "https://x", At: time.Now().Add(-time.Hour)},
			nil, "ahead of the server's", false,
		},
		"a version that is too new": {
			http.StatusOK,
			join.Answer{Token: "own", API: "https://x", At: time.Now(), Version: "v0.1.0"},
			nil, "install v0.1.0", false,
		},
		"nobody listens": {
			http.StatusOK, nil, func(server *string, _ *join.Token) { *server = "https://127.0.0.1:1" },
			"no server answers", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, token := answering(t, func(string, join.Request) (int, any) { return test.status, test.body })
			at := server.URL
			if test.edit != nil {
				test.edit(&at, token)
			}
			dir := t.TempDir()
			_, err := Enter(t.Context(), dir, at, token,
				join.Request{Host: "h1", Instance: "i1", Version: "v0.9.0", At: time.Now()})
			if err == nil {
				t.Fatal("it was let in")
			}
			text := err.Error()
			if advised, is := errors.AsType[interface {
				error
				Advice() string
			}](err); is {
				text += "\n" + advised.Advice()
			}
			if !strings.Contains(text, test.want) || strings.Contains(text, secret) {
				t.Errorf("got %s; want %q in it, and no secret", text, test.want)
			}
			refused, is := errors.AsType[*RefusedError](err)
			if later := !is || refused.Later; later != test.later {
				t.Errorf("to be asked again: got %t of %v, want %t", later, err, test.later)
			}
			if _, err := os.Stat(filepath.Join(dir, joinedFile)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something was kept: %v", err)
			}
		})
	}
}

func TestWhatIsTheURLOfAServer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://server.example.com:7475": "", "https://10.0.0.7:7475/": "", "https://[::1]:7475": "",
		"http://10.0.0.7:7475": "join over TLS", "10.0.0.7:7475": "no URL", "server": "no URL", "": "no URL",
		"https://u:p@x:1": "name and port alone", "https://x:1/api": "name and port alone", "https://": "no URL",
	} {
		got, err := CheckServer(text)
		if want == "" && (err != nil || strings.HasSuffix(got, "/")) || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestAHostKnowsWhichOfItselfHasEnded: who has the lock of the directory in which it has joined does; a copy of that
// directory knows nothing of the original.
func TestAHostKnowsWhichOfItselfHasEnded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere than on Linux what an agent has started may outlive it")
	}
	var former []string
	var server *httptest.Server
	server, token := answering(t, func(_ string, request join.Request) (int, any) {
		former = append(former, request.Former)
		return http.StatusOK, answerOf(server, "own")
	})
	dir, elsewhere := t.TempDir(), t.TempDir()
	enter := func(dir, instance string) {
		t.Helper()
		request := join.Request{Host: "h1", Instance: instance, At: time.Now()}
		if _, err := Enter(t.Context(), dir, server.URL, token, request); err != nil {
			t.Fatal(err)
		}
	}
	enter(dir, "i1")
	enter(dir, "i2")
	kept, err := os.ReadFile(filepath.Join(dir, joinedFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(elsewhere, joinedFile), kept, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	enter(elsewhere, "i3")
	enter(dir, "i4")
	if got := strings.Join(former, ","); got != ",i1,,i2" {
		t.Errorf("the instances that have ended are %q", got)
	}
}

// TestAHostJoinsAServerOfTheFirstVersion has one that refuses each field that it does not know.
func TestAHostJoinsAServerOfTheFirstVersion(t *testing.T) {
	t.Parallel()
	var asked []join.Request
	var server *httptest.Server
	server, token := answering(t, func(_ string, request join.Request) (int, any) {
		asked = append(asked, request)
		if request != request.First() {
			return http.StatusBadRequest, map[string]any{"error": map[string]string{
				"message": `the body is refused: json: unknown field "proves"`,
			}}
		}
		return http.StatusOK, answerOf(server, "own")
	})
	request := join.Request{Host: "h1", Instance: "i1", Proves: true, At: time.Now()}
	joined, err := Enter(t.Context(), t.TempDir(), server.URL, token, request)
	if err != nil || joined.Answer.Token != "own" || len(asked) != 2 || asked[1].Instance != "i1" {
		t.Errorf("got %+v, %v, asked as %+v; want that it joins when it says no more than that knows", joined, err, asked)
	}
}
