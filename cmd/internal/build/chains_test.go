package build_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/workflows/chain"
)

func parsed(t *testing.T, name, run string) chain.Chain {
	t.Helper()
	c, err := chain.Parse("c.yaml", []byte("name: "+name+"\ncode: none\nstages: {only: {run: "+run+"}}\n"), chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChainsAreKeptByNameAndDigest(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	chains := build.NewChains(state)
	if newest, err := chains.Newest(); err != nil || len(newest) != 0 {
		t.Errorf("before the first: got %v, %v", newest, err)
	}
	old, newer, other := parsed(t, "churn", "a"), parsed(t, "churn", "b"), parsed(t, "other", "a")
	past := time.Now().Add(-time.Hour)
	for i, c := range []chain.Chain{old, newer, other} {
		path, fresh, err := chains.Put(c)
		if err != nil || !fresh {
			t.Fatalf("Put: %v, fresh %v", err, fresh)
		}
		if err := os.Chtimes(path, past, past.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
		if got, err := chains.Get(c.Name(), c.Digest()); err != nil || got.Digest() != c.Digest() {
			t.Errorf("Get: %v, %v", got, err)
		}
	}
	for name, text := range map[string]string{
		"bad@0123456789ab.json":   "{",
		"churn@0123456789ab.json": `{"name":"else","stages":[]}`, "notes.txt": "x", ".new-1": "x",
	} {
		if err := os.WriteFile(filepath.Join(state, "chains", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(churn chain.Chain) {
		t.Helper()
		newest, err := chains.Newest()
		if err != nil || len(newest) != 2 || newest[0].Digest() != churn.Digest() || newest[1].Name() != "other" {
			t.Errorf("Newest: got %v, %v", newest, err)
		}
	}
	check(newer)
	if _, fresh, err := chains.Put(old); err != nil || fresh {
		t.Errorf("Put again: %v, fresh %v", err, fresh)
	}
	check(old)
	if err := errors.Join(chains.Remove(old.Name(), old.Digest()), chains.Remove(old.Name(), old.Digest())); err != nil {
		t.Error(err)
	}
	check(newer)
}

func TestChainsThatWereNotUsedForLongAreForgotten(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	chains := build.NewChains(state)
	then := time.Now().Add(-time.Hour)
	if err := chains.Forget(then, nil); err != nil {
		t.Errorf("before the first: %v", err)
	}
	old, needed := parsed(t, "old", "a"), parsed(t, "needed", "a")
	used, young := parsed(t, "used", "a"), parsed(t, "young", "a")
	for _, c := range []chain.Chain{old, needed, used, young} {
		path, _, err := chains.Put(c)
		if err != nil {
			t.Fatal(err)
		}
		if c.Name() == "young" {
			continue
		}
		if err := os.Chtimes(path, then, then.Add(-time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(state, "chains", "notes.txt")
	err := errors.Join(os.WriteFile(other, nil, 0o600), os.Chtimes(other, then, then.Add(-time.Minute)),
		chains.Touch(used.Name(), used.Digest()), chains.Touch("../x", used.Digest()),
		chains.Touch("no-such", used.Digest()))
	if err != nil {
		t.Fatal(err)
	}
	keep := func(name, digest string) bool { return name == "needed" && digest == needed.Digest() }
	if err := chains.Forget(then, keep); err != nil {
		t.Error(err)
	}
	for _, c := range []chain.Chain{old, needed, used, young} {
		if _, err := chains.Get(c.Name(), c.Digest()); errors.Is(err, build.ErrUnknownBuild) != (c.Name() == "old") {
			t.Errorf("chain %s: %v", c.Name(), err)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func TestAChainThatIsNotKeptIsUnknownAndADamagedOneIsSaidToBe(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	chains := build.NewChains(state)
	for _, id := range [][2]string{
		{"churn", "0123456789ab"},
		{"../x", "0123456789ab"},
		{"churn", "../../etc/pa"},
		{"", ""},
	} {
		if _, err := chains.Get(id[0], id[1]); !errors.Is(err, build.ErrUnknownBuild) {
			t.Errorf("Get %q: got %v, want that it is unknown", id, err)
		}
	}
	path, _, err := chains.Put(parsed(t, "churn", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := parsed(t, "churn", "a")
	if _, err := chains.Get(c.Name(), c.Digest()); err == nil || errors.Is(err, build.ErrUnknownBuild) ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v, want that it is damaged", err)
	}
	if _, _, err := chains.Put(chain.Chain{}); err == nil {
		t.Error("a chain without a name was stored")
	}
}
