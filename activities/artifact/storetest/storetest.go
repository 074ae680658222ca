// Package storetest says what every store of artifacts keeps to, in tests that each of them passes.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

// Options say how a store is tried.
type Options struct {
	// Open returns an empty store. Required.
	Open func(t *testing.T) artifact.Store
	// Damage changes the stored bytes of an artifact behind the store's back. Required.
	Damage func(t *testing.T, store artifact.Store, digest string)
	// Later is how much later something must be to count as later.
	Later time.Duration
	// Large is the size of the artifact that must not lie in memory, in bytes; Memory is what it may take there, 0 where
	// that cannot be told, because the server is in the same process.
	Large, Memory int64
	// Races is how often artifacts are put while they are removed.
	Races int
}

// Run tries a store.
func Run(t *testing.T, options Options) {
	t.Helper()
	t.Run("a large artifact is not kept in memory", func(t *testing.T) { // nor beside what other tests have there
		testLarge(t, suite{options, options.Open(t)})
	})
	for name, test := range map[string]func(*testing.T, suite){
		"what is put is read":                              testPut,
		"what is not there is missing":                     testMissing,
		"what is damaged is told at its end":               testDamage,
		"the same bytes are one artifact":                  testSame,
		"a put that ends early leaves nothing":             testEarly,
		"what is discarded is read until it is deleted":    testDelete,
		"what is put meanwhile stays":                      testPutMeanwhile,
		"what is asked for meanwhile stays":                testTouchMeanwhile,
		"what was put since the decision is not discarded": testDecision,
		"a killed removal is taken back":                   testRestoreAll,
		"pins":                                             testPins,
		"no put is lost to a removal":                      testRace,
		"strange digests are refused":                      testStrange,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, suite{options, options.Open(t)})
		})
	}
}

// suite is one empty store.
type suite struct {
	Options

	store artifact.Store
}

func digestOf(data string) string {
	sum := sha256.Sum256([]byte(data))
	return hex.EncodeToString(sum[:])
}

func (s suite) put(t *testing.T, data string) activities.Ref {
	t.Helper()
	ref, err := s.store.Put(t.Context(), strings.NewReader(data))
	if err != nil {
		t.Fatalf("Put(%d bytes): %v", len(data), err)
	}
	if want := (activities.Ref{Digest: digestOf(data), Bytes: int64(len(data))}); ref != want {
		t.Fatalf("Put = %v, want %v", ref, want)
	}
	return ref
}

// wantRead wants the data to be there, or not.
func (s suite) wantRead(t *testing.T, data string, there bool) {
	t.Helper()
	got, err := activities.ReadAll(t.Context(), s.store, digestOf(data))
	switch {
	case there && (err != nil || string(got) != data):
		t.Fatalf("read %d of %d bytes, %v", len(got), len(data), err)
	case !there && !errors.Is(err, activities.ErrMissing):
		t.Fatalf("read: %v, want %v", err, activities.ErrMissing)
	}
}

