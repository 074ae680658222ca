package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
)

// serveArtifacts serves an engine with an artifact store to a client.
func serveArtifacts(t *testing.T) (*client.Client, *artifact.Files, string) {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t), Artifacts: store}))
	calls := client.New(server.URL, accesstest.Keys().Token())
	t.Cleanup(func() {
		calls.Close()
		server.Close()
	})
	return calls, store, server.URL
}

func TestArtifactsOfAnySizeAreStoredAndReadBack(t *testing.T) {
	t.Parallel()
	calls, store, _ := serveArtifacts(t)
	for name, text := range map[string]string{
		"nothing": "", "a line": "weights\n",
		"more than a request may have": strings.Repeat("0123456789abcdef", 9<<20/16),
	} {
		ref, err := calls.Put(t.Context(), strings.NewReader(text))
		if err != nil || ref.Bytes != int64(len(text)) {
			t.Fatalf("%s: Put = %+v, %v", name, ref, err)
		}
		if has, err := calls.Has(t.Context(), ref.Digest); err != nil || !has {
			t.Errorf("%s: Has = %v, %v, want that it is there", name, has, err)
		}
		for _, from := range []activities.Store{calls, store} {
			if got, err := activities.ReadAll(t.Context(), from, ref.Digest); err != nil || string(got) != text {
				t.Errorf("%s: read back %d bytes, %v, want %d", name, len(got), err, len(text))
			}
		}
	}
}

func TestArtifactsThatAreNotThereOrDamagedAreErrors(t *testing.T) {
	t.Parallel()
	calls, store, _ := serveArtifacts(t)
	none := strings.Repeat("0", 64)
	if _, err := calls.Open(t.Context(), none); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("Open of nothing: %v, want that it is missing", err)
	}
	if has, err := calls.Has(t.Context(), none); err != nil || has {
		t.Errorf("Has of nothing: %v, %v", has, err)
	}
	for _, digest := range []string{"abc", strings.Repeat("G", 64), "..%2f..%2fetc%2fpasswd"} {
		_, err := calls.Open(t.Context(), digest)
		if refused, ok := errors.AsType[*web.Error](err); !ok || refused.Status != http.StatusBadRequest {
			t.Errorf("Open of %q: %v, want that it is refused", digest, err)
		}
	}
	ref, err := calls.Put(t.Context(), strings.NewReader("the right bytes"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(store.Dir(), ref.Digest[:2], ref.Digest[2:])
	if err := os.WriteFile(path, []byte("the wrong bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := activities.ReadAll(t.Context(), calls, ref.Digest); err == nil {
		t.Errorf("a damaged artifact was read as %q", got)
	}
}

// flipping is a transport that changes the first byte of every body.
type flipping struct{ next http.Handler }

func (f flipping) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recorder := httptest.NewRecorder()
	f.next.ServeHTTP(recorder, r)
	body := recorder.Body.Bytes()
	if len(body) > 0 && r.Method == http.MethodGet {
		body[0] ^= 1
	}
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(body)
}

func TestBytesThatChangeOnTheWayAreRefusedByTheClient(t *testing.T) {
	t.Parallel()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(flipping{web.New(
		web.Options{Keys: accesstest.Keys(), Engine: newEngine(t), Artifacts: store})})
	defer server.Close()
	calls := client.New(server.URL, accesstest.Keys().Token())
	defer calls.Close()
	ref, err := calls.Put(t.Context(), strings.NewReader("weights"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := activities.ReadAll(t.Context(), calls, ref.Digest); !errors.Is(err, activities.ErrCorrupt) {
		t.Errorf("got %v, want %v", err, activities.ErrCorrupt)
	}
}

func TestAttackAPageOfElsewhereStoresNoArtifacts(t *testing.T) {
	t.Parallel()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t), Artifacts: store})
	octets := []string{"application/octet-stream"}
	for name, test := range map[string]struct {
		header http.Header
		status int
	}{
		"bytes":                      {http.Header{"Content-Type": octets}, 200},
		"no content type":            {nil, 415},
		"a type that forms may send": {http.Header{"Content-Type": {"text/plain"}}, 415},
		"another origin":             {http.Header{"Content-Type": octets, "Origin": {"https://evil.example"}}, 403},
		"another name":               {http.Header{"Content-Type": octets, "Host": {"evil.example"}}, 403},
	} {
		if status, answer := ask(t, server, http.MethodPut, "/api/v1/artifacts", "x", test.header); status != test.status {
			t.Errorf("%s: got %d %s, want %d", name, status, answer, test.status)
		}
	}
	if status, _ := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t)}), http.MethodPut,
		"/api/v1/artifacts", "x", http.Header{"Content-Type": octets}); status != http.StatusNotFound {
		t.Errorf("without a store: got %d, want 404", status)
	}
}

