package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// shelf is a store of runs.
type shelf []ledger.RunView

// part is what it has of a page.
func (s shelf) part(query ledger.Query) (part ledger.Part) {
	for _, view := range s {
		if query.Selects(view) {
			part.Runs = append(part.Runs, view)
		}
	}
	slices.SortFunc(part.Runs, func(a, b ledger.RunView) int { return ledger.PlaceOf(a).Compare(ledger.PlaceOf(b)) })
	if query.Limit > 0 && len(part.Runs) > query.Limit {
		part.Runs = part.Runs[:query.Limit]
		part.End = ledger.PlaceOf(part.Runs[query.Limit-1])
	}
	return part
}

// TestPagesListEachRunOnce divides runs between two stores, of which one knows some as they were earlier, reads them
// page by page, and starts others meanwhile.
func TestPagesListEachRunOnce(t *testing.T) {
	t.Parallel()
	states := []predictor.RunState{predictor.RunRunning, predictor.RunSucceeded, predictor.RunFailed}
	rapid.Check(t, func(t *rapid.T) {
		query := ledger.Query{
			Limit:    rapid.IntRange(1, 5).Draw(t, "limit"),
			State:    rapid.SampledFrom(append(states, "")).Draw(t, "state"),
			Pipeline: rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "pipeline"),
		}
		if rapid.Bool().Draw(t, "since") {
			query.Since = after(5)
		}
		var live, kept shelf
		var want []string
		for i := range rapid.IntRange(0, 25).Draw(t, "runs") {
			view := ledger.RunView{
				Run: fmt.Sprint("r", i), StartedAt: after(float64(rapid.IntRange(0, 10).Draw(t, "start"))),
				Pipeline: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "of"), State: rapid.SampledFrom(states).Draw(t, "is"),
			}
			if query.Selects(view) {
				want = append(want, view.Run)
			}
			where := rapid.IntRange(0, 2).Draw(t, "where")
			if where != 0 {
				live = append(live, view)
			}
			if where == 2 {
				view.State = rapid.SampledFrom(states).Draw(t, "was")
			}
			if where != 1 {
				kept = append(kept, view)
			}
		}
		var got []string
		var last ledger.Place
		for pages := 0; ; pages++ {
			found := kept.part(query)
			part := live.part(query)
			for _, view := range found.Runs { // live says how those are that were found there
				if i := slices.IndexFunc(live, func(l ledger.RunView) bool { return l.Run == view.Run }); i >= 0 &&
					!slices.ContainsFunc(part.Runs, func(l ledger.RunView) bool { return l.Run == view.Run }) {
					part.Runs = append(part.Runs, live[i])
				}
			}
			page := ledger.Join(query, part, found)
			if len(page.Runs) > query.Limit {
				t.Fatalf("a page of %d runs, want at most %d", len(page.Runs), query.Limit)
			}
			for _, view := range page.Runs {
				if place := ledger.PlaceOf(view); !last.IsZero() && place.Compare(last) <= 0 {
					t.Fatalf("%v comes after %v", place, last)
				}
				last = ledger.PlaceOf(view)
				got = append(got, view.Run)
			}
			if page.Next.IsZero() {
				break
			}
			next, err := ledger.ParsePlace(page.Next.String())
			if err != nil || next.Compare(page.Next) != 0 {
				t.Fatalf("%v reads as %v, %v", page.Next, next, err)
			}
			query.After = next
			live = append(live, ledger.RunView{
				Run: fmt.Sprint("new", pages), StartedAt: after(20 + float64(pages)), Pipeline: "p", State: predictor.RunRunning,
			})
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("pages have %v, want %v", got, want)
		}
	})
}

func TestTextThatIsNoPlaceIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"x", "!", "MTIz", "MTIzIA", "LTEgcg", "IHI"} {
		if place, err := ledger.ParsePlace(text); err == nil {
			t.Errorf("%q reads as %v", text, place)
		}
	}
	if place, err := ledger.ParsePlace(""); err != nil || !place.IsZero() {
		t.Errorf("the empty text: %v, %v", place, err)
	}
}

// TestEndedRunsStayUntilTheyAreKept lets others keep ended runs, while one of them takes in another Record.
func TestEndedRunsStayUntilTheyAreKept(t *testing.T) {
	t.Parallel()
	l := ledger.New()
	for i := range 150 {
		id := fmt.Sprint("r", i)
		begun := started(id)
		begun.At = after(float64(i))
		l.Apply(begun)
		l.Apply(predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(float64(i) + 0.5)})
	}
	first := l.Unkept(1000)
	if len(first) != 150 || first[0].View().Run != "r0" {
		t.Fatalf("%d runs are to be kept", len(first))
	}
	late := record(0, 1, predictor.Pool, predictor.Succeeded)
	late.Run = "r149"
	l.Apply(late)
	l.Keep(first)
	if left := l.Unkept(1000); len(left) != 1 || left[0].View().Run != "r149" || left[0].View().Totals.Attempts != 1 {
		t.Errorf("left to be kept: %+v, want r149 with its Record", left)
	}
	if runs := l.Runs(ledger.Query{}).Runs; len(runs) != 100 || runs[99].Run != "r50" {
		t.Errorf("%d runs are here, want the newest 100", len(runs))
	}
	l.Apply(predictor.Sampled{Run: "r3", Stage: score, Task: "t", Attempt: 1, At: after(200)})
	if going := l.Going(); len(going) != 0 {
		t.Errorf("what is told late of ended runs has opened %v", going)
	}
}

// TestWhatStartAndEndTellIsWhatTheLedgerTells compares the two of a run that did nothing.
func TestWhatStartAndEndTellIsWhatTheLedgerTells(t *testing.T) {
	t.Parallel()
	begun := started("r")
	begun.Input, begun.Event, begun.EventAt = []byte(`{"a":1}`), "e", after(-1)
	over := predictor.RunEnded{Run: "r", State: predictor.RunFailed, Error: "boom", Result: []byte("{cut"), At: after(3)}
	l := apply(begun, over)
	if diff := cmp.Diff(view(t, l, "r"), ledger.Begun(begun).Over(over)); diff != "" {
		t.Error(diff)
	}
	if begun := ledger.Begun(begun); begun.State != predictor.RunRunning || time.Until(begun.StartedAt) > 0 {
		t.Errorf("it has begun: %+v", begun)
	}
}
