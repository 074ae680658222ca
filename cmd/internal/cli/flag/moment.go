package flag

import (
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
)

// Moment is a flag that takes a time: as RFC 3339 has it, a day, or how long ago.
type Moment struct {
	Value *time.Time
	// Past refuses a time that is still to come.
	Past bool
}

// String returns the time as RFC 3339 has it; empty for none.
func (m Moment) String() string {
	if m.Value == nil || m.Value.IsZero() {
		return ""
	}
	return m.Value.Format(time.RFC3339)
}

// Type is the placeholder in the usage.
func (m Moment) Type() string { return "TIME" }

// Set reads "2026-11-20T09:00:00Z", "2026-11-20", "24h" or "7d".
func (m Moment) Set(text string) error {
	now := time.Now()
	at, err := parseMoment(text, now)
	if err != nil {
		return err
	}
	if m.Past && at.After(now) {
		return &fault.UsageError{Problem: "it is in the future", Hint: "give a time that has been, such as 24h for a day ago"}
	}
	*m.Value = at
	return nil
}

// mostDays is more than a state directory lives: longer spans overflow a duration.
const mostDays = 36500

func parseMoment(text string, now time.Time) (time.Time, error) {
	const hint = "write a time such as 2026-11-20T09:00:00Z, a day such as 2026-11-20, or how long ago, such as 24h or 7d"
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	if at, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return at, nil
	}
	var ago time.Duration
	if digits, inDays := strings.CutSuffix(text, "d"); inDays {
		days, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || days > mostDays {
			return time.Time{}, &fault.UsageError{Problem: "it is not a number of days", Hint: hint}
		}
		ago = time.Duration(days) * 24 * time.Hour
	} else {
		var err error
		if ago, err = time.ParseDuration(text); err != nil {
			return time.Time{}, &fault.UsageError{Problem: "it is neither a time nor how long ago", Hint: hint}
		}
	}
	if ago < 0 {
		return time.Time{}, &fault.UsageError{Problem: "it is negative", Hint: hint}
	}
	return now.Add(-ago), nil
}