func TestAnArtifactIsNoPage(t *testing.T) {
	t.Parallel()
	calls, _, url := serveArtifacts(t)
	ref, err := calls.Put(t.Context(), strings.NewReader("<script>alert(1)</script>"))
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/artifacts/"+ref.Digest, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(accesstest.Show(request))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // only the header is read
	header := response.Header
	if header.Get("Content-Type") != "application/octet-stream" || header.Get("X-Content-Type-Options") != "nosniff" ||
		header.Get("Content-Disposition") != "attachment" {
		t.Errorf("got %v, want nothing that a browser would show", header)
	}
}

func TestOnlyChainsThatCanRunAreServed(t *testing.T) {
	t.Parallel()
	stages := func(list string) string {
		return `{"name":"c","code":{"artifact":{"digest":"","bytes":0}},"stages":[` + list + `]}`
	}
	var each []string
	for i := range 201 {
		each = append(each, fmt.Sprintf(`{"name":"s%d","script":"x"}`, i))
	}
	many := strings.Join(each, ",")
	for name, test := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"a chain":                {stages(`{"name":"a","arguments":["x"]}`), 200, `"chain":true`},
		"no JSON":                {"x", 400, "no chain"},
		"a list":                 {"[]", 400, "no chain: it must be an object, not an array"},
		"nothing":                {"{}", 400, `name \"\"`},
		"a name that is a path":  {`{"name":"../x","stages":[{"name":"a","script":"x"}]}`, 400, "use a lower-case letter"},
		"no stages":              {stages(""), 400, "stages is empty"},
		"too many stages":        {stages(many), 400, "201 stages"},
		"a stage without a name": {stages("{}"), 400, "stage"},
		"a stage twice":          {stages(`{"name":"a","script":"x"},{"name":"a","script":"x"}`), 400, "twice"},
		"a negative size":        {stages(`{"name":"a","script":"x","memory_bytes":-1}`), 400, "stages.a.memory"},
		"a negative timeout":     {stages(`{"name":"a","script":"x","timeout_ns":-1}`), 400, "stages.a.timeout"},
		"a negative budget": {
			`{"name":"c","goal":{"budget_picodollars":-1},"stages":[{"name":"a","script":"x"}]}`, 400,
			"negative",
		},
		"another type": {
			stages(`{"name":"a","arguments":"x"}`), 400,
			"no chain: stages.arguments must be an array, not a string",
		},
		"files as in a file": {
			stages(`{"name":"a","script":"x","files":{"f":"b.out"}}`), 400,
			"stages.files must be an array, not an object",
		},
		"a half of an attempt": {
			stages(`{"name":"a","script":"x","max_attempts":1.5}`), 400,
			"stages.max_attempts must be a whole number, not 1.5",
		},
		"a name that is true": {`{"name":true}`, 400, "name must be a string, not true or false"},
		"too much":            {`"` + strings.Repeat("x", 9<<20) + `"`, 413, "8 MiB"},
	} {
		status, answer := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t)}), http.MethodPost,
			"/api/v1/chains", test.body, nil)
		if status != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s: got %d %.300s, want %d and %q", name, status, answer, test.status, test.want)
		}
	}
}

