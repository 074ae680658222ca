package space

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/retention"
)

// unreadable makes the files of artifacts ones that nobody can take for them: who reads them finds other bytes.
func (s *stack) unreadable(digests ...string) {
	s.tb.Helper()
	for _, digest := range digests {
		path := filepath.Join(s.StateDir, "artifacts", digest[:2], digest[2:])
		info, err := os.Stat(path)
		if err == nil {
			err = os.WriteFile(path, []byte("other bytes"), 0o600)
		}
		if err == nil {
			err = os.Chtimes(path, info.ModTime(), info.ModTime())
		}
		if err != nil {
			s.tb.Fatal(err)
		}
	}
}

// TestALaterEngineReadsNoArtifactAgain has a list and what it names be known to the next engine, though the list is
// damaged by then; and one that knows of neither take what is left.
func TestALaterEngineReadsNoArtifactAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(text string) string
		want   bool // what the list names is still known
	}{
		{"as it was written", func(text string) string { return text }, true},
		{"cut", func(text string) string { return text[:len(text)-10] }, false},
		{"with a bit that has turned", func(text string) string {
			return strings.Replace(text, " ", " f", 1)
		}, false},
		{"of zeros", func(text string) string { return strings.Repeat("\x00", len(text)) }, false},
		{"with other lines", func(text string) string { return "\n\nabc 00000000\n" + text }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, withStreams(t))
			s.since(100 * day)
			file := s.put("file", 2*day)
			list := s.put("one\n"+file, 2*day)
			s.going("going", list)
			if _, err := s.collector().Collect(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(s.StateDir, namesFile)
			text, err := os.ReadFile(path)
			if err == nil {
				lines := strings.SplitAfter(strings.TrimLeft(string(text), "\n"), "\n")
				if !strings.HasPrefix(lines[0], list) { // the list's line last
					lines[0], lines[1] = lines[1], lines[0]
				}
				err = os.WriteFile(path, []byte(lines[1]+c.change(lines[0])), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			s.unreadable(list)
			for range 2 { // what is written behind a damaged line is read
				collection, err := s.collector().Collect(t.Context(), true)
				if err != nil {
					t.Fatal(err)
				}
				if kept := collection.Freed.Artifacts == 0; kept != c.want {
					t.Errorf("what the list names stays: %v, want %v", kept, c.want)
				}
			}
		})
	}
}

// TestWhatArtifactsNameTakesNoMoreRoomThanTheyNeed learns of many artifacts that are removed again.
func TestWhatArtifactsNameTakesNoMoreRoomThanTheyNeed(t *testing.T) {
	t.Parallel()
	x := newNameIndex(t.TempDir())
	if err := x.load(); err != nil {
		t.Fatal(err)
	}
	var last []retention.Artifact
	for round := range 100 {
		last = nil
		for i := range 100 {
			one := retention.Artifact{Digest: retention.Digest{byte(round), byte(i), 1}}
			x.learn(one.Digest, []retention.Digest{{2}})
			last = append(last, one)
		}
		if err := x.keep(last); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(x.path)
	if err != nil || info.Size() > (compactAbove+400)*140 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	again := newNameIndex(filepath.Dir(x.path))
	if err := again.load(); err != nil {
		t.Fatal(err)
	}
	for _, one := range last {
		if names, known := again.of(one.Digest); !known || len(names) != 1 || names[0] != (retention.Digest{2}) {
			t.Fatalf("of %s it is known: %v, %v", one.Digest, names, known)
		}
	}
}

// TestTheFirstCollectionOfAnEngineIsMeasured has the first collection of an engine, and of the next one, look at as
// many artifacts as a busy month makes.
func TestTheFirstCollectionOfAnEngineIsMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures only with SPILLWAY_MEASURE=1")
	}
	const artifacts, bytes = 100_000, 20_000
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	filler := strings.Repeat("x", bytes)
	for i := range artifacts {
		s.put(fmt.Sprint(i, filler), 2*day)
	}
	if err := s.Store.Pin(t.Context(), s.put("sent", 2*day)); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"first", "next"} {
		begun := time.Now()
		c := s.collector()
		opened := time.Since(begun)
		for _, which := range []string{"first", "second"} {
			begun = time.Now()
			collection, err := c.Collect(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the %s engine opens within %s; its %s collection looks at %d artifacts of %d MiB within %s", what, opened,
				which, collection.Freed.Artifacts+collection.Kept.Artifacts,
				(collection.Freed.Bytes+collection.Kept.Bytes)>>20, time.Since(begun))
		}
	}
	info, err := os.Stat(filepath.Join(s.StateDir, namesFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("what they name takes %d bytes", info.Size())
}
