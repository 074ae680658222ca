package trigger

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// checkFires refuses a schedule that checkCron takes and that names no time after now, such as 31 February: it would be
// kept and start nothing. Temporal fires when all fields match.
func checkFires(expression string, now time.Time) error {
	parts := strings.Fields(expression)
	if strings.HasPrefix(strings.TrimSpace(expression), "@") {
		return nil
	}
	fields := cronFields()
	if len(parts) == 7 {
		parts = parts[1:]
	}
	// Of the minutes and hours there is always one; years are the optional last.
	days, months, weekdays := fields[3].values(parts[2]), fields[4].values(parts[3]), fields[5].values(parts[4])
	years := fields[6].values("*")
	if len(parts) == 6 {
		years = fields[6].values(parts[5])
	}
	weekdays[0] = weekdays[0] || weekdays[7]
	last := time.Date(fields[6].max, time.December, 31, 0, 0, 0, 0, time.UTC)
	now = now.UTC()
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	for day := today; !day.After(last); day = day.AddDate(0, 0, 1) {
		if years[day.Year()] && months[int(day.Month())] && days[day.Day()] && weekdays[int(day.Weekday())] {
			return nil
		}
	}
	return fmt.Errorf("schedule %q never fires: there is no such day from %s on", expression, now.Format(time.DateOnly))
}

// values are those that a list of items stands for, which check takes.
func (f field) values(list string) map[int]bool {
	values := map[int]bool{}
	for item := range strings.SplitSeq(list, ",") {
		span, stepText, hasStep := strings.Cut(item, "/")
		step := 1
		if hasStep {
			step, _ = strconv.Atoi(stepText)
		}
		low, high := f.min, f.max
		if span != "*" {
			from, to, isRange := strings.Cut(span, "-")
			low, _ = f.value(from)
			switch {
			case isRange:
				high, _ = f.value(to)
			case !hasStep:
				high = low
			}
		}
		for value := low; value <= high; value += max(step, 1) {
			values[value] = true
		}
	}
	return values
}
