package command_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/spawn"
)

func TestAnotherUserRunsNothingInPlaceAndNoContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.User = &spawn.User{Name: "guest", UID: 4711, GID: 4711}
	h.Assist = func(*exec.Cmd) error { return errors.New("nothing is prepared") }
	for what, c := range map[string]wire.Command{
		"in place": {Arguments: []string{"true"}, InPlace: t.TempDir()},
		"image":    {Arguments: []string{"true"}, Image: "alpine"},
	} {
		_, err := command.Prepare(t.Context(), h.Options, c, activities.Ref{})
		if !errors.Is(err, command.ErrInvalid) || !strings.Contains(err.Error(), "guest") {
			t.Errorf("%s: got %v, want ErrInvalid that names the user", what, err)
		}
	}
	h.Assist = nil
	if _, err := command.Prepare(t.Context(), h.Options, wire.Command{Arguments: []string{"true"}},
		activities.Ref{}); err == nil {
		t.Error("pip would run as this process's user")
	}
}

// TestAttackTheUserOfAProgramPutsNothingInPlaceOfThePipe looks at who has what: the engine opens the pipe by its path,
// while programs of other attempts run as the same user.
func TestAttackTheUserOfAProgramPutsNothingInPlaceOfThePipe(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root has programs run as another user")
	}
	h := newHost(t)
	h.User = &spawn.User{Name: "guest", UID: 4711, GID: 4712}
	h.Assist = func(*exec.Cmd) error { return errors.New("nothing is prepared") }
	temporary := filepath.Clean(os.TempDir())
	if err := h.User.Reaches(temporary); err != nil {
		t.Skip(err)
	}
	for dir := filepath.Dir(h.Root); dir != temporary; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // so that the user passes
			t.Fatal(err)
		}
	}
	w := h.prepare(t, wire.Command{Arguments: sh(
		`echo '{"progress": 1}' >"$SPILLWAY_REPORT"; rm -f "$SPILLWAY_REPORT"; echo '{"progress": 2}' >>"$SPILLWAY_REPORT"`,
	)}, activities.Ref{})
	top := filepath.Dir(w.Directory())
	for name, want := range map[string]struct {
		uid, gid uint32
		mode     os.FileMode
	}{
		"report":      {0, 4712, os.ModeDir | 0o710},
		"report/pipe": {4711, 4712, os.ModeNamedPipe | 0o600},
		"python":      {0, 0, os.ModeDir | 0o555},
	} {
		info, err := os.Lstat(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		of, known := info.Sys().(*syscall.Stat_t)
		if !known || of.Uid != want.uid || of.Gid != want.gid || info.Mode() != want.mode {
			t.Errorf("%s has mode %s and is of %d:%d, want %s of %d:%d", name, info.Mode(), of.Uid, of.Gid, want.mode,
				want.uid, want.gid)
		}
	}
	program, err := w.Program(command.Launch{})
	if err != nil {
		t.Fatal(err)
	}
	program.Command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4712}}
	if err := program.Start((*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(program.Command.Wait(), program.Ended()); err != nil {
		t.Error(err)
	}
	if reported := w.Follow(t.Context(), program.Reports, command.Listener{}); reported.Lines != 2 {
		t.Errorf("%d lines are read, want 2", reported.Lines)
	}
	if err := program.Reports.Close(); err != nil {
		t.Error(err)
	}
}

// pausedStore keeps the first Put waiting.
type pausedStore struct {
	activities.Store
	first          sync.Once
	began, goAhead chan struct{}
}

// Put stores what r yields.
func (s *pausedStore) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	s.first.Do(func() {
		close(s.began)
		<-s.goAhead
	})
	return s.Store.Put(ctx, r)
}

// TestAttackACheckpointThatBecomesALinkIsNotFollowed puts a link to a directory outside in the place of one with a
// checkpoint, after that was reported and before it is kept.
func TestAttackACheckpointThatBecomesALinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	h := newHost(t)
	store := &pausedStore{Store: h.store, began: make(chan struct{}), goAhead: make(chan struct{})}
	h.Store = store
	w := h.prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	inside, outside := filepath.Join(w.Directory(), "inside"), t.TempDir()
	must(
		os.WriteFile(filepath.Join(w.Directory(), "first"), nil, 0o600), os.Mkdir(inside, 0o700),
		os.WriteFile(filepath.Join(inside, "state"), nil, 0o600),
		os.WriteFile(filepath.Join(outside, "state"), []byte("secret"), 0o600),
	)
	reports, program := io.Pipe()
	var kept []activities.Ref
	var warned []string
	resolved, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		w.Follow(t.Context(), reports, command.Listener{
			Progress:   func(int, int, map[string]float64) { close(resolved) },
			Checkpoint: func(ref activities.Ref) { kept = append(kept, ref) },
			Warn:       func(text string) { warned = append(warned, text) },
		})
	}()
	report := func(line string) {
		t.Helper()
		_, err := io.WriteString(program, line+"\n")
		must(err)
	}
	report(`{"checkpoint": "first"}`)
	<-store.began
	report(`{"checkpoint": "inside/state"}`)
	report(`{"progress": 1}`)
	<-resolved
	must(os.Rename(inside, inside+"-away"), os.Symlink(outside, inside), program.Close())
	close(store.goAhead)
	<-ended
	if len(kept) != 1 || len(warned) != 1 || !strings.Contains(warned[0], "state is not kept") {
		t.Errorf("kept %v and warned %q, want the first checkpoint, and a warning of the second", kept, warned)
	}
}
