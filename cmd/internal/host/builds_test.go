package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// keep puts a program into a store, and returns its digest.
func keep(t *testing.T, store *build.Store, app string, program []byte) string {
	t.Helper()
	sum := sha256.Sum256(program)
	digest := hex.EncodeToString(sum[:])[:12]
	if err := os.MkdirAll(store.Place(app, digest), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(store.Place(app, digest), app)
	if err := os.WriteFile(path, program, 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	return digest
}

// serving answers hosts until the test ends; edit may change what it answers with.
func serving(t *testing.T, edit func(*Serving)) (*asker, *build.Store) {
	t.Helper()
	store := build.NewStore(t.TempDir(), nil)
	s := Serving{
		Builds: store, Artifacts: http.NotFoundHandler(), Logger: slog.New(slog.DiscardHandler),
		Given:   func(string, string) (*wire.Given, error) { return nil, nil }, //nolint:nilnil // it is believed
		Servers: func(context.Context) []string { return nil },
	}
	if edit != nil {
		edit(&s)
	}
	server := httptest.NewServer(s.Handler())
	client := server.Client()
	t.Cleanup(func() { client.CloseIdleConnections(); server.Close() })
	return &asker{base: server.URL, host: "h1", client: client, life: t.Context(), logger: s.Logger}, store
}

func TestABuildIsFetchedOnceAndKept(t *testing.T) {
	t.Parallel()
	ask, there := serving(t, nil)
	var asked atomic.Int64
	ask.client.Transport = counting{ask.client.Transport, &asked}
	digest := keep(t, there, "digits", []byte("#!/bin/sh\necho digits\n"))
	own := build.NewStore(t.TempDir(), nil)
	here := &builds{ask: ask, stored: own, most: quantity.GiB}
	var fetching sync.WaitGroup
	for range 8 {
		fetching.Go(func() {
			path, err := here.Path(t.Context(), "digits", digest)
			if err != nil {
				t.Error(err)
				return
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != "#!/bin/sh\necho digits\n" {
				t.Errorf("got %q, %v", text, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o100 == 0 {
				t.Errorf("got %v, %v; want a program", info, err)
			}
		})
	}
	fetching.Wait()
	if asked.Load() != 1 {
		t.Errorf("it was fetched %d times, want once", asked.Load())
	}
	for _, name := range []string{"digits@000000000000", "../x@0123456789ab", "digits@0123456789AB"} {
		app, unknown, _ := strings.Cut(name, "@")
		if _, err := here.Path(t.Context(), app, unknown); err == nil {
			t.Errorf("%s was found", name)
		}
	}
	entries, err := os.ReadDir(own.Dir())
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory of builds has %v, %v; want one", entries, err)
	}
}

type counting struct {
	next  http.RoundTripper
	count *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.count.Add(1)
	return c.next.RoundTrip(r)
}

func TestAProgramThatIsNotTheBuildIsNotRun(t *testing.T) {
	t.Parallel()
	ask, there := serving(t, nil)
	digest := keep(t, there, "digits", []byte("#!/bin/sh\n"))
	path, err := there.Path(t.Context(), "digits", digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nrm -rf /\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	own := build.NewStore(t.TempDir(), nil)
	here := &builds{ask: ask, stored: own, most: quantity.GiB}
	if _, err := here.Path(t.Context(), "digits", digest); !errors.Is(err, activities.ErrCorrupt) {
		t.Errorf("got %v, want %v", err, activities.ErrCorrupt)
	}
	if entries, err := os.ReadDir(own.Dir()); err != nil || len(entries) > 0 {
		t.Errorf("left are %v, %v; want nothing", entries, err)
	}
}

// TestABuildOfAnotherPlatformIsToldSo asks for the program of this test as another machine would, and has this one be
// told what another server would say.
func TestABuildOfAnotherPlatformIsToldSo(t *testing.T) {
	t.Parallel()
	ask, there := serving(t, nil)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	digest := keep(t, there, "digits", text)
	path := join.BuildPrefix + "digits@" + digest + "?platform=plan9/mips"
	_, err = ask.send(t.Context(), http.MethodGet, path, nil, "") //nolint:bodyclose // there is none of an error
	if refused, is := errors.AsType[*refusedError](err); !is || refused.status != http.StatusConflict ||
		refused.platform != Platform {
		t.Errorf("got %v, want that the build is for %s", err, Platform)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(platformHeader, "darwin/arm64")
		http.Error(w, "the build is for darwin/arm64", http.StatusConflict)
	}))
	defer other.Close()
	elsewhere := &asker{base: other.URL, client: other.Client(), life: t.Context()}
	defer elsewhere.client.CloseIdleConnections()
	here := &builds{ask: elsewhere, stored: build.NewStore(t.TempDir(), nil), most: quantity.GiB}
	_, err = here.Path(t.Context(), "digits", digest)
	wrong, is := errors.AsType[*build.PlatformError](err)
	if !is || wrong.Of != "darwin/arm64" || wrong.Here != Platform ||
		!strings.Contains(err.Error(), "GOOS=") {
		t.Errorf("got %v, want both platforms and what to do", err)
	}
}

func TestTheLongestUnusedBuildGoesFirst(t *testing.T) {
	t.Parallel()
	ask, there := serving(t, nil)
	own := build.NewStore(t.TempDir(), nil)
	here := &builds{ask: ask, stored: own, most: 25}
	var digests []string
	for _, text := range []string{"0123456789", "1234567890", "2345678901"} {
		digests = append(digests, keep(t, there, "digits", []byte(text)))
		if _, err := here.Path(t.Context(), "digits", digests[len(digests)-1]); err != nil {
			t.Fatal(err)
		}
		if len(digests) == 2 { // the first is used again
			if _, err := here.Path(t.Context(), "digits", digests[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	var left []int
	for i, digest := range digests {
		if _, err := own.Path(t.Context(), "digits", digest); err == nil {
			left = append(left, i)
		}
	}
	if diff := cmp.Diff([]int{0, 2}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestAHostAsksWhatItMayRun(t *testing.T) {
	t.Parallel()
	broken := errors.New("the store is away")
	var kept []wire.Kept
	var hands []string
	ask, _ := serving(t, func(s *Serving) {
		s.Declared = func(_ context.Context, order slot.Order) error {
			switch order.Workflow {
			case "declared":
				return nil
			case "undeclared":
				return errors.Join(slot.ErrUndeclared)
			}
			return broken
		}
		s.Results = keeper(func(one wire.Kept) error { kept = append(kept, one); return nil })
		s.InHand = func(host, instance string, _ int, taken []slot.Taken) {
			hands = append(hands, host+"/"+instance+"/"+taken[0].Task.ID+"/"+string(taken[0].Token))
		}
	})
	for workflow, check := range map[string]func(error) bool{
		"declared":   func(err error) bool { return err == nil },
		"undeclared": func(err error) bool { return errors.Is(err, slot.ErrUndeclared) },
		"unknown":    func(err error) bool { return err != nil && !errors.Is(err, slot.ErrUndeclared) },
	} {
		if err := ask.Declared(t.Context(), slot.Order{Workflow: workflow}); !check(err) {
			t.Errorf("%s: got %v", workflow, err)
		}
	}
	if err := ask.Keep(t.Context(), wire.Kept{Run: "r", Task: "a"}); err != nil || len(kept) != 1 || kept[0].Task != "a" {
		t.Errorf("kept are %+v, %v", kept, err)
	}
	taken := []slot.Taken{{Token: []byte("secret"), Task: wire.Task{ID: "a"}}}
	if err := ask.inHand(t.Context(), "i1", 1, taken); err != nil || len(hands) != 1 || hands[0] != "h1/i1/a/secret" {
		t.Errorf("in hand are %v, %v", hands, err)
	}
}

type keeper func(wire.Kept) error

func (k keeper) Keep(_ context.Context, kept wire.Kept) error { return k(kept) }
