package memory

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
)

func TestAVenueThatRefusesIsTakenToHaveHalfAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	second := fact.Instant(time.Second)
	var f Full
	for _, tt := range []struct {
		at      fact.Instant
		refuses int // functions in use at a refusal; 0 for none
		want    int // of 100 slots
	}{
		{at: 0, want: 100},
		{at: 100 * second, refuses: 100, want: 50},
		{at: 109 * second, want: 50},
		{at: 110 * second, want: 100},
		{at: 111 * second, refuses: 60, want: 30},
		{at: 117 * second, refuses: 30, want: 15},
		{at: 126 * second, want: 15},
		{at: 127 * second, want: 30},
		{at: 130 * second, refuses: 1, want: 1}, // the venue has one at least
		{at: 1000 * second, want: 100},
	} {
		if tt.refuses > 0 {
			f = f.refused(tt.refuses, tt.at)
		}
		if got := f.Room(100, tt.at); got != tt.want {
			t.Errorf("at %d s: got %d slots, want %d", tt.at/second, got, tt.want)
		}
	}
}

// TestRefusalsOfOneBurstCountOnce: a hundred tasks that are refused together say no more than one of them.
func TestRefusalsOfOneBurstCountOnce(t *testing.T) {
	t.Parallel()
	m := New()
	now := fact.Instant(time.Minute)
	for i := range 100 {
		key := attemptKey("r", string(rune('a'+i)), 1)
		m.Attempts[key] = Attempt{Key: key, Venue: fact.Function}
	}
	for i := range 50 {
		m.Pass(now)
		m.throttled(fact.Record{
			Run: "r", Task: string(rune('a' + i)), Attempt: 1, Venue: fact.Function, Outcome: fact.Refused,
			Cause: fact.CauseThrottled,
		})
		now += fact.Instant(10 * time.Millisecond)
	}
	m.throttled(fact.Record{Venue: fact.Function, Outcome: fact.Refused, Cause: fact.CausePayload})
	want := Full{Slots: 50, At: fact.Instant(time.Minute)}
	if m.Full != want {
		t.Errorf("got %+v, want %+v", m.Full, want)
	}
	text, err := m.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	again := New()
	if err := again.UnmarshalJSON(text); err != nil || again.Full != want {
		t.Errorf("from a checkpoint: got %+v, %v, want %+v", again.Full, err, want)
	}
}

func TestARoomIsNeverMoreThanThereIsNorNone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var f Full
		clock := fact.Instant(0)
		slots := rapid.IntRange(1, 10_000).Draw(t, "slots")
		for range rapid.IntRange(0, 20).Draw(t, "refusals") {
			clock += fact.Instant(rapid.Int64Range(0, int64(1000*time.Second)).Draw(t, "pause"))
			f = f.refused(rapid.IntRange(0, slots).Draw(t, "running"), clock)
			now := clock + fact.Instant(rapid.Int64Range(0, int64(1000*time.Second)).Draw(t, "later"))
			if got := f.Room(slots, now); got < 1 || got > slots {
				t.Fatalf("got %d slots of %d from %+v", got, slots, f)
			}
		}
	})
}
