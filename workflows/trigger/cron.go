package trigger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// field is one field of a cron expression.
type field struct {
	name     string
	min, max int
	names    []string // lower case; names[i] stands for first+i
	first    int
	prefix   int // fewest letters of a name
}

// cronFields are the fields of the 7-field form, as Temporal reads them: https://docs.temporal.io/schedule#spec.
func cronFields() [7]field {
	months := []string{
		"january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
		"november", "december",
	}
	days := []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}
	return [7]field{
		{name: "second", max: 59},
		{name: "minute", max: 59},
		{name: "hour", max: 23},
		{name: "day of month", min: 1, max: 31},
		{name: "month", min: 1, max: 12, names: months, first: 1, prefix: 3},
		{name: "day of week", max: 7, names: days, prefix: 2},
		{name: "year", min: 2000, max: 2100},
	}
}

// checkCron refuses what Temporal would not take as a cron expression in UTC. It takes 5 fields (minute to day of
// week), 6 (and year), 7 (and second first), @yearly, @monthly, @weekly, @daily, @hourly and @every INTERVAL.
func checkCron(expression string) error {
	text := strings.TrimSpace(expression)
	switch {
	case text == "":
		return errors.New(`schedule is empty: give a cron expression such as "0 3 * * *"`)
	case strings.HasPrefix(text, "TZ="), strings.HasPrefix(text, "CRON_TZ="):
		return fmt.Errorf("schedule %q names a time zone: schedules are in UTC", expression)
	case strings.Contains(text, "#"):
		return fmt.Errorf("schedule %q has a comment: leave # out", expression)
	case strings.HasPrefix(text, "@"):
		return checkShorthand(text)
	}
	parts := strings.Fields(text)
	fields := cronFields()
	var use []field
	switch len(parts) {
	case 5:
		use = fields[1:6]
	case 6:
		use = fields[1:7]
	case 7:
		use = fields[:]
	default:
		return fmt.Errorf("schedule %q has %d fields: give 5 (minute hour day month weekday), or with year 6, or with "+
			"second first 7", expression, len(parts))
	}
	for i, part := range parts {
		for item := range strings.SplitSeq(part, ",") {
			if err := use[i].check(item); err != nil {
				return fmt.Errorf("schedule %q: %w", expression, err)
			}
		}
	}
	return nil
}

func checkShorthand(text string) error {
	switch text {
	case "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly":
		return nil
	}
	rest, every := strings.CutPrefix(text, "@every ")
	if !every {
		return fmt.Errorf("schedule %q is unknown: use @hourly, @daily, @weekly, @monthly, @yearly, @every 10m, or "+
			"five fields", text)
	}
	interval, phase, hasPhase := strings.Cut(rest, "/")
	every1, err := parseInterval(interval)
	if err != nil || every1 < time.Second {
		return fmt.Errorf("schedule %q: interval %q is not a time of at least a second, such as 30s, 10m, 2h or 1d", text,
			interval)
	}
	if hasPhase {
		if offset, err := parseInterval(phase); err != nil || offset < 0 || offset >= every1 {
			return fmt.Errorf("schedule %q: phase %q is not a time shorter than the interval", text, phase)
		}
	}
	return nil
}

// parseInterval is time.ParseDuration with a unit for days, which Temporal takes alone: "1d".
func parseInterval(text string) (time.Duration, error) {
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// check refuses an item of a list: "*", "5", "mon", "1-5", "*/10", "1-9/2".
func (f field) check(item string) error {
	span, step, hasStep := strings.Cut(item, "/")
	if hasStep {
		if n, err := strconv.Atoi(step); err != nil || n < 1 {
			return fmt.Errorf("step %q of %s is not a number of at least 1", step, f.name)
		}
	}
	if span == "*" {
		return nil
	}
	from, to, isRange := strings.Cut(span, "-")
	low, err := f.value(from)
	if err != nil {
		return err
	}
	if !isRange {
		return nil
	}
	high, err := f.value(to)
	if err != nil {
		return err
	}
	if high < low {
		return fmt.Errorf("range %q of %s ends before it begins", span, f.name)
	}
	return nil
}

func (f field) value(text string) (int, error) {
	if len(f.names) > 0 && len(text) >= f.prefix {
		for i, name := range f.names {
			if strings.HasPrefix(name, strings.ToLower(text)) {
				return f.first + i, nil
			}
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max {
		return 0, fmt.Errorf("%s %q is not in the range %d to %d", f.name, text, f.min, f.max)
	}
	return n, nil
}
