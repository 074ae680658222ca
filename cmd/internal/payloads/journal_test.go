package payloads

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestKeysThatAreNeededAreMissed(t *testing.T) {
	t.Parallel()
	first, second := keysOf(t, october), keysOf(t, november, october)
	other := keysOf(t, strings.Replace(november, "2026-11", "2026-10", 1))
	at := func(day int) time.Time { return time.Date(2026, 10, day, 12, 0, 0, 0, time.UTC) }
	const retention = 10 * 24 * time.Hour
	type step struct {
		keys *Keys
		day  int
		want string // of the key that is missed; empty where all are there
	}
	for name, row := range map[string]struct {
		steps []step
		want  []Used // without marks
	}{
		"no keys":    {steps: []step{{nil, 1, ""}, {nil, 2, ""}}},
		"one key":    {[]step{{nil, 1, ""}, {first, 2, ""}, {first, 3, ""}}, []Used{{ID: "2026-10", Since: at(2)}}},
		"it is gone": {[]step{{first, 1, ""}, {nil, 40, "2026-10"}}, []Used{{ID: "2026-10", Since: at(1)}}},
		"rotated, and too early taken away": {
			[]step{{first, 1, ""}, {second, 5, ""}, {keysOf(t, november), 14, "2026-10"}},
			[]Used{{ID: "2026-10", Since: at(1), Until: at(5)}, {ID: "2026-11", Since: at(5)}},
		},
		"rotated, and taken away": {
			[]step{{first, 1, ""}, {second, 5, ""}, {keysOf(t, november), 16, ""}, {nil, 17, "2026-11"}},
			[]Used{{ID: "2026-10", Since: at(1), Until: at(5)}, {ID: "2026-11", Since: at(5)}},
		},
		"and back again": {
			[]step{{first, 1, ""}, {second, 5, ""}, {keysOf(t, october, november), 7, ""}},
			[]Used{{ID: "2026-10", Since: at(1)}, {ID: "2026-11", Since: at(5), Until: at(7)}},
		},
		"another key of that ID": {
			[]step{{first, 1, ""}, {other, 2, "2026-10"}}, []Used{{ID: "2026-10", Since: at(1)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, s := range row.steps {
				_, described := Describe(dir, s.keys, retention, at(s.day))
				err := Use(dir, s.keys, retention, at(s.day))
				missing, is := errors.AsType[*MissingError](err)
				if is != (s.want != "") || is && (missing.ID != s.want || !strings.Contains(missing.Error(), s.want)) {
					t.Fatalf("day %d: %v, want %q missed", s.day, err, s.want)
				}
				if (described == nil) != (err == nil) {
					t.Errorf("day %d: Describe says %v, and Use %v", s.day, described, err)
				}
			}
			journal, err := readJournal(dir)
			if err != nil {
				t.Fatal(err)
			}
			for i := range journal {
				journal[i].Mark = ""
			}
			if diff := cmp.Diff(row.want, journal); diff != "" {
				t.Errorf("the journal is another (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeysAreDescribedByWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	day := func(n int) time.Time { return time.Date(2026, 10, n, 12, 0, 0, 0, time.UTC) }
	rotated := keysOf(t, november, october)
	if err := Use(dir, keysOf(t, october), time.Hour, day(1)); err != nil {
		t.Fatal(err)
	}
	before, err := Describe(dir, rotated, time.Hour, day(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := Use(dir, rotated, time.Hour, day(2)); err != nil {
		t.Fatal(err)
	}
	after, err := Describe(dir, rotated, 48*time.Hour, day(3))
	if err != nil {
		t.Fatal(err)
	}
	late, err := Describe(dir, rotated, time.Hour, day(3))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"key 2026-11 encrypts from the next start on", "key 2026-10 decrypts, and encrypts until the next start"},
		{"key 2026-11 encrypts", "key 2026-10 decrypts what was encrypted until 2026-10-02"},
		{
			"key 2026-11 encrypts",
			"key 2026-10 decrypts what was encrypted until 2026-10-02: it is needed only by runs that have gone on since",
		},
	}
	if diff := cmp.Diff(want, [][]string{before, after, late}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
