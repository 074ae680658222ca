package memory

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// arrivalsAt are tasks of a stage that come at a time, of a run of their own.
func arrivalsAt(m *State, stage string, at time.Time, tasks int) {
	m.Fold(fact.Scheduled{
		Run: "r", Stage: fact.StageID{App: "app", Build: "b", Name: stage}, Tasks: tasks, At: at,
	})
}

// midnight is a minute's beginning.
var midnight = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)

func minuteOf(i int) time.Time { return midnight.Add(time.Duration(i) * time.Minute) }

func encoded(t *testing.T, m *State) string {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestArrivalsAreCountedByTheMinuteAndQuietOnesAreKnown(t *testing.T) {
	t.Parallel()
	m := New()
	for i := range 10 {
		m.Pass(fact.At(minuteOf(i)))
		if i%3 == 0 {
			arrivalsAt(m, "score", minuteOf(i).Add(-time.Hour), 2) // whatever the clock of its host says
			m.Pass(fact.At(minuteOf(i).Add(30 * time.Second)))
			arrivalsAt(m, "score", minuteOf(i).Add(time.Hour), 3)
		}
	}
	got := m.arrivals.stages["app/score"]
	if got == nil || got.Forecaster.Seen() != 9 || len(got.Came) != 9 || got.Count != 5 {
		t.Fatalf("got %+v, want nine minutes that are over and five tasks in the one that goes on", got)
	}
	for i, came := range got.Came {
		want := 0
		if i%3 == 0 {
			want = 5
		}
		if came.Tasks != want || came.Minute != minuteOf(i).Unix()/60 || came.Known != (i > 0) {
			t.Errorf("of minute %d it is remembered %+v, want %d tasks", i, came, want)
		}
	}
}

func TestWhatNobodySawIsNoQuietMinute(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name     string
		passed   int // minutes at once
		observed int64
	}{
		{"the next minute", 1, 1},
		{"two minutes, as a host tells that it is there", 2, 2},
		{"three minutes", 3, 3},
		{"four minutes: the engine was away", 4, 1},
		{"a week away", 7 * 24 * 60, 1},
		{"a clock that is set a year ahead", 366 * 24 * 60, 1},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			m := New()
			m.Pass(fact.At(minuteOf(0)))
			arrivalsAt(m, "score", minuteOf(0), 4)
			m.Pass(fact.At(minuteOf(one.passed)))
			if got := m.arrivals.stages["app/score"].Forecaster.Seen(); got != one.observed {
				t.Errorf("%d minutes are known, want %d", got, one.observed)
			}
		})
	}
}

func TestAClockThatGoesBackIsFollowedOnceItIsAnotherTime(t *testing.T) {
	t.Parallel()
	m := New()
	for i := range 100 {
		m.Pass(fact.At(minuteOf(i)))
		arrivalsAt(m, "score", minuteOf(i), 1)
	}
	m.Pass(fact.At(minuteOf(97))) // another clock, which is slow
	arrivalsAt(m, "score", minuteOf(97), 1)
	if got := m.arrivals.stages["app/score"]; got.Count != 2 || got.Forecaster.Seen() != 99 {
		t.Fatalf("a clock that is two minutes late made it %+v, want two tasks in the minute that goes on", got)
	}
	for i := range 200 { // an hour and a half back
		m.Pass(fact.At(minuteOf(10 + i)))
		arrivalsAt(m, "score", minuteOf(10+i), 1)
	}
	got := m.arrivals.stages["app/score"]
	if got.Count != 1 || got.Last != minuteOf(209).Unix()/60 || !got.Forecaster.Newest().Equal(minuteOf(208)) {
		t.Errorf("after the clock was set back it is %+v, newest %v; want it to be followed", got, got.Forecaster.Newest())
	}
	before := int64(0)
	for _, came := range got.Came {
		if came.Tasks != 1 || came.Minute <= before {
			t.Errorf("of minute %d, after %d, it is remembered that %d tasks came, want 1 of a later one", came.Minute, before,
				came.Tasks)
		}
		before = came.Minute
	}
	for _, nonsense := range []fact.Instant{0, -1, fact.At(time.Unix(1<<40, 0)), fact.At(time.Time{})} {
		before := encoded(t, m)
		if m.Pass(nonsense); encoded(t, m) != before {
			t.Errorf("the time %d changed something", nonsense)
		}
	}
}

