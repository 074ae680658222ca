package web_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// assetPattern finds what the document loads.
var assetPattern = regexp.MustCompile(`(?:src|href)="([^"]*)"`)

func askPage(t *testing.T, method, path string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	maps.Copy(request.Header, header)
	recorder := httptest.NewRecorder()
	web.NewPage().ServeHTTP(recorder, request)
	return recorder
}

func TestEachViewIsAnsweredWithTheDocument(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/runs/digits-1", "/runs/a%2Fb", "/decisions?stage=train", "/capacity"} {
		answer := askPage(t, http.MethodGet, path, nil)
		if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), `<div id="app">`) {
			t.Errorf("%s: status %d, want the document; run `npm run build` in ui", path, answer.Code)
		}
		if got := answer.Header().Get("Content-Type"); got != "text/html; charset=utf-8" {
			t.Errorf("%s is %q, want HTML", path, got)
		}
		if got := answer.Header().Get("Cache-Control"); got != "no-cache" {
			t.Errorf("%s may be kept (%q), want that it is asked for again: it names the files of this build", path, got)
		}
	}
}

func TestWhatTheDocumentLoadsIsThereWithItsTypeAndMayBeKept(t *testing.T) {
	t.Parallel()
	document := askPage(t, http.MethodGet, "/", nil).Body.String()
	loaded := assetPattern.FindAllStringSubmatch(document, -1)
	if len(loaded) < 3 {
		t.Fatalf("the document loads %v, want a script, a style sheet and an icon", loaded)
	}
	types := map[string]string{
		".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
		".svg": "image/svg+xml",
	}
	for _, match := range loaded {
		path := match[1]
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
			t.Errorf("the document loads %s, want only what this server has", path)
			continue
		}
		answer := askPage(t, http.MethodGet, path, nil)
		if want := types[filepath.Ext(path)]; answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != want ||
			answer.Body.Len() == 0 {
			t.Errorf("%s: status %d, type %q, %d bytes; want %q", path, answer.Code, answer.Header().Get("Content-Type"),
				answer.Body.Len(), want)
		}
		if kept := strings.Contains(answer.Header().Get("Cache-Control"), "immutable"); kept !=
			strings.HasPrefix(path, "/assets/") {
			t.Errorf("%s: Cache-Control %q; only names with a digest may be kept for ever", path,
				answer.Header().Get("Cache-Control"))
		}
	}
}

func TestNothingFromElsewhereMayBeLoaded(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/favicon.svg", "/nowhere"} {
		header := askPage(t, http.MethodGet, path, nil).Header()
		policy := header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'self'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q, want only this server", path, policy)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: a browser may guess its type", path)
		}
	}
}

func TestWhatIsMissingIsNotAnsweredWithTheDocument(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/assets/index-old.js", "/runs/", "/nowhere", "/dist/index.html", "/../page.go",
		"/assets",
	} {
		if answer := askPage(t, http.MethodGet, path, nil); answer.Code != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", path, answer.Code)
		}
	}
}

func TestThePageIsOnlyRead(t *testing.T) {
	t.Parallel()
	if answer := askPage(t, http.MethodPost, "/", nil); answer.Code != http.StatusMethodNotAllowed ||
		answer.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: status %d, Allow %q", answer.Code, answer.Header().Get("Allow"))
	}
	if answer := askPage(t, http.MethodHead, "/", nil); answer.Code != http.StatusOK || answer.Body.Len() > 0 {
		t.Errorf("HEAD: status %d, %d bytes", answer.Code, answer.Body.Len())
	}
}

func TestAnUnchangedDocumentIsNotSentAgain(t *testing.T) {
	t.Parallel()
	first := askPage(t, http.MethodGet, "/", nil)
	again := askPage(t, http.MethodGet, "/", http.Header{"If-None-Match": {first.Header().Get("ETag")}})
	if again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("status %d, %d bytes; want 304 without a body", again.Code, again.Body.Len())
	}
}

func TestThePageIsAnsweredBesideTheAPI(t *testing.T) {
	t.Parallel()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t), Page: web.NewPage()})
	const html = "text/html; charset=utf-8"
	for path, want := range map[string]string{
		"/": html, "/index.html": html, "/runs/digits-1": html, "/runs/a%2Fb?stage=train": html, "/capacity": html,
		"/compare":     html,
		"/favicon.svg": "image/svg+xml", "/licenses.txt": "text/plain; charset=utf-8",
		"/api/v1/stack": "application/json", "/api/nowhere": "application/json",
	} {
		request := accesstest.Arrived(httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody), 7474)
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, request)
		if got := recorder.Header().Get("Content-Type"); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

// TestThePageOfARunThatThereIsNotIsNotFound asks as the owner, who is told, and as somebody else, who is not: which
// runs there are is nobody else's business.
func TestThePageOfARunThatThereIsNotIsNotFound(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	page := web.NewPage()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Page: page})
	starting := web.New(web.Options{
		Keys: accesstest.Keys(), Engine: engine, Page: page,
		Ready: func(context.Context) error { return web.Starting("reads the past") },
	})
	document := askPage(t, http.MethodGet, "/", nil).Body.String()
	for _, c := range []struct {
		path   string
		server *web.Server
		owner  bool
		want   int
	}{
		{"/runs/nowhere", server, true, http.StatusNotFound},
		{"/runs/nowhere?stage=train", server, true, http.StatusNotFound},
		{"/runs/nowhere", server, false, http.StatusOK},
		{"/runs/digits-1", server, true, http.StatusOK},
		{"/runs/nowhere", starting, true, http.StatusOK},
	} {
		request := accesstest.Arrived(httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, http.NoBody), 7474)
		if c.owner {
			request.Header.Set("Authorization", "Bearer "+accesstest.Keys().Token())
		}
		recorder := httptest.NewRecorder()
		c.server.ServeHTTP(recorder, request)
		if recorder.Code != c.want || recorder.Body.String() != document {
			t.Errorf("%s (owner: %t) is answered with %d and %d bytes, want %d and the document", c.path, c.owner,
				recorder.Code, recorder.Body.Len(), c.want)
		}
	}
}

func TestThePageIsSmall(t *testing.T) {
	t.Parallel()
	const most = 200 << 10 // bytes, compressed
	var sum int
	err := filepath.WalkDir("dist", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var compressed bytes.Buffer
		writer := gzip.NewWriter(&compressed)
		_, err = writer.Write(text)
		if err != nil {
			return err
		}
		if err := writer.Close(); err != nil {
			return err
		}
		sum += compressed.Len()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the page is %d bytes compressed", sum)
	if sum > most {
		t.Errorf("the page is %d bytes compressed, want at most %d", sum, most)
	}
}
