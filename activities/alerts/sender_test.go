package alerts_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// soon tries again quickly, for as long as a loaded machine may need.
var soon = alerts.Retry{First: time.Millisecond, Most: 20 * time.Millisecond, For: time.Minute}

func sender(t *testing.T, options alerts.Options) *alerts.Sender {
	t.Helper()
	if options.Retry == (alerts.Retry{}) {
		options.Retry = soon
	}
	s, err := alerts.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ended)
	})
	return s
}

// patience is how long a test waits for what must happen; it decides nothing.
const patience = 5 * time.Minute

func drain(t *testing.T, s *alerts.Sender) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// post is what a receiver got.
type post struct {
	id, contentType, token string
	alert                  alerting.Alert
}

// receiver answers with the statuses in turn, the last one for ever.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	posts    []post // guarded by mu
	statuses []int  // guarded by mu
}

func receive(t *testing.T, statuses ...int) *receiver {
	t.Helper()
	r := &receiver{statuses: statuses}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		got := post{
			id: request.Header.Get("Spillway-Alert"), contentType: request.Header.Get("Content-Type"),
			token: request.Header.Get("Authorization"),
		}
		if err != nil || request.Method != http.MethodPost || json.Unmarshal(body, &got.alert) != nil {
			t.Errorf("%s of %q (%v)", request.Method, body, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		status := r.statuses[0]
		if len(r.statuses) > 1 {
			r.statuses = r.statuses[1:]
		}
		r.posts = append(r.posts, got)
		if status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, p := range r.posts {
		ids = append(ids, p.id)
	}
	return ids
}

func TestAWebhookGetsTheAlertAsJSON(t *testing.T) {
	t.Parallel()
	r := receive(t, http.StatusNoContent)
	s := sender(t, alerts.Options{
		Webhooks: []string{r.URL + "/secret?token=1"},
		Header:   http.Header{"authorization": {"Bearer x"}},
	})
	s.Send(alert("r", 1))
	s.Send(alert("q", 1))
	s.Send(alert("r", 1)) // the same again
	drain(t, s)
	s.Send(alert("r", 2)) // too late
	want := []post{
		{id: "r/deadline_at_risk/1", contentType: "application/json", token: "Bearer x", alert: alert("r", 1)},
		{id: "q/deadline_at_risk/1", contentType: "application/json", token: "Bearer x", alert: alert("q", 1)},
	}
	if diff := cmp.Diff(want, r.posts, cmp.AllowUnexported(post{})); diff != "" {
		t.Errorf("posts (-want +got):\n%s", diff)
	}
}

func TestAnswersDecideWhetherAnAlertIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		statuses []int
		tries    int
	}{
		{"taken", []int{200}, 1},
		{"broken twice, then healed", []int{500, 503, 201}, 3},
		{"asked to slow down", []int{429, 204}, 2},
		{"refused", []int{400, 200}, 1},
		{"gone", []int{410, 200}, 1},
		{"moved: a secret is not sent to another place", []int{302, 200}, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := receive(t, row.statuses...)
			s := sender(t, alerts.Options{Webhooks: []string{r.URL}})
			s.Send(alert("r", 1))
			drain(t, s)
			want := slices.Repeat([]string{"r/deadline_at_risk/1"}, row.tries)
			if diff := cmp.Diff(want, r.ids()); diff != "" {
				t.Errorf("tries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAReceiverThatIsDeadHoldsBackNoOther(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := "http://" + listener.Addr().String() + "/hook"
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	r := receive(t, http.StatusOK)
	s := sender(t, alerts.Options{Webhooks: []string{dead, r.URL}})
	for n := range 10 {
		s.Send(alert("r", n))
	}
	for deadline := time.Now().Add(patience); len(r.ids()) < 10; {
		if time.Now().After(deadline) {
			t.Fatalf("the receiver that lives got %v", r.ids())
		}
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err == nil || !strings.Contains(err.Error(), "10 were not delivered") {
		t.Errorf("Close = %v, want it to say that 10 are left", err)
	}
}

func TestAReceiverThatIsAwayForTooLongMissesTheAlert(t *testing.T) {
	t.Parallel()
	r := receive(t, 503)
	s := sender(t, alerts.Options{
		Webhooks: []string{r.URL},
		Retry:    alerts.Retry{First: time.Millisecond, Most: time.Millisecond, For: 30 * time.Millisecond},
	})
	s.Send(alert("r", 1))
	drain(t, s)
	if tries := len(r.ids()); tries < 1 {
		t.Errorf("%d tries", tries)
	}
}

func TestSendDoesNotWaitForASlowReceiverAndTheOldestOfTheRunMakesRoom(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	var got []string
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		once.Do(func() { close(begun) })
		<-release
		mu.Lock()
		defer mu.Unlock()
		got = append(got, request.Header.Get("Spillway-Alert"))
	}))
	t.Cleanup(slow.Close)
	s := sender(t, alerts.Options{Webhooks: []string{slow.URL}})
	s.Send(alert("first", 0))
	<-begun // from here on nothing leaves the queue, so what Send does to it is certain
	s.Send(alert("quiet", 0))
	for n := range 300 {
		s.Send(alert("loud", n))
	}
	close(release)
	drain(t, s)
	got = slices.Compact(got) // one that was not answered in time is sent again
	if len(got) != 256 || got[0] != "first/deadline_at_risk/0" || got[1] != "quiet/deadline_at_risk/0" {
		t.Fatalf("%d alerts came, the first %v", len(got), got[:min(len(got), 3)])
	}
	for i, id := range got[2:] {
		if want := alert("loud", i+300-254).ID; id != want {
			t.Fatalf("alert %d is %s, want %s: the latest of the run stay", i, id, want)
		}
	}
}

func TestAnAlertOfAnotherRunTakesThePlaceOfTheOldest(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r := receive(t, 200)
	inner := r.Config.Handler
	r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		once.Do(func() { close(begun) })
		<-release
		inner.ServeHTTP(w, request)
	})
	s := sender(t, alerts.Options{Webhooks: []string{r.URL}})
	s.Send(alert("first", 0))
	<-begun
	for n := range 255 {
		s.Send(alert("loud", n))
	}
	s.Send(alert("quiet", 0))
	close(release)
	drain(t, s)
	got := r.ids()
	if len(got) != 256 || got[1] != alert("loud", 1).ID || got[255] != alert("quiet", 0).ID {
		t.Errorf("%d alerts came, the second %s, the last %s", len(got), got[1], got[len(got)-1])
	}
}