// TestAttackChainsThatAreNotCheckedAreNotServed sends chains that `spillway check` refuses: they were served, and their
// runs went on for ever.
func TestAttackChainsThatAreNotCheckedAreNotServed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ body, want string }{
		"a cycle": {
			`{"name":"c","stages":[{"name":"a","script":"x","after":["b"]},{"name":"b","script":"x","after":["a"]}]}`,
			"stages wait for each other",
		},
		"an unknown reference": {
			`{"name":"c","stages":[{"name":"a","script":"x","files":[{"path":"f","from":"b.out"}]}]}`,
			`stages.a.files.f: no stage is named`,
		},
		"a bad subject": {`{"name":"c","stages":[{"name":"a","script":"x"}],"bindings":[{"pipeline":"c",` +
			`"subject":"bad..subject"}]}`, "on[0]: bind"},
		"a bad schedule": {`{"name":"c","stages":[{"name":"a","script":"x"}],"bindings":[{"pipeline":"c","schedule":"at ` +
			`noon"}]}`, "on[0]: bind"},
	} {
		status, answer := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t)}), http.MethodPost,
			"/api/v1/chains", test.body, nil)
		if status != http.StatusBadRequest || !strings.Contains(answer, test.want) {
			t.Errorf("%s: got %d %.300s, want 400 and %q", name, status, answer, test.want)
		}
	}
}

// FuzzChainsThatComeFromOutsideNeverEndTheEngine sends anything as a chain.
func FuzzChainsThatComeFromOutsideNeverEndTheEngine(f *testing.F) {
	f.Add(`{"name":"c","stages":[{"name":"a","arguments":["x"],"for_each":[{"name":"i","values":[1]}]}],` +
		`"parameters":[{"name":"p","type":"integer","default":3}]}`)
	f.Add(`{"name":"c","stages":[{"name":"a"}],"parameters":[{"name":"p","type":"fun","default":{}}],` +
		`"bindings":[{"subject":"a.>"}],"single":true}`)
	f.Add(`{"name":"c","stages":[{"name":"a","max_attempts":-1}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		status, answer := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t)}), http.MethodPost,
			"/api/v1/chains", body, nil)
		if status != http.StatusOK && status != http.StatusBadRequest && status != http.StatusRequestEntityTooLarge ||
			!json.Valid([]byte(answer)) {
			t.Errorf("%q: got %d %s", body, status, answer)
		}
	})
}

func TestTheResultOfARunIsThereOnceItHasSucceeded(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	engine.Results = map[string]json.RawMessage{"digits-1": json.RawMessage(`{"large":true}`)}
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine})
	if status, answer := ask(t, server, http.MethodGet, "/api/v1/runs/digits-1/result", "", nil); status !=
		http.StatusConflict {
		t.Errorf("while it goes on: got %d %s, want 409", status, answer)
	}
	engine.Apply("digits-1", predictor.RunEnded{Run: "digits-1", State: predictor.RunSucceeded, At: begin})
	if status, answer := ask(t, server, http.MethodGet, "/api/v1/runs/digits-1/result", "", nil); status !=
		http.StatusOK || strings.TrimSpace(answer) != `{"large":true}` {
		t.Errorf("afterwards: got %d %s", status, answer)
	}
	if status, _ := ask(t, server, http.MethodGet, "/api/v1/runs/digits-2/result", "", nil); status !=
		http.StatusNotFound {
		t.Errorf("of no run: got %d, want 404", status)
	}
}

func TestAnUploadThatBreaksOffLeavesNothing(t *testing.T) {
	t.Parallel()
	calls, store, _ := serveArtifacts(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := calls.Put(ctx, breaking{cancel})
	if err == nil {
		t.Fatal("an upload that broke off was acknowledged")
	}
	entries, err := filepath.Glob(filepath.Join(store.Dir(), "??", "*"))
	if err != nil || len(entries) != 0 {
		t.Errorf("the store holds %v, %v, want nothing", entries, err)
	}
}

// breaking is a reader whose caller goes away.
type breaking struct{ cancel func() }

func (b breaking) Read(p []byte) (int, error) {
	b.cancel()
	return copy(p, "half"), nil
}
