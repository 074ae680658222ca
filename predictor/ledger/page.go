package ledger

import (
	"cmp"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Query selects runs. Zero fields select all.
type Query struct {
	// Limit is the most runs to return; 0 is no limit.
	Limit int
	// State keeps only runs in this state.
	State predictor.RunState
	// Pipeline keeps only runs of this pipeline.
	Pipeline string
	// Since keeps only runs that started then or later.
	Since time.Time
	// After keeps only runs that come behind this place in the list; the zero Place is before the first.
	After Place
}

// Place is where a run stands in the list of runs: the newest start first, and of equal starts the last name. Runs
// that start later do not move it.
type Place struct {
	StartedAt time.Time
	Run       string
}

// errPlace says that a text names no place.
var errPlace = errors.New("not where a page of runs has ended")

// PlaceOf is where a run stands.
func PlaceOf(view RunView) Place { return Place{StartedAt: view.StartedAt, Run: view.Run} }

// IsZero reports whether the place is before the first run.
func (p Place) IsZero() bool { return p.Run == "" }

// Nanoseconds is the start as lists are sorted by it.
func (p Place) Nanoseconds() int64 { return spend.Nanoseconds(p.StartedAt) }

// Compare is negative when p comes before q in the list.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(q.Nanoseconds(), p.Nanoseconds()), cmp.Compare(q.Run, p.Run))
}

// String is the place as an opaque text; empty for the zero Place.
func (p Place) String() string {
	if p.IsZero() {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.Nanoseconds(), 10) + " " + p.Run))
}

// ParsePlace is the inverse of String.
func ParsePlace(text string) (Place, error) {
	if text == "" {
		return Place{}, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return Place{}, errPlace
	}
	digits, run, found := strings.Cut(string(data), " ")
	started, err := strconv.ParseInt(digits, 10, 64)
	if !found || err != nil || run == "" || started < 0 {
		return Place{}, errPlace
	}
	return Place{StartedAt: time.Unix(0, started).UTC(), Run: run}, nil
}

// Selects reports whether a run is among those that are asked for, but for the limit.
func (q Query) Selects(view RunView) bool {
	return (q.State == "" || q.State == view.State) && (q.Pipeline == "" || q.Pipeline == view.Pipeline) &&
		(q.Since.IsZero() || !view.StartedAt.Before(q.Since)) &&
		(q.After.IsZero() || PlaceOf(view).Compare(q.After) > 0)
}

// RunTotals is what runs come to altogether.
type RunTotals struct {
	// Runs is how many there are, and States how many of them in each state; all states are always present.
	Runs   int                        `json:"runs"`
	States map[predictor.RunState]int `json:"states"`
	// Cost is what their attempts have cost that have ended.
	Cost quantity.Money `json:"cost_picodollars"`
	// MissedDeadlines and MissedBudgets are how many have taken longer, or have cost more, than their goals allow,
	// whether they go on or not.
	MissedDeadlines int `json:"missed_deadlines"`
	MissedBudgets   int `json:"missed_budgets"`
}

// NewRunTotals returns those of no runs.
func NewRunTotals() RunTotals {
	return RunTotals{States: map[predictor.RunState]int{
		predictor.RunRunning: 0, predictor.RunSucceeded: 0, predictor.RunFailed: 0, predictor.RunCancelled: 0,
	}}
}

// Add adds the totals of runs that are all in one state.
func (t *RunTotals) Add(state predictor.RunState, of RunTotals) {
	t.Runs += of.Runs
	t.States[state] += of.Runs
	t.Cost = t.Cost.Plus(of.Cost)
	t.MissedDeadlines += of.MissedDeadlines
	t.MissedBudgets += of.MissedBudgets
}

// Page is a part of the list of runs.
type Page struct {
	// Runs are in the order of their places.
	Runs []RunView
	// Next is where the page behind this one begins, as Query.After; the zero Place when there is none.
	Next Place
}

// Part is what one store of runs has of a page.
type Part struct {
	Runs []RunView
	// End is the place up to which the store has looked; the zero Place when it has looked at all of its runs.
	End Place
}

// Join makes a page of what two stores have of it. A run that both have is as live says, since kept may be older, but
// where kept tells of it more fully.
func Join(query Query, live, kept Part) Page {
	var end Place // behind it, one of the two may have runs that are not here
	for _, part := range []Part{live, kept} {
		if !part.End.IsZero() && (end.IsZero() || part.End.Compare(end) < 0) {
			end = part.End
		}
	}
	page := Page{Runs: []RunView{}}
	known := make(map[string]bool, len(live.Runs))
	older := make(map[string]RunView, len(kept.Runs))
	for _, view := range kept.Runs {
		older[view.Run] = view
	}
	add := func(view RunView) {
		if query.Selects(view) && (end.IsZero() || PlaceOf(view).Compare(end) <= 0) {
			page.Runs = append(page.Runs, view)
		}
	}
	for _, view := range live.Runs {
		known[view.Run] = true
		if was, both := older[view.Run]; both && was.Fuller(view) {
			view = was
		}
		add(view)
	}
	for _, view := range kept.Runs {
		if !known[view.Run] {
			add(view)
		}
	}
	slices.SortFunc(page.Runs, func(a, b RunView) int { return PlaceOf(a).Compare(PlaceOf(b)) })
	page.Next = end
	if query.Limit > 0 && len(page.Runs) > query.Limit {
		page.Runs = page.Runs[:query.Limit]
		page.Next = PlaceOf(page.Runs[query.Limit-1])
	}
	return page
}
