package payloads

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/documents"
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
			server, shared := Server{Dir: t.TempDir(), ID: "one", Name: "gpu-1"}, documents.Local()
			for _, s := range row.steps {
				_, described := Describe(server.Dir, s.keys, retention, at(s.day))
				_, err := OpenJournal(t.Context(), shared, server, s.keys, retention, at(s.day))
				missing, is := errors.AsType[*MissingError](err)
				if is != (s.want != "") || is && (missing.ID != s.want || !strings.Contains(missing.Error(), s.want)) {
					t.Fatalf("day %d: %v, want %q missed", s.day, err, s.want)
				}
				if (described == nil) != (err == nil) {
					t.Errorf("day %d: Describe says %v, and OpenJournal %v", s.day, described, err)
				}
			}
			own, _ := documents.Of[served](shared, kind, nil).Get(server.ID)
			for i := range own.Used {
				own.Used[i].Mark = ""
			}
			if diff := cmp.Diff(row.want, own.Used); diff != "" {
				t.Errorf("the journal is another (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAKeyThatAnotherServerHasUsedIsMissed: servers of one stack, each with keys and a state directory of its own.
func TestAKeyThatAnotherServerHasUsedIsMissed(t *testing.T) {
	t.Parallel()
	first, second, rotated := keysOf(t, october), keysOf(t, november), keysOf(t, november, october)
	gaveUp := keysOf(t, november, "2026-10 lost")
	other := keysOf(t, strings.Replace(november, "2026-11", "2026-10", 1))
	const retention = 10 * 24 * time.Hour
	at := func(day int) time.Time { return time.Date(2026, 10, day, 12, 0, 0, 0, time.UTC) }
	type step struct {
		server string
		keys   *Keys
		day    int
		want   string // what is said of a key that is missed; empty where all are there
	}
	for name, steps := range map[string][]step{
		"one joins with the same":     {{"a", first, 1, ""}, {"b", first, 2, ""}, {"a", first, 3, ""}},
		"one joins with another":      {{"a", first, 1, ""}, {"b", second, 2, `"2026-10" is missing`}},
		"one joins with none":         {{"a", first, 1, ""}, {"b", nil, 2, "at server host-a"}},
		"one joins with its namesake": {{"a", first, 1, ""}, {"b", other, 2, "another than the one"}},
		"one joins with both": {
			{"a", first, 1, ""}, {"b", rotated, 2, ""}, {"a", first, 3, `"2026-11" is missing`},
		},
		"one has rotated, another not": {
			{"a", first, 1, ""}, {"b", first, 1, ""}, {"a", rotated, 2, ""}, {"b", rotated, 30, ""},
		},
		"the old one is taken away": {{"a", first, 1, ""}, {"b", second, 12, ""}, {"b", second, 13, ""}},
		"a server is gone, and its key": {
			{"a", first, 1, ""}, {"b", second, 11, `"2026-10" is missing`}, {"b", second, 12, ""},
		},
		"the key is lost": {{"a", first, 1, ""}, {"b", gaveUp, 2, ""}, {"b", gaveUp, 3, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shared, dirs := documents.Local(), map[string]string{"a": t.TempDir(), "b": t.TempDir()}
			for i, s := range steps {
				server := Server{Dir: dirs[s.server], ID: s.server, Name: "host-" + s.server}
				_, err := OpenJournal(t.Context(), shared, server, s.keys, retention, at(s.day))
				if (err != nil) != (s.want != "") || err != nil && !strings.Contains(err.Error(), s.want) {
					t.Errorf("step %d: got %v, want %q", i, err, s.want)
				}
			}
		})
	}
}

// TestWhatAnEngineOfBeforeHasNotedIsTakenInOnce: its file named a key that is needed.
func TestWhatAnEngineOfBeforeHasNotedIsTakenInOnce(t *testing.T) {
	t.Parallel()
	first, second := keysOf(t, october), keysOf(t, november)
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	server, shared := Server{Dir: t.TempDir(), ID: "one", Name: "gpu-1"}, documents.Local()
	path := filepath.Join(server.Dir, "payload-keys.json")
	mark := first.keys[0].mark()
	if err := os.WriteFile(path, []byte(`[{"id": "2026-10", "mark": "`+mark+`", "since": "2026-10-01T12:00:00Z"}]`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Describe(server.Dir, second, time.Hour, now); err == nil {
		t.Error("before it is taken in nobody misses the key")
	}
	for i, c := range []struct {
		keys   *Keys
		missed bool
	}{{second, true}, {second, true}, {first, false}, {keysOf(t, november, october), false}} {
		if _, err := OpenJournal(t.Context(), shared, server, c.keys, time.Hour, now); (err != nil) != c.missed {
			t.Errorf("start %d: got %v, want a key missed: %v", i, err, c.missed)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("start %d: the file of before is still there", i)
		}
	}
	if _, err := os.Stat(path + ".taken-in"); err != nil {
		t.Error(err)
	}
}

func TestKeysAreDescribedByWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	server, shared := Server{Dir: t.TempDir(), ID: "one", Name: "gpu-1"}, documents.Local()
	use := func(keys *Keys, now time.Time) {
		t.Helper()
		if _, err := OpenJournal(t.Context(), shared, server, keys, time.Hour, now); err != nil {
			t.Fatal(err)
		}
	}
	day := func(n int) time.Time { return time.Date(2026, 10, n, 12, 0, 0, 0, time.UTC) }
	rotated := keysOf(t, november, october)
	use(keysOf(t, october), day(1))
	before, err := Describe(server.Dir, rotated, time.Hour, day(2))
	if err != nil {
		t.Fatal(err)
	}
	use(rotated, day(2))
	after, err := Describe(server.Dir, rotated, 48*time.Hour, day(3))
	if err != nil {
		t.Fatal(err)
	}
	late, err := Describe(server.Dir, rotated, time.Hour, day(3))
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
