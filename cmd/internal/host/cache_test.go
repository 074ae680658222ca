package host

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// far is a store elsewhere that counts what it is asked for, and fails as often as it is told to.
type far struct {
	*artifact.Files

	opened, put atomic.Int64
	failing     atomic.Int64 // how many calls fail yet
	spoil       atomic.Bool  // what is opened comes changed
}

var errAway = errors.New("the server is away")

func (f *far) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	f.opened.Add(1)
	if f.failing.Add(-1) >= 0 {
		return nil, errAway
	}
	content, err := f.Files.Open(ctx, digest)
	if err == nil && f.spoil.Load() {
		return io.NopCloser(strings.NewReader("something else")), content.Close()
	}
	return content, err
}

func (f *far) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	f.put.Add(1)
	if f.failing.Add(-1) >= 0 {
		_, _ = io.CopyN(io.Discard, r, 1) // it breaks off on the way
		return activities.Ref{}, errAway
	}
	return f.Files.Put(ctx, r)
}

func newCache(t *testing.T, most quantity.Bytes) (*cache, *far) {
	t.Helper()
	here, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	there, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	behind := &far{Files: there}
	return &cache{
		files: here, behind: behind, most: most, life: t.Context(), logger: slog.New(slog.DiscardHandler),
	}, behind
}

func TestWhatManyReadIsFetchedOnce(t *testing.T) {
	t.Parallel()
	c, behind := newCache(t, quantity.GiB)
	text := strings.Repeat("digits", 1<<16)
	ref, err := behind.Files.Put(t.Context(), strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	for range 16 {
		reading.Go(func() {
			if got, err := activities.ReadAll(t.Context(), c, ref.Digest); err != nil || string(got) != text {
				t.Errorf("read %d bytes, %v; want %d", len(got), err, len(text))
			}
		})
	}
	reading.Wait()
	if opened := behind.opened.Load(); opened != 1 {
		t.Errorf("it was fetched %d times, want once", opened)
	}
	if _, err := c.Open(t.Context(), strings.Repeat("0", 64)); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("what is nowhere: got %v, want %v", err, activities.ErrMissing)
	}
	behind.failing.Store(1)
	if _, err := c.Open(t.Context(), strings.Repeat("1", 64)); !errors.Is(err, errAway) {
		t.Errorf("while the server is away: got %v, want %v", err, errAway)
	}
}

func TestBytesThatChangedOnTheWayStayNowhere(t *testing.T) {
	t.Parallel()
	c, behind := newCache(t, quantity.GiB)
	ref, err := behind.Files.Put(t.Context(), strings.NewReader("weights"))
	if err != nil {
		t.Fatal(err)
	}
	behind.spoil.Store(true)
	if got, err := activities.ReadAll(t.Context(), c, ref.Digest); err == nil {
		t.Errorf("what came changed was read as %q", got)
	}
	behind.spoil.Store(false)
	if got, err := activities.ReadAll(t.Context(), c, ref.Digest); err != nil || string(got) != "weights" {
		t.Errorf("afterwards: got %q, %v", got, err)
	}
}

func TestWhatBreaksOffIsSentAgain(t *testing.T) {
	t.Parallel()
	c, behind := newCache(t, quantity.GiB)
	behind.failing.Store(2)
	ref, err := c.Put(t.Context(), strings.NewReader("weights"))
	if err != nil || ref.Bytes != 7 {
		t.Fatalf("Put = %+v, %v", ref, err)
	}
	if got, err := activities.ReadAll(t.Context(), behind.Files, ref.Digest); err != nil || string(got) != "weights" {
		t.Errorf("the server has %q, %v", got, err)
	}
	if put := behind.put.Load(); put != 3 {
		t.Errorf("it was sent %d times, want three", put)
	}
	behind.failing.Store(1 << 30)
	ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Put(ended, strings.NewReader("more")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("for as long as nobody waits any more: got %v", err)
	}
}

func TestTheLongestUnusedGoesFirst(t *testing.T) {
	t.Parallel()
	c, _ := newCache(t, 10_000)
	var refs []activities.Ref
	for i := range 12 {
		ref, err := c.files.Put(t.Context(), strings.NewReader(strings.Repeat(string(rune('a'+i)), 1000)))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
		put := time.Now().Add(time.Duration(i-100) * time.Second) // a file system may not tell milliseconds apart
		if err := os.Chtimes(filepath.Join(c.files.Dir(), ref.Digest[:2], ref.Digest[2:]), put, put); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.files.Touch(t.Context(), refs[0].Digest); err != nil {
		t.Fatal(err)
	}
	if err := c.shrink(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left []int
	for i, ref := range refs {
		if content, err := c.files.Open(t.Context(), ref.Digest); err == nil {
			left = append(left, i)
			_ = content.Close() // it was only looked for
		}
	}
	if len(left) != 9 || left[0] != 0 || left[1] != 4 {
		t.Errorf("left are %v, want nine thousand bytes: the one that was asked for last, and the newest", left)
	}
}