// listed is all that the store lists, by digest.
func (s suite) listed(t *testing.T) map[string]artifact.Info {
	t.Helper()
	all := map[string]artifact.Info{}
	err := s.store.List(t.Context(), func(info artifact.Info) error {
		if _, twice := all[info.Digest]; twice {
			t.Errorf("%s is listed twice", info.Digest)
		}
		all[info.Digest] = info
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// discard decides about an artifact as it is listed now.
func (s suite) discard(t *testing.T, data string) (taken bool) {
	t.Helper()
	info, there := s.listed(t)[digestOf(data)]
	if !there {
		t.Fatalf("%s is not listed", digestOf(data))
	}
	taken, err := s.store.Discard(t.Context(), info.Digest, info.Written)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

func (s suite) delete(t *testing.T, data string) (gone bool) {
	t.Helper()
	gone, err := s.store.Delete(t.Context(), digestOf(data))
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

func testPut(t *testing.T, s suite) {
	t.Helper()
	var used int64
	for _, data := range []string{"", "a", "hello", strings.Repeat("x", 1<<20), strings.Repeat("y", 9<<20)} {
		before := time.Now().Add(-time.Minute)
		s.put(t, data)
		s.wantRead(t, data, true)
		used += int64(len(data))
		info := s.listed(t)[digestOf(data)]
		if info.Bytes != int64(len(data)) || info.Written.Before(before) || info.Again {
			t.Errorf("listed as %+v, want %d bytes, just now and once", info, len(data))
		}
	}
	if got, err := s.store.Usage(t.Context()); err != nil || got < used || got > used+1<<16 {
		t.Errorf("Usage = %d, %v, want %d", got, err, used)
	}
	// what reads a little at a time, and ends with its last bytes
	ref, err := s.store.Put(t.Context(), iotest.DataErrReader(iotest.OneByteReader(strings.NewReader("slowly"))))
	if err != nil || ref.Digest != digestOf("slowly") {
		t.Errorf("Put = %v, %v", ref, err)
	}
	content, err := s.store.Open(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(iotest.TestReader(content, []byte("slowly")), content.Close()); err != nil {
		t.Error(err)
	}
}

func testMissing(t *testing.T, s suite) {
	t.Helper()
	s.wantRead(t, "a", false)
	for name, end := range map[string]func(context.Context, string) error{
		"Touch": s.store.Touch, "Restore": s.store.Restore,
		"Unpin": func(ctx context.Context, digest string) error { return s.store.Unpin(ctx, digest, time.Now()) },
	} {
		if err := end(t.Context(), digestOf("a")); err != nil {
			t.Errorf("%s of what is not there: %v", name, err)
		}
	}
	if taken, err := s.store.Discard(t.Context(), digestOf("a"), time.Now()); taken || err != nil {
		t.Errorf("Discard of what is not there: %v, %v", taken, err)
	}
	if all := s.listed(t); len(all) > 0 {
		t.Errorf("listed: %v", all)
	}
}

func testDamage(t *testing.T, s suite) {
	t.Helper()
	for _, data := range []string{"text", strings.Repeat("z", 9<<20)} {
		ref := s.put(t, data)
		s.Damage(t, s.store, ref.Digest)
		content, err := s.store.Open(t.Context(), ref.Digest)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, content)
		if !errors.Is(err, activities.ErrCorrupt) {
			t.Errorf("of %d bytes: %v, want %v", len(data), err, activities.ErrCorrupt)
		}
		if _, again := content.Read(make([]byte, 1)); !errors.Is(again, activities.ErrCorrupt) {
			t.Errorf("read once more: %v", again)
		}
		if err := content.Close(); err != nil {
			t.Error(err)
		}
	}
}

func testSame(t *testing.T, s suite) {
	t.Helper()
	for _, data := range []string{"same", strings.Repeat("s", 9<<20)} {
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				ref, err := s.store.Put(t.Context(), strings.NewReader(data))
				if err != nil || ref.Digest != digestOf(data) {
					t.Errorf("Put = %v, %v", ref, err)
				}
			})
		}
		all.Wait()
		info := s.listed(t)[digestOf(data)]
		if !info.Again || info.Bytes != int64(len(data)) {
			t.Errorf("listed as %+v, want %d bytes, put again", info, len(data))
		}
		s.wantRead(t, data, true)
	}
	if all := s.listed(t); len(all) != 2 {
		t.Errorf("%d artifacts, want 2", len(all))
	}
}

func testEarly(t *testing.T, s suite) {
	t.Helper()
	broken := errors.New("the source broke")
	for _, size := range []int{10, 20 << 20} {
		data := strings.Repeat("e", size)
		_, err := s.store.Put(t.Context(), io.MultiReader(strings.NewReader(data), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) {
			t.Errorf("Put of a source of %d bytes that breaks: %v, want %v", size, err, broken)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err = s.store.Put(ctx, io.MultiReader(strings.NewReader(data), readFunc(func([]byte) (int, error) {
			cancel()
			return 0, nil
		})))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Put that is cancelled behind %d bytes: %v, want %v", size, err, context.Canceled)
		}
		s.wantRead(t, data, false)
	}
	if all := s.listed(t); len(all) > 0 {
		t.Errorf("listed: %v", all)
	}
	s.put(t, "a")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.store.Open(ended, digestOf("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("Open with a context that has ended: %v", err)
	}
}

// readFunc is an io.Reader.
type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// random yields n bytes that do not compress.
func random(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), n) }

func testLarge(t *testing.T, s suite) {
	t.Helper()
	var most atomic.Int64
	stop, measured := make(chan struct{}), make(chan struct{})
	live := func() int64 {
		runtime.GC() // what is left is what is needed
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return int64(memory.HeapAlloc)
	}
	before := live()
	go func() {
		defer close(measured)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				most.Store(max(most.Load(), live()-before))
			}
		}
	}()
	began := time.Now()
	ref, err := s.store.Put(t.Context(), random(s.Large))
	put := time.Since(began)
	if err != nil || ref.Bytes != s.Large {
		t.Errorf("Put = %v, %v", ref, err)
	}
	began = time.Now()
	content, err := s.store.Open(t.Context(), ref.Digest)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	n, err := io.CopyBuffer(sum, content, make([]byte, 1<<20))
	if err := errors.Join(err, content.Close()); err != nil || n != s.Large {
		t.Errorf("read %d bytes, %v", n, err)
	}
	read := time.Since(began)
	close(stop)
	<-measured
	want := sha256.New()
	_, _ = io.Copy(want, random(s.Large))
	if !bytes.Equal(sum.Sum(nil), want.Sum(nil)) {
		t.Error("what was read is not what was put")
	}
	t.Logf("%d MiB: put in %s, read in %s; %d MiB live in memory at most", s.Large>>20, put.Round(time.Millisecond),
		read.Round(time.Millisecond), most.Load()>>20)
	if s.Memory > 0 && most.Load() > s.Memory {
		t.Errorf("%d bytes live in memory, want %d at most", most.Load(), s.Memory)
	}
}

