package web

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// listener is the model of one stream: all that was told to it over all its connections.
type listener struct {
	reader *reader
	run    string
	mark   string
	facts  []string          // the decisions and alerts, in the order in which they were told
	states map[string]uint64 // by topic, the number that was told last
}

// hear takes changes and keeps the first of them only, when the connection breaks after so many.
func (l *listener) hear(next taken, feed *Feed, whole int) {
	for i, c := range next.changes {
		if i == whole {
			return
		}
		if c.topic == "" {
			l.facts = append(l.facts, c.id)
		} else {
			l.states[c.topic] = c.number
		}
		l.mark = feed.mark(c.number)
	}
	if whole >= len(next.changes) {
		l.mark = next.mark
	}
}

// TestAResumedStreamHasNeitherGapNorDuplicate compares the feed with lists that keep everything, over connections that
// break anywhere.
func TestAResumedStreamHasNeitherGapNorDuplicate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var feed Feed
		now := begun
		const gap = 100 * time.Millisecond
		runs := []string{"a", "b", "c"}
		listeners := []*listener{{run: ""}, {run: "a"}, {run: "b"}}
		for _, l := range listeners {
			l.reader, l.states = feed.join(l.run), map[string]uint64{}
			l.mark = feed.mark(0)
		}
		var facts []struct{ run, id string }
		latest := map[string]uint64{} // by topic, the number of the last change
		draw := func(name string, among int) int { return rapid.IntRange(0, among-1).Draw(t, name) }
		step := func() {
			run := runs[draw("run", len(runs))]
			switch draw("kind", 4) {
			case 0:
				feed.RunChanged(run)
				latest["run "+run] = feed.head
			case 1:
				facts = append(facts, struct{ run, id string }{run, fmt.Sprint("d", len(facts))})
				feed.Decided(predictor.Decision{ID: facts[len(facts)-1].id, Run: run})
			case 2:
				facts = append(facts, struct{ run, id string }{"", fmt.Sprint("d", len(facts))})
				feed.Decided(predictor.Decision{ID: facts[len(facts)-1].id})
			default:
				feed.Planned(predictor.Plan{Decisions: []predictor.Decision{{}}})
				latest["plan"] = feed.head
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			l := listeners[draw("listener", len(listeners))]
			switch draw("act", 5) {
			case 0, 1:
				step()
			case 2:
				now = now.Add(time.Duration(draw("later", 150)) * time.Millisecond)
			case 3:
				next := l.reader.take(now, gap)
				whole := len(next.changes)
				breaks := rapid.Bool().Draw(t, "breaks")
				if breaks {
					whole = draw("cut", whole+1)
				}
				l.hear(next, &feed, whole)
				if !breaks {
					break
				}
				l.reader.leave()
				l.reader = feed.join(l.run)
				if !l.reader.resume(l.mark) {
					t.Fatalf("%s is not resumed after %s", l.run, l.mark)
				}
			default:
				if mark, idle := l.reader.rest(); idle {
					l.mark = mark
				}
			}
		}
		for _, l := range listeners {
			l.hear(l.reader.take(now.Add(time.Hour), gap), &feed, feedEntries)
			l.reader.leave()
			var want []string
			for _, fact := range facts {
				if l.run == "" || fact.run == "" || fact.run == l.run {
					want = append(want, fact.id)
				}
			}
			if diff := cmp.Diff(want, l.facts); diff != "" {
				t.Fatalf("facts told to %q (-want +got):\n%s", l.run, diff)
			}
			for topic, number := range latest {
				if concerns := l.run == "" || topic == "plan" || topic == "run "+l.run; concerns && l.states[topic] != number {
					t.Fatalf("%q was told %s at %d, want %d", l.run, topic, l.states[topic], number)
				}
			}
		}
	})
}

