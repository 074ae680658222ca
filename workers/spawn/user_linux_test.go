package spawn_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// nobody is a user without any rights; the test is skipped where this process cannot start others as it.
func nobody(t *testing.T) *spawn.User {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes as another user")
	}
	user, err := spawn.LookupUser("nobody")
	if err != nil {
		t.Skip(err)
	}
	return user
}

func TestAttackAChildOfAnotherUserHasNoRightOfThisOne(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, spawn.Options{User: nobody(t)})
	secret := t.TempDir() + "/secret"
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c",
		`id -u; id -G; grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status; cat "$0" || echo refused`, secret)
	var out strings.Builder
	cmd.Stdout = &out
	if err := s.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	want := "65534 65534 CapPrm: 0000000000000000 CapEff: 0000000000000000 NoNewPrivs: 1 refused"
	if got != want {
		t.Errorf("a child of nobody: got %q, want %q", got, want)
	}
}

func TestChildrenRunAsNoUserWhoIsRootOrUnknown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"root", "0", "no such user", ""} {
		if user, err := spawn.LookupUser(name); !errors.Is(err, spawn.ErrUser) {
			t.Errorf("LookupUser(%q): got %v, %v, want ErrUser", name, user, err)
		}
	}
}

func TestAUserThatDoesNotExistIsSaidInWords(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gets as far as to look for a user")
	}
	for _, name := range []string{"no such user", "", "3999999999"} {
		want := fmt.Sprintf("%v: there is no user %q", spawn.ErrUser, name)
		if _, err := spawn.LookupUser(name); err == nil || err.Error() != want {
			t.Errorf("LookupUser(%q): got %v, want %s", name, err, want)
		}
	}
}

func TestAUserReachesADirectoryThatItMayEnterWithAllAboveIt(t *testing.T) {
	t.Parallel()
	guest := &spawn.User{Name: "guest", UID: 4711, GID: 4712}
	dir := t.TempDir()
	for mode, enters := range map[fs.FileMode]bool{0o700: false, 0o710: false, 0o711: true} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		// What is above it may be shut as well, and is named then.
		err := guest.Reaches(dir)
		if refused := err != nil && strings.Contains(err.Error(), "guest cannot enter "+dir+" "); refused == enters {
			t.Errorf("a directory of mode %04o: got %v, want that it is entered: %t", mode, err, enters)
		}
	}
	if err := guest.Reaches("/"); err != nil {
		t.Error(err)
	}
}

func TestAUserFindsProgramsOnlyWhereItMayGo(t *testing.T) {
	t.Parallel()
	shut := t.TempDir()
	if err := os.Chmod(shut, 0o700); err != nil { //nolint:gosec // it is shut for others, which is the point
		t.Fatal(err)
	}
	values := map[string]string{"PATH": shut + ":/:relative::" + shut + "/bin", "HOME": shut, "TMPDIR": shut, "LANG": "C"}
	lookup := func(name string) (string, bool) { value, set := values[name]; return value, set }
	guest := (&spawn.User{Name: "guest", UID: 4711, GID: 4712, Home: "/home/guest"}).Lookup(lookup)
	for name, want := range map[string]string{"PATH": "/", "HOME": "/home/guest", "TMPDIR": "", "LANG": "C", "TZ": ""} {
		if got, set := guest(name); got != want || set != (want != "") {
			t.Errorf("%s: got %q, %t, want %q", name, got, set, want)
		}
	}
}