func testDelete(t *testing.T, s suite) {
	t.Helper()
	s.put(t, "a")
	s.put(t, "b")
	if !s.discard(t, "a") {
		t.Fatal("it was not taken")
	}
	s.wantRead(t, "a", true)
	if all := s.listed(t); len(all) != 2 {
		t.Errorf("%d are listed, want 2", len(all))
	}
	if !s.delete(t, "a") {
		t.Error("it is not gone")
	}
	s.wantRead(t, "a", false)
	s.wantRead(t, "b", true)
	if all := s.listed(t); len(all) != 1 {
		t.Errorf("%d are listed, want 1", len(all))
	}
	s.put(t, "a")
	s.wantRead(t, "a", true)
	if info := s.listed(t)[digestOf("a")]; info.Again {
		t.Error("what was deleted and put once is said to be put again")
	}
	if !s.discard(t, "a") {
		t.Error("what was put anew is not taken")
	}
	if err := s.store.Restore(t.Context(), digestOf("a")); err != nil {
		t.Fatal(err)
	}
	s.wantRead(t, "a", true)
	if !s.discard(t, "a") || !s.delete(t, "a") {
		t.Error("what was put back is not removed the next time")
	}
}

func testPutMeanwhile(t *testing.T, s suite) {
	t.Helper()
	for _, data := range []string{"a", strings.Repeat("m", 9<<20)} {
		s.put(t, data)
		if !s.discard(t, data) {
			t.Fatal("it was not taken")
		}
		s.put(t, data)
		if s.delete(t, data) {
			t.Error("what was put meanwhile is said to be gone")
		}
		s.wantRead(t, data, true)
		info := s.listed(t)[digestOf(data)]
		if !info.Again {
			t.Error("nobody says that it was put again")
		}
		// nobody puts it any more
		if !s.discard(t, data) || !s.delete(t, data) {
			t.Error("it is not removed the next time")
		}
		s.wantRead(t, data, false)
	}
}

func testTouchMeanwhile(t *testing.T, s suite) {
	t.Helper()
	s.put(t, "a")
	if !s.discard(t, "a") {
		t.Fatal("it was not taken")
	}
	if err := s.store.Touch(t.Context(), digestOf("a")); err != nil {
		t.Fatal(err)
	}
	if s.delete(t, "a") {
		t.Error("what was asked for meanwhile is gone")
	}
	s.wantRead(t, "a", true)
	if info := s.listed(t)[digestOf("a")]; !info.Again {
		t.Error("nobody says that it was asked for")
	}
}

func testDecision(t *testing.T, s suite) {
	t.Helper()
	s.put(t, "a")
	s.put(t, "b")
	decided := s.listed(t)
	time.Sleep(s.Later)
	s.put(t, "a")
	if err := s.store.Touch(t.Context(), digestOf("b")); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"a", "b"} {
		taken, err := s.store.Discard(t.Context(), digestOf(data), decided[digestOf(data)].Written)
		if taken || err != nil {
			t.Errorf("Discard of %s: %v, %v; it is newer than the decision", data, taken, err)
		}
		now := s.listed(t)[digestOf(data)]
		if !now.Again || !now.Written.After(decided[digestOf(data)].Written) {
			t.Errorf("%s is listed as %+v, before as %+v", data, now, decided[digestOf(data)])
		}
		s.wantRead(t, data, true)
	}
	time.Sleep(s.Later)
	for _, data := range []string{"a", "b"} { // of those who ask later than all of that
		if taken, err := s.store.Discard(t.Context(), digestOf(data), time.Now()); !taken || err != nil {
			t.Errorf("Discard of %s now: %v, %v", data, taken, err)
		}
	}
}

func testRestoreAll(t *testing.T, s suite) {
	t.Helper()
	s.put(t, "a")
	if !s.discard(t, "a") {
		t.Fatal("it was not taken")
	}
	if err := s.store.RestoreAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.delete(t, "a") {
		t.Error("it is gone, which nobody has decided any more")
	}
	s.wantRead(t, "a", true)
}

