package session

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
)

func TestTheLogIsPutAsideWhileItIsWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const limit = 1000
	log, err := openLogFile(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	for writer := range 4 {
		writing.Go(func() {
			for i := range 50 {
				if _, err := fmt.Fprintf(log, "writer %d line %02d\n", writer, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	if _, err := fmt.Fprintln(log, "the last line"); err != nil {
		t.Error(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	var all strings.Builder
	for _, name := range []string{"spillway.log.1", "spillway.log"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > limit || len(text) == 0 || !bytes.HasSuffix(text, []byte("\n")) {
			t.Errorf("%s has %d bytes of at most %d, and ends with %q", name, len(text), limit, text[max(0, len(text)-10):])
		}
		all.Write(text)
	}
	// 201 lines of 18 bytes are four files of which two are left: no line between the oldest that is left and the last
	// is missing.
	lines := strings.Split(strings.TrimSpace(all.String()), "\n")
	if len(lines) < 56 || lines[len(lines)-1] != "the last line" {
		t.Errorf("%d lines are left, the last %q", len(lines), lines[len(lines)-1])
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, %v; want two files", entries, err)
	}

	again, err := openLogFile(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if again.size == 0 {
		t.Error("a log that is opened again counts from nothing")
	}
	if _, err := again.Write(bytes.Repeat([]byte("x"), limit+1)); err != nil {
		t.Errorf("a line longer than the limit: %v", err)
	}
	if _, err := again.Write([]byte("y\n")); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "spillway.log")); err != nil || string(text) != "y\n" {
		t.Errorf("after a line longer than the limit: %q, %v", text, err)
	}
}

func TestALogThatCannotBePutAsideGoesOn(t *testing.T) {
	t.Parallel()
	elsewhere, dir := filepath.Join(t.TempDir(), "elsewhere"), t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(dir, "spillway.log")); err != nil {
		t.Fatal(err)
	}
	log, err := openLogFile(dir, 20)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := log.Write([]byte("a line of 18 bytes\n")); err != nil {
			t.Error(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(elsewhere); err != nil || len(text) != 190 {
		t.Errorf("the file that a link of one's own leads to has %d bytes, %v; want all 190", len(text), err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "spillway.log.1")); err == nil {
		t.Error("the link was put aside")
	}
}

func TestAttackAPlantedLinkLeadsNoLogAway(t *testing.T) {
	t.Parallel()
	dir, victim := t.TempDir(), transfertest.NewVictim(t)
	transfertest.Plant(t, dir, map[string]string{"spillway.log": victim.Precious})
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // that others can write to it is the attack
		t.Fatal(err)
	}
	if _, log, err := OpenLog(dir, "info"); err == nil {
		_ = log.Close()
		t.Error("the log was opened through a link")
	}
	victim.IsUnharmed(t)
}

func TestTheLogMayLieElsewhereByALinkOfOnesOwn(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "log")
	transfertest.Plant(t, dir, map[string]string{"spillway.log": elsewhere})
	_, log, err := OpenLog(dir, "info")
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Error(err)
	}
}
