package devserver

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.temporal.io/server/common/log/tag"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
)

func TestChoosePortPrefersTheOneAskedFor(t *testing.T) {
	t.Parallel()
	l, err := listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	asked := portOf(l)
	got, taken, err := ChoosePort(t.Context(), asked)
	if err != nil || !taken || got == asked || got == 0 {
		t.Errorf("ChoosePort(%d) while it is taken: got %d, taken %v, error %v", asked, got, taken, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got, taken, err = ChoosePort(t.Context(), asked)
	if err != nil || taken || got != asked {
		t.Errorf("ChoosePort(%d) while it is free: got %d, taken %v, error %v", asked, got, taken, err)
	}
	if got, taken, err = ChoosePort(t.Context(), 0); err != nil || taken || got == 0 {
		t.Errorf("ChoosePort(0): got %d, taken %v, error %v", got, taken, err)
	}
}

func TestAReservedPortIsGivenToItsServerAndToNobodyElse(t *testing.T) {
	t.Parallel()
	r, err := reserve(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.free()
	for range 2000 {
		if got, err := FreePort(t.Context()); err != nil || got == r.port {
			t.Fatalf("FreePort: got %d, error %v; want another than the reserved %d", got, err, r.port)
		}
	}
	r.handOver()
	l, err := listen(t.Context(), r.port)
	if err != nil {
		t.Fatalf("listen on the reserved port: %v", err)
	}
	defer func() { _ = l.Close() }()
	if other, err := reserve(t.Context(), r.port); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("reserve a port that is listened on: got %+v, error %v; want %v", other, err, syscall.EADDRINUSE)
	}
}

func TestALockIsHeldByOneAndFreedByUnlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		l, err := lockDir(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = lockDir(dir, nil)
		if !errors.Is(err, ErrDirInUse) || !strings.Contains(err.Error(), "is in use by process") {
			t.Errorf("a second lock: got %v, want %v", err, ErrDirInUse)
		}
		if err := l.unlock(); err != nil {
			t.Fatal(err)
		}
	}
}

// Between fork and exec a child has copies of all files of its parent.
func TestADirectoryIsFreedThoughAForkHoldsItsLockFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := lockDir(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	held, err := syscall.Dup(int(first.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(held) }()
	if err := first.unlock(); err != nil {
		t.Fatal(err)
	}
	second, err := lockDir(dir, nil)
	if err != nil {
		t.Fatalf("lock what was freed: %v", err)
	}
	if err := second.unlock(); err != nil {
		t.Error(err)
	}
}

func TestAFatalFailureEndsItsGoroutineAndNotTheProcess(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		work func(temporalLog) error
	}{
		{"called directly", func(l temporalLog) error {
			l.Fatal("Failed to listen", tag.Error(syscall.EADDRINUSE), tag.Address("127.0.0.1:1"))
			return nil
		}},
		{"called where a value is made once", func(l temporalLog) error {
			sync.OnceValue(func() int {
				l.Fatal("Failed to listen", tag.Error(syscall.EADDRINUSE), tag.Address("127.0.0.1:1"))
				return 1
			})()
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fatality{}
			err := f.run(func() error { return tt.work(temporalLog{slog.New(slog.DiscardHandler), f, &atomic.Bool{}}) })
			const want = "failed to listen, error: address already in use, address: 127.0.0.1:1"
			if err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

func TestADatabaseOfAnotherSchemaIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t.TempDir(), false)
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	if err := d.prepare(); err != nil {
		t.Errorf("prepare a prepared database: %v", err)
	}
	err := d.exclusively(func(db sqlplugin.AdminDB) error {
		return db.UpdateSchemaVersion(schemaName, "0.1+0.1", "0.1+0.1")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.prepare(); err == nil || !strings.Contains(err.Error(),
		"it was made with schema 0.1+0.1 and this build needs "+schemaVersion) {
		t.Errorf("prepare a database of schema 0.1: got %v", err)
	}
}

func TestASchemaMadeByHalfLeavesAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	d := newDatabase(t.TempDir(), false)
	half := errors.New("half")
	err := d.exclusively(func(db sqlplugin.AdminDB) error {
		return d.prepareSchema(failing{AdminDB: db, err: half, left: new(20)})
	})
	if !errors.Is(err, half) {
		t.Fatalf("make a schema that fails in the middle: got %v, want %v", err, half)
	}
	if err := d.prepare(); err != nil {
		t.Errorf("prepare afterwards: %v", err)
	}
}

// failing is a database whose statements fail after the first few, but for a rollback.
type failing struct {
	sqlplugin.AdminDB

	left *int // statements that still succeed
	err  error
}

func (f failing) Exec(stmt string, args ...any) error {
	if *f.left--; *f.left < 0 && stmt != "ROLLBACK" {
		return f.err
	}
	return f.AdminDB.Exec(stmt, args...)
}
