package series_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/series"
)

func TestTasksAndMinutesAreRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, time.November, 26, 10, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		text string
		want series.Arrivals
	}{
		"RFC 3339": {
			"timestamp,work\n2026-11-26T10:00:00Z,0.25\n2026-11-26T12:00:00.5+02:00,3\n",
			series.Arrivals{Tasks: []series.Arrival{
				{At: at, Work: 250 * time.Millisecond}, {At: at.Add(time.Second / 2), Work: 3 * time.Second},
			}},
		},
		"seconds, and columns of others": {
			"work,user,timestamp\n1,me,1795687200\n1,me,1795687200.125\n",
			series.Arrivals{Tasks: []series.Arrival{
				{At: at, Work: time.Second}, {At: at.Add(time.Second / 8), Work: time.Second},
			}},
		},
		"minutes with a gap": {
			"timestamp,count\n1795687200,3\n1795687380,0\n",
			series.Arrivals{Minutes: []series.Minute{{At: at, Count: 3}, {At: at.Add(3 * time.Minute)}}},
		},
	} {
		got, err := series.Work(strings.NewReader(test.text))
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestArrivalsThatAreWrongAreToldWithTheirLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"nothing":            {"", "line 1: not in the expected format: the file is empty; begin it with the header"},
		"no row":             {"timestamp,work\n", "line 2: not in the expected format: nothing came"},
		"only empty minutes": {"timestamp,count\n60,0\n", "nothing came below the header; give at least one task"},
		"no time":            {"when,work\n1,1\n", "line 1: not in the expected format: no column timestamp among when"},
		"no work":            {"timestamp,cost\n1,1\n", "add one"},
		"both":               {"timestamp,work,count\n1,1,1\n", "both the columns work and count; keep one"},
		"not a time":         {"timestamp,work\nnoon,1\n", "line 2: not in the expected format: \"noon\" is no time; write"},
		"no number":          {"timestamp,work\nNaN,1\n", "\"NaN\" is no time"},
		"backwards": {
			"timestamp,work\n10,1\n9,1\n",
			"line 3: not in the expected format: 9 is before the row above; sort the rows by timestamp",
		},
		"negative work":    {"timestamp,work\n10,-1\n", "line 2: not in the expected format: \"-1\" is negative; give"},
		"no work at all":   {"timestamp,work\n10,0\n", "line 2: not in the expected format: work of 0 core-seconds"},
		"endless work":     {"timestamp,work\n10,1e12\n", "at most a year"},
		"half a task":      {"timestamp,count\n60,0.5\n", "\"0.5\" is no number of tasks"},
		"a minute too few": {"timestamp,count\n60,1\n90,1\n", "line 3: not in the expected format: 90 is less than a minute"},
		"a short row":      {"timestamp,work\n10\n", "record on line 2: wrong number of fields"},
	} {
		_, err := series.Work(strings.NewReader(test.text))
		if err == nil || !errors.Is(err, series.ErrFormat) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
