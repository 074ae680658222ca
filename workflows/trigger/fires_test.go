package trigger

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestAScheduleThatNeverFiresIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	for expression, fires := range map[string]bool{
		"0 0 31 2 *":        false,
		"0 0 30,31 feb *":   false,
		"0 0 31 4,6,9,11 *": false,
		"0 0 29 2 *":        true, // in leap years
		"0 0 29 2 mon":      true, // 2044
		"0 0 29 2 * 2027":   false,
		"0 0 29 2 * 2028":   true,
		"0 0 1 1 * 2026":    false, // has passed
		"0 0 23 11 * 2026":  true,
		"0 0 0 31 */2 * *":  true, // January
		"0 0 31 2-12/2 *":   true, // August
		"0 0 31 2/2 *":      true,
		"0 0 31 2,4,6 *":    false,
		"0 0 1 1 sun 2028":  false, // a Saturday
		"0 0 1 1 6 2028":    true,
		"0 0 * * 7":         true,
		"@every 10m":        true,
		"@yearly":           true,
		"*/5 * * * *":       true,
		"0 3 * * mon-fri":   true,
	} {
		if err := checkCron(expression); err != nil {
			t.Errorf("%q is no expression: %v", expression, err)
			continue
		}
		if err := checkFires(expression, now); (err == nil) != fires {
			t.Errorf("%q: %v, want that it fires: %v", expression, err, fires)
		}
	}
	never := wire.Binding{Pipeline: "digits", Subject: "data.new", Schedule: "0 0 31 2 *"}
	if err := Check(never); err == nil {
		t.Error("a binding whose schedule never fires is taken")
	}
}