func TestAReaderThatSleepsIsNotLostWhenOthersAreBusy(t *testing.T) {
	t.Parallel()
	var feed Feed
	idle := feed.join("idle")
	defer idle.leave()
	for range 2 * feedEntries {
		feed.Decided(predictor.Decision{ID: "x", Run: "busy"})
	}
	feed.RunChanged("idle")
	next := idle.take(begun, 0)
	if next.lost || len(next.changes) != 1 || next.changes[0].topic != "run idle" {
		t.Errorf("got %+v, want the one change", next)
	}
	if len(idle.news) > 1 || feed.log.Len() > feedEntries {
		t.Errorf("the feed holds %d changes", feed.log.Len())
	}
}

func TestAViewIsEncodedOnceForAllReaders(t *testing.T) {
	t.Parallel()
	var feed Feed
	looks := 0
	look := func(string) (ledger.RunView, error) {
		looks++
		return ledger.RunView{Run: "a"}, nil
	}
	var all []*reader
	for range 50 {
		all = append(all, feed.join(""))
	}
	now := begun
	for burst := range 10 {
		for range 100 {
			feed.RunChanged("a")
		}
		for _, r := range all {
			feed.RunChanged("a") // it changes on while they are told
			for _, c := range r.take(now, 100*time.Millisecond).changes {
				if text, err := c.encode(feed.mark(c.number), look); err != nil || !strings.Contains(string(text), `"run":"a"`) {
					t.Fatalf("got %s, %v", text, err)
				}
			}
		}
		if looks != burst+1 {
			t.Fatalf("the view was encoded %d times in %d bursts", looks, burst+1)
		}
		now = now.Add(100 * time.Millisecond)
	}
	for _, r := range all {
		r.leave()
	}
	if len(feed.readers) != 0 {
		t.Errorf("the feed keeps readers that have left: %v", feed.readers)
	}
}

func TestAViewThatCannotBeReadIsTriedAgain(t *testing.T) {
	t.Parallel()
	c := &change{name: StreamRun, run: "a"}
	broken := errors.New("the database is gone")
	if _, err := c.encode("m", func(string) (ledger.RunView, error) {
		return ledger.RunView{}, broken
	}); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if text, err := c.encode("m", func(string) (ledger.RunView, error) {
		return ledger.RunView{Run: "a"}, nil
	}); err != nil || len(text) == 0 {
		t.Errorf("got %s, %v", text, err)
	}
}

func FuzzParseMark(f *testing.F) {
	for _, text := range []string{"", "abc-1", "abc-", "-1", "abc-18446744073709551616", "a-b-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		epoch, number, err := parseMark(text)
		if err != nil {
			return
		}
		feed := Feed{epoch: epoch}
		again, same, err := parseMark(feed.mark(number))
		if err != nil || again != epoch || same != number {
			t.Errorf("%q is read as %q %d, and that as %q %d (%v)", text, epoch, number, again, same, err)
		}
	})
}

// BenchmarkChange is one change of a run that is told to all of so many streams, while as many others follow runs that
// do not change.
func BenchmarkChange(b *testing.B) {
	for _, streams := range []int{1, 20, 200} {
		for _, concerned := range []bool{true, false} {
			b.Run(fmt.Sprintf("streams=%d/concerned=%t", streams, concerned), func(b *testing.B) {
				var feed Feed
				view := ledger.RunView{Run: "a", Stages: make([]ledger.StageView, 10)}
				followed := map[bool]string{true: "", false: "other"}[concerned]
				readers := []*reader{feed.join("a")}
				for range streams {
					readers = append(readers, feed.join(followed))
				}
				now := begun
				b.ReportAllocs()
				for b.Loop() {
					feed.RunChanged("a")
					now = now.Add(time.Second)
					for _, r := range slices.Backward(readers) {
						if len(r.news) == 0 {
							continue
						}
						<-r.news
						for _, c := range r.take(now, time.Millisecond).changes {
							if _, err := c.encode("m-1", func(string) (ledger.RunView, error) { return view, nil }); err != nil {
								b.Fatal(err)
							}
						}
					}
				}
			})
		}
	}
}