func TestNoSecretOfAWebhookIsLogged(t *testing.T) {
	t.Parallel()
	var lines lockedBuffer
	logger := slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := receive(t, 503, 503, 400)
	moved := receive(t, 302)
	s := sender(t, alerts.Options{
		Webhooks: []string{
			strings.Replace(r.URL, "http://", "http://user:hidden1@", 1) + "/services/hidden2?token=hidden3",
			moved.URL + "/hidden4",
			"http://127.0.0.1:1/hidden5",
		},
		Header: http.Header{"Authorization": {"hidden6"}}, Logger: logger,
		Retry: alerts.Retry{First: time.Millisecond, Most: time.Millisecond, For: 100 * time.Millisecond},
	})
	s.Send(alert("r", 1))
	drain(t, s)
	text := lines.String()
	if strings.Contains(text, "hidden") {
		t.Errorf("the log tells a secret:\n%s", text)
	}
	for _, part := range []string{
		"alert given up", "destination=" + strings.TrimPrefix(r.URL, "http://"), "answered 400",
		"a redirect", "destination=127.0.0.1:1",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the log lacks %q:\n%s", part, text)
		}
	}
}

// lockedBuffer is a buffer that several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write adds to the buffer.
func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestRecentIsNewestFirstAndBounded(t *testing.T) {
	t.Parallel()
	s := sender(t, alerts.Options{Earlier: []alerting.Alert{alert("old", 2), alert("old", 1)}})
	s.Send(alert("old", 2)) // known already
	s.Send(alert("r", 3))
	want := []alerting.Alert{alert("r", 3), alert("old", 2), alert("old", 1)}
	for n, want := range map[int][]alerting.Alert{-1: nil, 0: nil, 1: want[:1], 2: want[:2], 9: want} {
		if diff := cmp.Diff(want, s.Recent(n)); diff != "" && len(want)+len(s.Recent(n)) > 0 {
			t.Errorf("the latest %d (-want +got):\n%s", n, diff)
		}
	}
	for n := range 1500 {
		s.Send(alert(fmt.Sprint("r", n), 0))
	}
	if got := s.Recent(5000); len(got) != 1000 || got[0].Run != "r1499" {
		t.Errorf("%d are remembered, the newest of run %s", len(got), got[0].Run)
	}
}

func TestImpossibleWebhooksAreRefusedWithoutRepeatingThem(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"https://hooks.example.com/x": "", "http://localhost:8080": "", "HTTPS://example.com": "",
		"http://[::1]:8080/secret": "",
		"":                         "must begin with http", "secret": "must begin with http",
		"ftp://secret.example.com": "must begin with http",
		"file:///secret":           "must begin with http",
		"https:///secret":          "names no host", "https://:8080/secret": "names no host", "http://secret%zz": "not a URL",
		"http://a b/secret": "not a URL", "http:secret": "names no host",
	} {
		err := alerts.CheckWebhook(address)
		if says == "" {
			if err != nil {
				t.Errorf("%q: %v", address, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", address, err, says)
		}
		if s, err := alerts.New(alerts.Options{Webhooks: []string{address}}); err == nil {
			t.Errorf("%q makes a sender", address)
			drain(t, s)
		}
	}
}

func FuzzCheckWebhook(f *testing.F) {
	for _, address := range []string{
		"https://hooks.example.com/x", "http://", "http://[::1", "https://user:pass@host/?q",
		"//host", "http://host:port",
	} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if alerts.CheckWebhook(address) != nil {
			return
		}
		if _, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, http.NoBody); err != nil {
			t.Errorf("%q passes and makes no request: %v", address, err)
		}
	})
}