// TestAClockThatIsSetRightSoonLosesNothingThatWasForecast has a clock go back by ten minutes: what comes is counted,
// and the forecasts go on once it is as far as it was.
func TestAClockThatIsSetRightSoonLosesNothingThatWasForecast(t *testing.T) {
	t.Parallel()
	m := New()
	for i := range 100 {
		m.Pass(fact.At(minuteOf(i)))
		arrivalsAt(m, "score", minuteOf(i), 1)
	}
	known := m.arrivals.stages["app/score"].Forecaster.Seen()
	for i := 89; i < 110; i++ {
		m.Pass(fact.At(minuteOf(i)))
		arrivalsAt(m, "score", minuteOf(i), 2)
		want := known + int64(max(0, i-99))
		if got := m.arrivals.stages["app/score"]; got.Count != 2 || got.Forecaster.Seen() != want {
			t.Errorf("in minute %d it counts %d tasks and %d minutes are known, want 2 and %d", i, got.Count,
				got.Forecaster.Seen(), want)
		}
	}
}

func TestAStageSeenOnceADayIsForecast(t *testing.T) {
	t.Parallel()
	m := New()
	const day = 24 * 60
	at := 9 * 60
	for i := range 8 * day {
		m.Pass(fact.At(minuteOf(i)))
		if i%day == at {
			arrivalsAt(m, "nightly", minuteOf(i), 40)
		}
	}
	for i := 8 * day; i < 8*day+at; i++ {
		m.Pass(fact.At(minuteOf(i)))
	}
	f := m.arrivals.stages["app/nightly"].Forecaster
	due, other := f.At(minuteOf(8*day+at)).Exceeds(0), f.At(minuteOf(8*day+at+10)).Exceeds(0)
	t.Logf("in the minute it comes %.3f, ten minutes later %.3f", due, other)
	if due < 0.5 || other > 0.2 {
		t.Errorf("the chance that it comes in its minute is %.3f and ten minutes later %.3f, want more than 0.5 and less "+
			"than 0.2", due, other)
	}
}

func TestTenThousandStagesTakeNoMoreThanThoseThatAreFollowed(t *testing.T) {
	t.Parallel()
	m := New()
	name := func(i int) string { return fmt.Sprintf("stage-%05d", i) }
	minute := 0
	for range 3 { // all of them, three times; twenty always come
		for i := 0; i < 10_000; i += 100 {
			m.Pass(fact.At(minuteOf(minute)))
			for j := range 100 {
				m.arrivals.arrived("app/"+name(i+j), 1)
			}
			for j := range 20 {
				m.arrivals.arrived("app/often-"+name(j), 1)
			}
			minute++
		}
	}
	if got := len(m.arrivals.stages); got != maxArrivals {
		t.Errorf("%d stages are followed, want %d", got, maxArrivals)
	}
	for j := range 20 {
		got := m.arrivals.stages["app/often-"+name(j)]
		if got == nil || got.Forecaster.Seen() < 290 {
			t.Errorf("a stage at which something always comes is known as %+v, want to have been followed", got)
		}
	}
	arrivalsAt(m, "often-"+name(0), minuteOf(minute), 1)
	forgotten := 0
	for len(m.arrivals.stages) > 0 {
		n := m.Lighten()
		forgotten += n
		if n < 1 {
			t.Fatalf("nothing was forgotten of %d stages", len(m.arrivals.stages))
		}
	}
	if forgotten != maxArrivals || len(m.models) == 0 {
		t.Errorf("%d were forgotten and %d stages are known, want the arrivals alone", forgotten, len(m.models))
	}
}

func TestThoseThatComeAreFollowedWhenACheckpointWasTooLarge(t *testing.T) {
	t.Parallel()
	m := New()
	m.Pass(fact.At(minuteOf(0)))
	for i := range 8 {
		arrivalsAt(m, fmt.Sprintf("early-%d", i), minuteOf(0), 1)
	}
	m.Pass(fact.At(minuteOf(1)))
	arrivalsAt(m, "early-0", minuteOf(1), 1)
	if n := m.Lighten(); n != 2 || m.arrivals.stages["app/early-0"] == nil || m.arrivals.stages["app/early-1"] != nil {
		t.Fatalf("%d were forgotten, want two of those at which nothing came for the longest", n)
	}
	arrivalsAt(m, "late", minuteOf(1), 1)
	if m.arrivals.stages["app/late"] != nil {
		t.Error("another is followed where there is no room for it")
	}
	for i := 2; i < 90; i++ {
		m.Pass(fact.At(minuteOf(i)))
		arrivalsAt(m, "early-0", minuteOf(i), 1)
	}
	arrivalsAt(m, "late", minuteOf(89), 1)
	if m.arrivals.stages["app/late"] == nil || m.arrivals.stages["app/early-0"] == nil || len(m.arrivals.stages) != 6 {
		t.Errorf("%d are followed, want the new one instead of one that was silent for an hour", len(m.arrivals.stages))
	}
}

