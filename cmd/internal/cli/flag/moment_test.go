package flag

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
)

func TestMomentsAreTimesDaysOrHowLongAgo(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-11-19T08:00:00Z":      now.Add(-25 * time.Hour),
		"2026-11-19T10:00:00+02:00": now.Add(-25 * time.Hour),
		"2026-11-19":                now.Add(-33 * time.Hour),
		"24h":                       now.Add(-24 * time.Hour),
		"7d":                        now.Add(-7 * 24 * time.Hour),
		"0s":                        now,
	} {
		if got, err := parseMoment(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: got %v and %v, want %v", text, got, err, want)
		}
	}
}

func FuzzMomentsAreReadOrRefused(f *testing.F) {
	for _, text := range []string{
		"2026-11-19T08:00:00Z", "2026-11-19", "24h", "7d", "-1d", "99999999999d", "d", "-3h",
		"9e9h", "",
	} {
		f.Add(text)
	}
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		at, err := parseMoment(text, now)
		if (err != nil) != at.IsZero() && text[:min(4, len(text))] != "0001" {
			t.Errorf("%q: got both or neither of %v and %v", text, at, err)
		}
		if err != nil && fault.AdviceOf(err) == "" {
			t.Errorf("%q is refused without advice: %v", text, err)
		}
		if _, isTime := time.Parse(time.RFC3339, text); err == nil && isTime != nil && at.After(now) &&
			len(text) != len(time.DateOnly) {
			t.Errorf("%q ago is after now: %v", text, at)
		}
	})
}
