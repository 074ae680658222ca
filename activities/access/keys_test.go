package access

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestKeysAreMadeOnceAndStay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := ReadToken(newDir(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadToken before there is one: got %v, want %v", err, fs.ErrNotExist)
	}
	chmod(t, dir, 0o775) // as a user's own umask may make it
	if err := os.WriteFile(filepath.Join(dir, "spillway.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := open(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the new directory: mode %v, error %v; want 0700", info.Mode(), err)
	}
	again := open(t, dir)
	token, err := ReadToken(dir)
	if err != nil || token != first.Token() || token != again.Token() {
		t.Errorf("tokens: read %q, error %v; made %q, then %q", token, err, first.Token(), again.Token())
	}
	if !again.IsToken(first.Token()) || again.IsToken(first.MetricsToken()) || again.IsToken("") {
		t.Error("IsToken takes another token than the owner's, or not that")
	}
	if !again.IsMetricsToken(first.MetricsToken()) || again.IsMetricsToken(first.Token()) {
		t.Error("IsMetricsToken takes another token than that of Prometheus, or not that")
	}
	if !again.IsBuildToken("a@1", first.BuildToken("a@1")) || again.IsBuildToken("a@2", first.BuildToken("a@1")) {
		t.Error("IsBuildToken takes the token of another build, or not its own")
	}
	message := []byte("a result")
	if signature := first.Sign(message); !ed25519.Verify(again.PublicKey(), message, signature) ||
		ed25519.Verify(again.PublicKey(), []byte("another"), signature) {
		t.Error("a signature does not verify, or verifies another message")
	}
	if open(t, newDir(t)).Token() == first.Token() {
		t.Error("two state directories have one token")
	}
	err = filepath.WalkDir(filepath.Join(dir, keysDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm()&othersRead != 0 {
			t.Errorf("%s: mode %v, error %v; want no rights of others", path, info.Mode(), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAttackADirectoryBehindALinkIsMadePrivate(t *testing.T) {
	t.Parallel()
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	chmod(t, dir, 0o775)
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	open(t, link)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, error %v; want 0700", info.Mode(), err)
	}
}

func TestTheDirectoryOfKeysIsMadePrivate(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	open(t, dir)
	keys := filepath.Join(dir, keysDir)
	chmod(t, keys, 0o755)
	open(t, dir)
	if info, err := os.Stat(keys); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, error %v; want 0700", info.Mode(), err)
	}
}

func TestALostTokenIsWrittenAnew(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	want := open(t, dir).Token()
	for _, content := range []string{"", "nonsense\n"} {
		if err := os.WriteFile(filepath.Join(dir, TokenFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadToken(dir); err == nil || !strings.Contains(err.Error(), "start the engine again") {
			t.Errorf("ReadToken of %q: got %q, error %v; want what to do", content, got, err)
		}
		open(t, dir)
		if got, err := ReadToken(dir); err != nil || got != want {
			t.Errorf("the token after %q and a start: got %q, error %v; want %q", content, got, err, want)
		}
	}
}

func TestAttackCredentialsThatOthersCanTouchAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		want  string
	}{
		{"a secret that the group can read", func(t *testing.T, dir string) {
			t.Helper()
			chmod(t, filepath.Join(dir, secretFile), 0o640)
		}, "chmod go-rwx"},
		{"a token that others can read", func(t *testing.T, dir string) {
			t.Helper()
			chmod(t, filepath.Join(dir, TokenFile), 0o604)
		}, "chmod go-rwx"},
		{"a directory that others can write to", func(t *testing.T, dir string) {
			t.Helper()
			chmod(t, dir, 0o777)
		}, "chmod go-w"},
		{"keys that others can write to", func(t *testing.T, dir string) {
			t.Helper()
			chmod(t, filepath.Join(dir, keysDir), 0o770)
		}, "chmod go-w"},
		{"a secret cut short", func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Truncate(filepath.Join(dir, secretFile), 7); err != nil {
				t.Fatal(err)
			}
		}, "has 7 bytes"},
		{"a token that is a link", func(t *testing.T, dir string) {
			t.Helper()
			replace(t, filepath.Join(dir, TokenFile), func(path string) error { return os.Symlink("/etc/passwd", path) })
		}, "remove it"},
		{"a token that is a pipe", func(t *testing.T, dir string) {
			t.Helper()
			replace(t, filepath.Join(dir, TokenFile), func(path string) error { return syscall.Mkfifo(path, 0o600) })
		}, "no plain file"},
		{"keys that are a link", func(t *testing.T, dir string) {
			t.Helper()
			keys := filepath.Join(dir, keysDir)
			if err := os.Rename(keys, keys+".moved"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(keysDir+".moved", keys); err != nil {
				t.Fatal(err)
			}
		}, "is no directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			open(t, dir)
			tt.spoil(t, dir)
			_, err := Open(dir)
			if refused, is := errors.AsType[*Error](err); !is || !strings.Contains(refused.Error(), tt.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("Open: got %v, want an Error of one line with %q", err, tt.want)
			}
		})
	}
}

func TestAttackADirectoryOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := newDir(t)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"Open": second(Open(dir)), "ReadToken": second(ReadToken(dir))} {
		if refused, is := errors.AsType[*Error](err); !is || !strings.Contains(refused.Error(), "belongs to user 65534") {
			t.Errorf("%s: got %v, want a refusal that names the owner", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func newDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	chmod(t, dir, 0o700)
	return dir
}

func open(t *testing.T, dir string) *Keys {
	t.Helper()
	k, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// replace puts something else in the place of a file.
func replace(t *testing.T, path string, put func(path string) error) {
	t.Helper()
	if err := errors.Join(os.Remove(path), put(path)); err != nil {
		t.Fatal(err)
	}
}

func TestAnEngineLivesWhileItHoldsTheLock(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	lives := func(want bool) {
		t.Helper()
		if got, err := EngineLives(dir); got != want || err != nil {
			t.Errorf("EngineLives: got %t, %v; want %t", got, err, want)
		}
	}
	lives(false)
	lock, err := os.Create(filepath.Join(dir, LockFile))
	if err != nil {
		t.Fatal(err)
	}
	lives(false)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatalf("the lock after somebody has looked at it: %v", err)
	}
	lives(true)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	lives(false)
	chmod(t, dir, 0o777)
	if _, err := EngineLives(dir); err == nil {
		t.Error("EngineLives of a directory that others can write to: got no error")
	}
	if got, err := EngineLives(filepath.Join(dir, "nothing")); got || err != nil {
		t.Errorf("EngineLives of no directory: got %t, %v; want false", got, err)
	}
}

func TestWhatStrangersAreGivenIsNoDocument(t *testing.T) {
	t.Parallel()
	keys := open(t, newDir(t))
	given := keys.SealText("x", []byte("text"))
	if text, genuine := keys.UnsealText("x", given); !genuine || string(text) != "text" {
		t.Errorf("got %q, %t back", text, genuine)
	}
	sealed, err := base64.RawURLEncoding.DecodeString(given)
	if err != nil {
		t.Fatal(err)
	}
	if text, genuine := keys.Unseal("x", sealed); genuine {
		t.Errorf("it is taken for the document %q", text)
	}
	for name, shown := range map[string]string{
		"y": given, "x": base64.RawURLEncoding.EncodeToString(keys.Seal("x", []byte("text"))), "": given, "z": given + "A",
	} {
		if text, genuine := keys.UnsealText(name, shown); genuine {
			t.Errorf("%.20s... is taken as %q for %q", shown, text, name)
		}
	}
}