// TestAsManyAsThereWereAreFollowedAgain has forecasts forgotten for a checkpoint that was too large once: each day
// there is room for one more, and whoever goes on from the checkpoint tries with all.
func TestAsManyAsThereWereAreFollowedAgain(t *testing.T) {
	t.Parallel()
	m := New()
	m.Pass(fact.At(minuteOf(0)))
	arrivalsAt(m, "early-0", minuteOf(0), 1)
	arrivalsAt(m, "early-1", minuteOf(0), 1)
	if n := m.Lighten(); n != 1 {
		t.Fatalf("%d were forgotten, want one", n)
	}
	again := New()
	if err := again.UnmarshalJSON([]byte(encoded(t, m))); err != nil {
		t.Fatal(err)
	}
	arrivalsAt(again, "late", minuteOf(0), 1)
	if again.arrivals.stages["app/late"] == nil {
		t.Error("whoever goes on from the checkpoint follows no other stage")
	}
	for day := 1; day < 4; day++ {
		for i := range 24 {
			m.Pass(fact.At(minuteOf(24*60*(day-1) + 60*(i+1))))
			for _, name := range []string{"early-0", "early-1", "late-0", "late-1", "late-2", "late-3", "late-4"} {
				arrivalsAt(m, name, minuteOf(24*60*day), 1)
			}
		}
		if got := len(m.arrivals.stages); got != 1+day {
			t.Errorf("after %d days %d stages are followed, want %d", day, got, 1+day)
		}
	}
	for day := range 2 * maxArrivals {
		m.Pass(fact.At(minuteOf(24 * 60 * (4 + day))))
	}
	for i := range 2 * maxArrivals {
		m.arrivals.arrived(fmt.Sprint("app/more-", i), 1)
	}
	if got := len(m.arrivals.stages); got != maxArrivals {
		t.Errorf("in the end %d stages are followed, want %d", got, maxArrivals)
	}
}

func TestArrivalsGoOnFromACheckpointAndNotInACopy(t *testing.T) {
	t.Parallel()
	m := New()
	tell := func(m *State, from, to int) {
		for i := from; i < to; i++ {
			m.Pass(fact.At(minuteOf(i)))
			if i%7 == 0 {
				arrivalsAt(m, "score", minuteOf(i), 3)
			}
		}
	}
	tell(m, 0, 100)
	before := encoded(t, m)
	copied := m.Copied()
	copied.Pass(fact.At(minuteOf(200)))
	if encoded(t, m) != before {
		t.Error("the time that a copy was told passed in what it is a copy of")
	}
	read := New()
	if err := read.UnmarshalJSON([]byte(before)); err != nil {
		t.Fatal(err)
	}
	tell(m, 100, 200)
	tell(read, 100, 200)
	if got, want := encoded(t, read), encoded(t, m); got != want {
		t.Errorf("a state that was read goes on otherwise:\n%s\n%s", got, want)
	}
}

func TestAForecastThatCannotBeReadTakesNothingElseAlong(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{
		`null`, `1`, `{}`, `{"name":"app/score"}`, `{"name":"app/score","forecaster":null}`,
		`{"name":"app/score","forecaster":{"version":99}}`, `{"name":"","forecaster":{"version":1,"options":{}}}`,
		`{"name":"app/score","count":"x","forecaster":{"version":1,"options":{}}}`,
	} {
		m := New()
		data := `{"v":10,"term":3,"tick":4,"now":0,"begins":true,"arrivals":{"minute":5,"series":[` + stage +
			`,{"name":"app/train","forecaster":{"version":1,"options":{}}}]}}`
		if err := m.UnmarshalJSON([]byte(data)); err != nil {
			t.Errorf("%s: %v", stage, err)
			continue
		}
		if m.Term != 3 || m.arrivals.stages["app/score"] != nil || m.arrivals.stages["app/train"] == nil {
			t.Errorf("%s: read as %v, want the other stage and the term", stage, m.arrivals.stages)
		}
	}
}
