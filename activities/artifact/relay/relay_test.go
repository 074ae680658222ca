package relay_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/relay"
	"github.com/spillway-ml/spillway/activities/artifact/storetest"
	"github.com/spillway-ml/spillway/activities/exchange"
)

// serve relays a store until the test ends.
func serve(t *testing.T, store activities.Store) *relay.Server {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	server, err := relay.Listen(t.Context(), relay.Handler(relay.Of(store), logger), "token", logger)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return server
}

func dial(t *testing.T, location string) *relay.Client {
	t.Helper()
	client, err := relay.Dial(location)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestARelayIsTheStoreBehindIt(t *testing.T) {
	t.Parallel()
	files, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, serve(t, files).URL())
	for _, data := range []string{"", "text", strings.Repeat("large", 1<<20)} {
		ref, err := client.Put(t.Context(), strings.NewReader(data))
		if err != nil || ref.Bytes != int64(len(data)) {
			t.Fatalf("Put = %v, %v", ref, err)
		}
		for _, store := range []activities.Store{client, files} {
			if got, err := activities.ReadAll(t.Context(), store, ref.Digest); err != nil || string(got) != data {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
		}
	}
	missing := strings.Repeat("0", 64)
	if _, err := client.Open(t.Context(), missing); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("Open of what is not there: %v", err)
	}
	broken := errors.New("the source broke")
	source := io.MultiReader(strings.NewReader("begun"), iotest.ErrReader(broken))
	if _, err := client.Put(t.Context(), source); !errors.Is(err, broken) {
		t.Errorf("Put of a source that breaks: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Put(ended, strings.NewReader("late")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with a context that has ended: %v", err)
	}
	if err := files.Refuse("the disk is full"); err != nil {
		t.Fatal(err)
	}
	_, err = client.Put(t.Context(), strings.NewReader("more"))
	if !errors.Is(err, activities.ErrNoRoom) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("Put where there is no room: %v", err)
	}
}

func TestWhatIsDamagedBehindARelayIsTold(t *testing.T) {
	t.Parallel()
	files, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, serve(t, files).URL())
	ref, err := client.Put(t.Context(), strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(files.Dir(), ref.Digest[:2], ref.Digest[2:])
	if err := os.WriteFile(path, []byte("tExt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := activities.ReadAll(t.Context(), client, ref.Digest); !errors.Is(err, activities.ErrCorrupt) {
		t.Errorf("read what is damaged: %v", err)
	}
}

// failing breaks in the middle of an artifact, as a connection to S3 does.
type failing struct{ activities.Store }

func (failing) Open(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(io.MultiReader(strings.NewReader("begun"), iotest.ErrReader(errors.New("S3 broke")))), nil
}

func TestAnAnswerThatBreaksIsNoArtifact(t *testing.T) {
	t.Parallel()
	client := dial(t, serve(t, failing{}).URL())
	_, err := activities.ReadAll(t.Context(), client, strings.Repeat("0", 64))
	if err == nil || errors.Is(err, activities.ErrCorrupt) {
		t.Errorf("read: %v, want that the connection broke", err)
	}
}

// TestAttackARelayWithoutItsToken asks as another user of this machine and as a page of another site.
func TestAttackARelayWithoutItsToken(t *testing.T) {
	t.Parallel()
	files, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ref, err := files.Put(t.Context(), strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	known := serve(t, files).URL()
	parsed, err := url.Parse(known)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*http.Request){
		"no credential":   func(*http.Request) {},
		"a wrong token":   func(r *http.Request) { r.SetBasicAuth("artifacts", "guessed") },
		"an empty one":    func(r *http.Request) { r.SetBasicAuth("artifacts", "") },
		"another name":    func(r *http.Request) { r.SetBasicAuth("root", "token") },
		"as a bearer":     func(r *http.Request) { r.Header.Set("Authorization", "Bearer token") },
		"another origin":  func(r *http.Request) { r.SetBasicAuth("artifacts", "token"); r.Header.Set("Origin", "http://x") },
		"a name of DNS":   func(r *http.Request) { r.SetBasicAuth("artifacts", "token"); r.Host = "rebound.example.com" },
		"put by a method": func(r *http.Request) { r.SetBasicAuth("artifacts", "token"); r.Method = http.MethodDelete },
		"a board without": func(r *http.Request) { r.URL.Path = "/boards/group/name" },
		"a server so":     func(r *http.Request) { r.URL.Path = "/server/group/name" },
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			path := map[string]string{http.MethodGet: "/" + ref.Digest, http.MethodPut: "/"}[method]
			request, err := http.NewRequestWithContext(t.Context(), method, "http://"+parsed.Host+path,
				strings.NewReader("more"))
			if err != nil {
				t.Fatal(err)
			}
			change(request)
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			if err := errors.Join(err, answer.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode < 400 || strings.Contains(string(text), "text") {
				t.Errorf("%s: %s is answered %s: %q", name, method, answer.Status, text)
			}
		}
	}
	stranger := parsed
	stranger.User = url.UserPassword("artifacts", "guessed")
	if _, err := dial(t, stranger.String()).Put(t.Context(), strings.NewReader("a")); err == nil ||
		strings.Contains(err.Error(), "guessed") {
		t.Errorf("Put with a wrong token: %v", err)
	}
	for _, location := range []string{
		"http://artifacts:hidden@192.0.2.1:80", "http://127.0.0.1:80", "file:///a", "http://%",
	} {
		if _, err := relay.Dial(location); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("Dial(%q): %v", location, err)
		}
	}
}

func TestARelayIsTheBoardBehindItAndAParameterServer(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T) *relay.Client {
		t.Helper()
		files, err := artifact.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return dial(t, serve(t, files).URL())
	}
	storetest.RunBoard(t, func(t *testing.T) activities.Board {
		t.Helper()
		return open(t)
	})
	storetest.RunBoard(t, func(t *testing.T) activities.Board {
		t.Helper()
		return open(t).Server()
	})
	storetest.RunBoard(t, func(*testing.T) activities.Board { return &exchange.Memory{} })
}
