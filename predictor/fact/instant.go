package fact

import "time"

// Instant is a time in nanoseconds since 1970; 0 is unknown. It survives JSON unchanged, whatever clock and zone it
// came from.
type Instant int64

// At returns the instant of t; 0 for times that no clock of ours shows (before 1970, after 2200).
func At(t time.Time) Instant {
	if year := t.UTC().Year(); year < 1970 || year > 2200 {
		return 0
	}
	return Instant(t.UnixNano())
}

// Time returns the time of i, in UTC.
func (i Instant) Time() time.Time { return time.Unix(0, int64(i)).UTC() }

// Since returns how many seconds passed from earlier to i, never below zero.
func (i Instant) Since(earlier Instant) float64 {
	return max(0, time.Duration(i-earlier).Seconds())
}
