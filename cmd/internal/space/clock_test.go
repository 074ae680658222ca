package space

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSteady(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct{ gone, ahead, want time.Duration }{
		"a clock that is right":                         {time.Hour, 0, time.Hour},
		"one that is years ahead":                       {time.Hour, 4000 * day, 25 * time.Hour},
		"one that is years ahead, of which nothing was": {0, 4000 * day, 0},
		"a week in which no engine ran":                 {7 * time.Hour, 7 * day, 7*day + 7*time.Hour},
		"one that was turned back":                      {time.Hour, -5 * time.Hour, -4 * time.Hour},
	} {
		if got := steady(noon, noon.Add(test.gone+test.ahead), test.gone).Sub(noon); got != test.want {
			t.Errorf("%s: things have aged by %s, want %s", name, got, test.want)
		}
	}
}

// TestTheTimeByWhichThingsAgeDoesNotDependOnHowOftenItIsAsked asks along the way, or only at the end.
func TestTheTimeByWhichThingsAgeDoesNotDependOnHowOftenItIsAsked(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		began := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
		ahead := time.Duration(rapid.Int64Range(0, int64(9000*day)).Draw(t, "ahead"))
		ran := time.Duration(0)
		wall := func() time.Time { return began.Add(ran + ahead) }
		c := clock{wall: wall, ran: func() time.Duration { return ran }, seen: began}
		for _, step := range rapid.SliceOfN(rapid.Int64Range(0, int64(day)), 0, 20).Draw(t, "steps") {
			ran += time.Duration(step)
			c.now()
		}
		got, left := c.now()
		if want := steady(began, wall(), ran); !got.Equal(want) || left != wall().Sub(want) {
			t.Fatalf("after %s with a clock that is %s ahead: %s, %s left; want %s", ran, ahead, got, left, want)
		}
	})
}
