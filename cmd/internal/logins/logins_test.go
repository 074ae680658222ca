package logins_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/logins"
)

func TestALoginIsKeptForItsOwnerAlone(t *testing.T) {
	t.Parallel()
	file := logins.In(t.TempDir())
	const server = "https://train.example.com:7475"
	if _, known, err := file.Get(server); known || err != nil {
		t.Fatalf("a login that nobody has kept: %t, %v", known, err)
	}
	kept := logins.Login{Token: "secret", Name: "ada", Until: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
	if err := file.Put(server, kept); err != nil {
		t.Fatal(err)
	}
	if err := file.Put("https://other.example.com", logins.Login{Token: "other"}); err != nil {
		t.Fatal(err)
	}
	if got, known, err := file.Get(server); got != kept || !known || err != nil {
		t.Errorf("got %+v, %t, %v; want %+v", got, known, err, kept)
	}
	info, err := os.Stat(file.Path())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file has mode %v, %v; want 0600", info.Mode(), err)
	}
	if err := file.Remove(server); err != nil {
		t.Fatal(err)
	}
	if _, known, err := file.Get(server); known || err != nil {
		t.Errorf("a login that was removed: %t, %v", known, err)
	}
	if err := os.Chmod(file.Path(), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := file.Get("https://other.example.com"); err == nil ||
		!strings.Contains(err.Error(), "no file that only this user can read") {
		t.Errorf("a file that others can read is answered with %v", err)
	}
}

func TestNoLoginIsLostWhereSeveralAreKeptAtOnce(t *testing.T) {
	t.Parallel()
	file := logins.In(t.TempDir())
	server := func(i int) string { return fmt.Sprintf("https://%d.example.com", i) }
	const many = 30
	var keeping sync.WaitGroup
	for i := range many {
		keeping.Go(func() {
			if err := file.Put(server(i), logins.Login{Token: server(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	keeping.Wait()
	for i := range many {
		if login, known, err := file.Get(server(i)); !known || login.Token != server(i) || err != nil {
			t.Errorf("%s: got %+v, %t, %v", server(i), login, known, err)
		}
	}
}

func TestAServerIsReachedOverTLSOrOnThisMachine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://Train.Example.com:7475/": "https://train.example.com:7475", "http://127.0.0.1:7474": "http://127.0.0.1:7474",
		"http://localhost:7474": "http://localhost:7474", "http://train.example.com": "", "train.example.com:7475": "",
		"https://train.example.com/runs": "", "https://ada@train.example.com": "", "": "", "ftp://127.0.0.1": "",
	} {
		got, err := logins.Server(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is read as %q, %v; want %q", text, got, err, want)
		}
	}
}
