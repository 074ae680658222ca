package s3store_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
)

// part is up to which size an artifact is held in memory, in bytes.
const part = 8 << 20

// bound ends a test that waits for what never comes.
func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestSlowSourcesKeepNobodyWaiting has more sources than there are tokens send one byte, and the rest only once others
// were put.
func TestSlowSourcesKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	store := server.store(t)
	ctx := bound(t)
	var slow sync.WaitGroup
	var begun sync.WaitGroup
	var ends []*io.PipeWriter
	for range 12 {
		source, end := io.Pipe()
		ends = append(ends, end)
		begun.Go(func() { _, _ = end.Write([]byte("b")) })
		slow.Go(func() {
			ref, err := store.Put(ctx, source)
			if err == nil {
				var got []byte
				if got, err = activities.ReadAll(ctx, store, ref.Digest); string(got) != "begun" {
					t.Errorf("read %q", got)
				}
			}
			if err != nil {
				t.Errorf("Put of a slow source: %v", err)
			}
		})
	}
	begun.Wait() // without a bound on who is slow, the ninth is not even begun
	if _, err := store.Put(ctx, strings.NewReader("at once")); err != nil {
		t.Errorf("Put beside slow ones: %v", err)
	}
	for _, end := range ends {
		go func() {
			_, _ = end.Write([]byte("egun"))
			_ = end.Close()
		}()
	}
	slow.Wait()
}

func TestWhatNeedsTheDiskIsRefusedWhereItIsFull(t *testing.T) { //nolint:paralleltest // others measure the memory
	store := newServer(t).store(t)
	if err := store.Refuse("the disk is full"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), strings.NewReader(strings.Repeat("s", part))); err != nil {
		t.Errorf("Put of what needs no disk: %v", err)
	}
	large := strings.Repeat("l", part+1)
	_, err := store.Put(t.Context(), strings.NewReader(large))
	if !errors.Is(err, activities.ErrNoRoom) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("Put of what is spooled: %v, want %v and why", err, activities.ErrNoRoom)
	}
	if err := store.Refuse(""); err != nil {
		t.Fatal(err)
	}
	refuse := readFunc(func([]byte) (int, error) {
		if err := store.Refuse("full by now"); err != nil {
			return 0, err
		}
		return 0, io.EOF
	})
	if _, err := store.Put(t.Context(), strings.NewReader(large)); err != nil {
		t.Errorf("Put once there is room: %v", err)
	}
	more := io.MultiReader(strings.NewReader(large), refuse, strings.NewReader(large))
	if _, err := store.Put(t.Context(), more); !errors.Is(err, activities.ErrNoRoom) {
		t.Errorf("Put while the disk becomes full: %v, want %v", err, activities.ErrNoRoom)
	}
}

// readFunc is an io.Reader.
type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// TestFewLargeArtifactsLieOnTheDisk has many sources stop behind their second part.
func TestFewLargeArtifactsLieOnTheDisk(t *testing.T) { //nolint:paralleltest // others measure the memory
	store := newServer(t).store(t, func(_ *s3store.Location, options *s3store.Options) {
		options.Patience = time.Hour // no source is slow
	})
	const sources, most = 12, 8
	ctx := bound(t)
	data := strings.Repeat("l", 2*part)
	var spooled atomic.Int64
	full, gone := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range sources {
		all.Go(func() {
			stops := readFunc(func([]byte) (int, error) {
				if spooled.Add(1) == most {
					close(full)
				}
				<-gone
				return 0, io.EOF
			})
			if _, err := store.Put(ctx, io.MultiReader(strings.NewReader(data), stops)); err != nil {
				t.Errorf("Put: %v", err)
			}
		})
	}
	select {
	case <-full:
	case <-ctx.Done():
		t.Errorf("%d are spooled", spooled.Load())
	}
	if _, err := store.Put(ctx, strings.NewReader("small")); err != nil {
		t.Errorf("Put of what is not spooled: %v", err)
	}
	if n := spooled.Load(); n > most {
		t.Errorf("%d large ones are spooled at a time, want %d at most", n, most)
	}
	close(gone)
	all.Wait()
}

// TestASlowSourceLeavesNoFile looks into the directory while it is spooled.
func TestASlowSourceLeavesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := newServer(t).store(t, func(_ *s3store.Location, options *s3store.Options) { options.Spool = dir })
	look := readFunc(func([]byte) (int, error) {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		return 0, io.EOF
	})
	source := io.MultiReader(strings.NewReader(strings.Repeat("l", part+1)), look)
	if _, err := store.Put(t.Context(), source); err != nil {
		t.Error(err)
	}
}
