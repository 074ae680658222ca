package build_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// peer is a server with a state directory of its own, which shares documents and artifacts with others.
type peer struct {
	*build.Catalogue

	state  string
	builds *build.Store
	chains *build.Chains
	failed []string
}

// peers returns servers of one stack.
func peers(t *testing.T, count int) (servers []*peer, artifacts *artifact.Files) {
	t.Helper()
	artifacts, err := artifact.Open(filepath.Join(t.TempDir(), "artifacts"))
	if err != nil {
		t.Fatal(err)
	}
	shared := documents.Local()
	for i := range count {
		state := t.TempDir()
		p := &peer{state: state, builds: build.NewStore(state, nil), chains: build.NewChains(state)}
		p.Catalogue = build.OpenCatalogue(build.CatalogueOptions{
			Shared: shared, Artifacts: artifacts, Builds: p.builds, Chains: p.chains, Server: "server-" + string(rune('a'+i)),
			Failed: func(what string, err error) { p.failed = append(p.failed, what+": "+err.Error()) },
		})
		servers = append(servers, p)
	}
	return servers, artifacts
}

// TestABuildOfOneServerIsFetchedByAnother also has what is fetched be damaged on its way.
func TestABuildOfOneServerIsFetchedByAnother(t *testing.T) {
	t.Parallel()
	servers, artifacts := peers(t, 2)
	a, b := servers[0], servers[1]
	app, err := a.builds.Build(t.Context(), script(t, "echo '"+tiny+"'"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.builds.Get(t.Context(), "tiny", app.Digest); !errors.Is(err, build.ErrUnknownBuild) {
		t.Errorf("before it is shared: %v", err)
	}
	for range 2 { // the second finds that nothing is to be done
		if err := a.Share(t.Context(), app); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.builds.Get(t.Context(), "tiny", app.Digest)
	if err != nil {
		t.Fatal(err)
	}
	want, errWant := os.ReadFile(app.Path)
	is, errIs := os.ReadFile(got.Path)
	if errWant != nil || errIs != nil || string(is) != string(want) || got.Path == app.Path ||
		got.Descriptor.Name != "tiny" || len(got.Descriptor.Pipelines) != len(app.Descriptor.Pipelines) {
		t.Errorf("what was fetched is %+v with %d bytes, want %d: %v, %v", got, len(is), len(want), errWant, errIs)
	}
	if info, err := os.Stat(got.Path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it cannot be run: %v, %v", info.Mode(), err)
	}
	held := a.Holds()["tiny@"+app.Digest]
	if len(held) != 2 || !strings.HasPrefix(held[0], app.Digest) {
		t.Errorf("it consists of %v, want its program and what that said of itself", held)
	}
	for _, digest := range held {
		if _, err := artifacts.Open(t.Context(), digest); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(filepath.Dir(got.Path)); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(artifacts.Dir(), held[0][:2], held[0][2:])
	if err := errors.Join(os.Chmod(damaged, 0o600), os.WriteFile(damaged, []byte("echo evil"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.builds.Get(t.Context(), "tiny", app.Digest); err == nil {
		t.Error("a damaged program was taken")
	}
	if apps, err := b.builds.List(); err != nil || len(apps) != 0 {
		t.Errorf("it is stored: %v, %v", apps, err)
	}
}

func TestChainsAreStoredAtEveryServer(t *testing.T) {
	t.Parallel()
	servers, _ := peers(t, 2)
	a, b := servers[0], servers[1]
	older, newer := parsed(t, "churn", "a"), parsed(t, "churn", "b")
	if err := a.ShareChain(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	path, _, err := b.chains.Put(older) // of a time when b was alone
	past := time.Now().Add(-time.Minute)
	if err := errors.Join(err, os.Chtimes(path, past, past), b.TakeIn(t.Context(), past.Add(-time.Minute))); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*peer{"a": a, "b": b} {
		for _, c := range []string{older.Digest(), newer.Digest()} {
			if _, err := p.chains.Get("churn", c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if newest, err := p.chains.Newest(); err != nil || len(newest) != 1 || newest[0].Digest() != newer.Digest() {
			t.Errorf("%s: the newest is %v, %v", name, newest, err)
		}
		select {
		case <-p.Changed():
		default:
			t.Errorf("%s was not told", name)
		}
	}
	if err := a.ShareChain(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Changed():
		t.Error("what was known as the newest is told again")
	default:
	}
	keep := func(string, string) bool { return false }
	if err := a.Forget(t.Context(), past.Add(time.Second), keep); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*peer{"a": a, "b": b} {
		_, errOlder := p.chains.Get("churn", older.Digest())
		_, errNewer := p.chains.Get("churn", newer.Digest())
		if !errors.Is(errOlder, build.ErrUnknownBuild) || errNewer != nil || len(p.failed) > 0 {
			t.Errorf("%s: after the older was forgotten: %v, %v, %v", name, errOlder, errNewer, p.failed)
		}
	}
	var stages strings.Builder
	for _, stage := range "abcdef" {
		fmt.Fprintf(&stages, "  %c: {run: %s}\n", stage, strings.Repeat("x", 100_000))
	}
	large, err := chain.Parse("c.yaml", []byte("name: large\ncode: none\nstages:\n"+stages.String()), chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.ShareChain(t.Context(), large); !errors.Is(err, build.ErrLargeChain) {
		t.Errorf("a chain of 600 KiB: %v", err)
	}
}

func TestWhatIsServedIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	servers, _ := peers(t, 2)
	a, b := servers[0], servers[1]
	err := errors.Join(a.Serve(t.Context(), "x", "1"), a.Serve(t.Context(), "y", "1"), b.Serve(t.Context(), "z", "1"),
		b.Serve(t.Context(), "y", "2"))
	if err != nil {
		t.Fatal(err)
	}
	served := func(p *peer) (all []string) {
		for name, now := range p.Current() {
			all = append(all, name+now.Digest)
		}
		slices.Sort(all)
		return all
	}
	if got := served(a); !slices.Equal(got, []string{"x1", "y2", "z1"}) || !slices.Equal(got, served(b)) {
		t.Errorf("a serves %v and b %v", got, served(b))
	}
	if err := a.Withdraw(t.Context(), func(string) bool { return false }); err != nil { // y is b's by now
		t.Fatal(err)
	}
	if got := served(b); !slices.Equal(got, []string{"y2", "z1"}) {
		t.Errorf("once a was started without its apps, b serves %v", got)
	}
}

// TestNothingGoesThatIsNeeded forgets builds of three ages, of which one is old and needed.
func TestNothingGoesThatIsNeeded(t *testing.T) {
	t.Parallel()
	servers, _ := peers(t, 2)
	a, b := servers[0], servers[1]
	var apps []build.App
	for _, text := range []string{"old", "needed"} {
		app, err := a.builds.Build(t.Context(), script(t, "echo '"+tiny+"' # "+text))
		if err == nil {
			err = a.Share(t.Context(), app)
		}
		if err == nil {
			_, err = b.builds.Get(t.Context(), "tiny", app.Digest)
		}
		if err != nil {
			t.Fatal(err)
		}
		apps = append(apps, app)
	}
	later := time.Now().Add(time.Hour)
	keep := func(_, digest string) bool { return digest == apps[1].Digest }
	if err := a.Forget(t.Context(), later, keep); err != nil {
		t.Fatal(err)
	}
	none := func(string, string) bool { return false }
	if err := errors.Join(a.Sweep(later, none), b.Sweep(later, none)); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*peer{"a": a, "b": b} {
		_, errOld := p.builds.Get(t.Context(), "tiny", apps[0].Digest)
		_, errNeeded := p.builds.Get(t.Context(), "tiny", apps[1].Digest)
		if !errors.Is(errOld, build.ErrUnknownBuild) || errNeeded != nil {
			t.Errorf("%s: the old one: %v; the one that is needed: %v", name, errOld, errNeeded)
		}
	}
	if held := a.Holds(); len(held) != 1 {
		t.Errorf("artifacts are held for %v", held)
	}
}

func TestAServerThatIsAloneHasNoCatalogue(t *testing.T) {
	t.Parallel()
	var none *build.Catalogue
	err := errors.Join(none.Share(t.Context(), build.App{}), none.ShareChain(t.Context(), parsed(t, "c", "a")),
		none.Use(t.Context(), "c", "1"), none.Serve(t.Context(), "c", "1"), none.Withdraw(t.Context(), nil),
		none.TakeIn(t.Context(), time.Time{}), none.Forget(t.Context(), time.Time{}, nil), none.Sweep(time.Time{}, nil))
	if err != nil || none.Current() != nil || none.Holds() != nil || none.Changed() != nil {
		t.Error(err)
	}
}