func testPins(t *testing.T, s suite) {
	t.Helper()
	pinned := func() map[string]time.Time {
		all := map[string]time.Time{}
		err := s.store.Pins(t.Context(), func(pin artifact.Info) error {
			all[pin.Digest] = pin.Written
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	s.put(t, "a")
	for range 2 {
		if err := s.store.Pin(t.Context(), digestOf("a")); err != nil {
			t.Fatal(err)
		}
	}
	first := pinned()
	if len(first) != 1 || time.Since(first[digestOf("a")]) > time.Minute {
		t.Fatalf("pins: %v", first)
	}
	time.Sleep(5 * time.Millisecond)
	if err := s.store.Pin(t.Context(), digestOf("a")); err != nil {
		t.Fatal(err)
	}
	if err := s.store.Unpin(t.Context(), digestOf("a"), first[digestOf("a")]); err != nil || len(pinned()) != 1 {
		t.Errorf("a pin that was made again is gone: %v, %v", pinned(), err)
	}
	if err := s.store.Unpin(t.Context(), digestOf("a"), time.Now()); err != nil || len(pinned()) != 0 {
		t.Errorf("pins: %v, %v", pinned(), err)
	}
	s.wantRead(t, "a", true)
	if all := s.listed(t); len(all) != 1 {
		t.Errorf("listed: %v", all)
	}
}

// testRace removes an artifact again and again while others put and read it. Whoever has put it after a decision reads
// it until the next one.
func testRace(t *testing.T, s suite) {
	t.Helper()
	r := race{suite: s, t: t, done: make(chan struct{})}
	var putters, remover sync.WaitGroup
	remover.Go(r.remove)
	for range 2 {
		putters.Go(r.put)
	}
	putters.Wait()
	close(r.done)
	remover.Wait()
	t.Logf("removed %d times", r.removed)
}

// race is one artifact that some put and one removes.
type race struct {
	suite

	t         *testing.T
	deciding  sync.RWMutex // held to decide, and shared by who puts and reads
	done      chan struct{}
	decisions atomic.Int64 // how many were carried out
	removed   int          // of the remover alone
}

// remove decides and removes until it is done.
func (r *race) remove() {
	defer r.decisions.Add(1 << 30) // nobody waits for one who has given up
	for {
		select {
		case <-r.done:
			return
		default:
		}
		if err := r.removeOnce(); err != nil {
			r.t.Error(err)
			return
		}
		r.decisions.Add(1)
	}
}

func (r *race) removeOnce() error {
	r.deciding.Lock()
	var found artifact.Info
	err := r.store.List(r.t.Context(), func(info artifact.Info) error { found = info; return nil })
	r.deciding.Unlock()
	if err != nil || found.Digest == "" {
		return err
	}
	taken, err := r.store.Discard(r.t.Context(), found.Digest, found.Written)
	if err != nil || !taken {
		return err
	}
	gone, err := r.store.Delete(r.t.Context(), found.Digest)
	if gone {
		r.removed++
	}
	return err
}

// put puts and reads, now and then only after the next decision was carried out.
func (r *race) put() {
	for turn := range r.Races {
		for before := r.decisions.Load(); turn%2 == 0 && r.decisions.Load() == before; {
			time.Sleep(time.Millisecond) // nobody puts it for as long as it takes to remove it
		}
		r.deciding.RLock()
		_, err := r.store.Put(r.t.Context(), strings.NewReader("race"))
		if err == nil {
			_, err = activities.ReadAll(r.t.Context(), r.store, digestOf("race"))
		}
		r.deciding.RUnlock()
		if err != nil {
			r.t.Error(err)
			return
		}
	}
}

func testStrange(t *testing.T, s suite) {
	t.Helper()
	a := digestOf("a")
	for _, digest := range []string{"", "a", "../" + a[3:], strings.ToUpper(a), a + "a"} {
		_, opened := s.store.Open(t.Context(), digest)
		_, discarded := s.store.Discard(t.Context(), digest, time.Now())
		_, deleted := s.store.Delete(t.Context(), digest)
		for name, err := range map[string]error{
			"Open": opened, "Discard": discarded, "Delete": deleted, "Restore": s.store.Restore(t.Context(), digest),
			"Touch": s.store.Touch(t.Context(), digest), "Pin": s.store.Pin(t.Context(), digest),
			"Unpin": s.store.Unpin(t.Context(), digest, time.Now()),
		} {
			if err == nil {
				t.Errorf("%s(%q) was not refused", name, digest)
			}
		}
	}
}
