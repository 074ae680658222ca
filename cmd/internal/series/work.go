package series

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Arrivals are tasks that came at times, or how many came in minutes; only one of the two.
type Arrivals struct {
	// Tasks are in the order of their times.
	Tasks []Arrival
	// Minutes are in the order of their times; those without a row brought nothing.
	Minutes []Minute
}

// Arrival is a task that came.
type Arrival struct {
	At time.Time
	// Work is how long a core is busy with it; more than 0.
	Work time.Duration
}

// Minute is how many tasks came in a minute that began At.
type Minute struct {
	At    time.Time
	Count int
}

// mostWork is a year: of more, thousands of tasks would come after the end of time.
const mostWork = 365 * 24 * time.Hour

// mostCount bounds the tasks of a minute.
const mostCount = 100_000_000

// Work reads "timestamp,work" rows, each a task and the core-seconds that it takes, or "timestamp,count" rows, each a
// minute and how many tasks came in it. The columns are in any order below a header, others are not looked at. Times
// are as RFC 3339 has them or seconds since 1970, and do not go backwards; those of minutes are at least a minute
// apart. An error names the line and says what to do.
func Work(source io.Reader) (Arrivals, error) {
	reader := csv.NewReader(source)
	reader.ReuseRecord = true
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return Arrivals{}, fmt.Errorf("line 1: %w: the file is empty; begin it with the header timestamp,work or "+
			"timestamp,count", ErrFormat)
	}
	if err != nil {
		return Arrivals{}, fmt.Errorf("line 1: %w: %w", ErrFormat, err)
	}
	header = slices.Clone(header)
	for i := range header {
		header[i] = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(header[i], "\ufeff")))
	}
	at, work, count := slices.Index(header, "timestamp"), slices.Index(header, "work"), slices.Index(header, "count")
	switch {
	case at < 0:
		return Arrivals{}, fmt.Errorf("line 1: %w: no column timestamp among %s; name the columns timestamp,work or "+
			"timestamp,count", ErrFormat, strings.Join(header, ", "))
	case work < 0 && count < 0:
		return Arrivals{}, fmt.Errorf("line 1: %w: neither a column work (core-seconds of a task) nor count (tasks of a "+
			"minute) among %s; add one", ErrFormat, strings.Join(header, ", "))
	case work >= 0 && count >= 0:
		return Arrivals{}, fmt.Errorf("line 1: %w: both the columns work and count; keep one", ErrFormat)
	}
	var all Arrivals
	for row, err := range read(reader) {
		if err != nil {
			return Arrivals{}, err
		}
		if work >= 0 {
			err = all.addTask(row, at, work)
		} else {
			err = all.addMinute(row, at, count)
		}
		if err != nil {
			return Arrivals{}, err
		}
	}
	if len(all.Tasks) == 0 && !slices.ContainsFunc(all.Minutes, func(m Minute) bool { return m.Count > 0 }) {
		return Arrivals{}, fmt.Errorf("line 2: %w: nothing came below the header; give at least one task", ErrFormat)
	}
	return all, nil
}

func (a *Arrivals) addTask(row row, at, work int) error {
	when, err := row.moment(at)
	if err != nil {
		return err
	}
	if n := len(a.Tasks); n > 0 && when.Before(a.Tasks[n-1].At) {
		return row.fault("%s is before the row above; sort the rows by timestamp", row.fields[at])
	}
	seconds, err := row.number(work)
	if err != nil {
		return fmt.Errorf("%w; give the core-seconds of the task, more than 0", err)
	}
	if seconds < 1e-6 || seconds > mostWork.Seconds() {
		return row.fault("work of %s core-seconds; give more than a microsecond and at most a year", row.fields[work])
	}
	a.Tasks = append(a.Tasks, Arrival{At: when, Work: time.Duration(seconds * float64(time.Second))})
	return nil
}

func (a *Arrivals) addMinute(row row, at, count int) error {
	when, err := row.moment(at)
	if err != nil {
		return err
	}
	if n := len(a.Minutes); n > 0 && when.Before(a.Minutes[n-1].At.Add(time.Minute)) {
		return row.fault("%s is less than a minute after the row above; give one row for each minute, sorted by "+
			"timestamp", row.fields[at])
	}
	tasks, err := strconv.ParseUint(strings.TrimSpace(row.fields[count]), 10, 32)
	if err != nil || tasks > mostCount {
		return row.fault("%q is no number of tasks from 0 to %d; give whole numbers", row.fields[count], mostCount)
	}
	a.Minutes = append(a.Minutes, Minute{At: when, Count: int(tasks)})
	return nil
}

// moment reads a time.
func (r row) moment(column int) (time.Time, error) {
	text := strings.TrimSpace(r.fields[column])
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC(), nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds <= maxSeconds) {
		return time.Time{}, r.fault("%q is no time; write it as 2026-11-26T10:00:00Z, or as seconds since 1970", text)
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(math.Round(part*1e6))*1e3).UTC(), nil
}
