package payloads

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/documents"
)

// as are documents that this process alone has.
func as(shared *documents.Documents) Reopen {
	return func(context.Context) (*documents.Documents, error) { return shared, nil }
}

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
				_, err := OpenJournal(t.Context(), shared, as(shared), server, s.keys, retention, at(s.day))
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
			if diff := gocmp.Diff(row.want, own.Used); diff != "" {
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
				_, err := OpenJournal(t.Context(), shared, as(shared), server, s.keys, retention, at(s.day))
				if (err != nil) != (s.want != "") || err != nil && !strings.Contains(err.Error(), s.want) {
					t.Errorf("step %d: got %v, want %q", i, err, s.want)
				}
			}
		})
	}
}

// TestServersThatStartAtOnceSeeEachOthersKeys starts two, neither of which knows of the other when it begins, as
// watches come late. The second reads what is there before and after the first has read.
func TestServersThatStartAtOnceSeeEachOthersKeys(t *testing.T) {
	t.Parallel()
	first, second, both := keysOf(t, october), keysOf(t, november), keysOf(t, november, october)
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		keys   *Keys
		missed string
	}{"with the same": {first, ""}, "with both": {both, ""}, "with another": {second, "2026-10"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored, behind := documents.Local(), documents.Local() // what NATS has, and what the second server knows
			a, b := Server{t.TempDir(), "a", "host-a"}, Server{t.TempDir(), "b", "host-b"}
			if _, err := OpenJournal(t.Context(), stored, as(stored), a, first, time.Hour, now); err != nil {
				t.Fatal(err)
			}
			_, err := OpenJournal(t.Context(), behind, as(stored), b, c.keys, time.Hour, now)
			missing, is := errors.AsType[*MissingError](err)
			if is != (c.missed != "") || is && (missing.ID != c.missed || missing.Server != a.Name) || err != nil && !is {
				t.Errorf("got %v, want key %q missed", err, c.missed)
			}
			noted, known := documents.Of[served](behind, kind, nil).Get(b.ID)
			if known != (c.missed == "") {
				t.Errorf("noted is %+v of a server that is refused: %v", noted, is)
			}
			var last seen
			if err := readJSON(filepath.Join(b.Dir, SeenFile), &last); err != nil || (len(last.Others) == 0) != is {
				t.Errorf("seen are %+v (%v) by a server that is refused: %v", last, err, is)
			}
		})
	}
}

// TestAServerThatIsRefusedHasUsedNothing starts one again, with another key, while another server has begun to use one
// that it lacks.
func TestAServerThatIsRefusedHasUsedNothing(t *testing.T) {
	t.Parallel()
	other := strings.Replace(november, "2026-11", "other", 1)
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	stored, behind := documents.Local(), documents.Local()
	a, b := Server{t.TempDir(), "a", "host-a"}, Server{t.TempDir(), "b", "host-b"}
	if _, err := OpenJournal(t.Context(), behind, as(behind), b, keysOf(t, october), time.Hour, now); err != nil {
		t.Fatal(err)
	}
	before, _ := documents.Of[served](behind, kind, nil).Get(b.ID)
	if _, err := OpenJournal(t.Context(), stored, as(stored), a, keysOf(t, other), time.Hour, now); err != nil {
		t.Fatal(err)
	}
	_, err := OpenJournal(t.Context(), behind, as(stored), b, keysOf(t, november, october), time.Hour, now)
	if missing, is := errors.AsType[*MissingError](err); !is || missing.ID != "other" {
		t.Errorf("got %v, want the key of the other missed", err)
	}
	after, _ := documents.Of[served](behind, kind, nil).Get(b.ID)
	if diff := gocmp.Diff(before, after); diff != "" {
		t.Errorf("what it has used (-want +got):\n%s", diff)
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
		if _, err := OpenJournal(t.Context(), shared, as(shared), server, c.keys, time.Hour, now); (err != nil) != c.missed {
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

// TestWhatAnEngineOfBeforeUsesOnAWayBackIsMissedAfterwards goes back to an engine that keeps its file, changes keys
// there, and goes forward again.
func TestWhatAnEngineOfBeforeUsesOnAWayBackIsMissedAfterwards(t *testing.T) {
	t.Parallel()
	first, second, both := keysOf(t, october), keysOf(t, november), keysOf(t, november, october)
	day := func(n int) time.Time { return time.Date(2026, 10, n, 12, 0, 0, 0, time.UTC) }
	const retention = 10 * 24 * time.Hour
	server, shared := Server{Dir: t.TempDir(), ID: "one", Name: "gpu-1"}, documents.Local()
	if _, err := OpenJournal(t.Context(), shared, as(shared), server, first, retention, day(1)); err != nil {
		t.Fatal(err)
	}
	was, _ := documents.Of[served](shared, kind, nil).Get(server.ID)
	there, err := check(was.Used, nil, both, retention, day(2)) // as the engine of before does
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(there)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(server.Dir, earlierFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		keys   *Keys
		missed string
	}{{first, "2026-11"}, {first, "2026-11"}, {second, "2026-10"}, {both, ""}, {first, "2026-11"}} {
		_, described := Describe(server.Dir, c.keys, retention, day(3))
		_, opened := OpenJournal(t.Context(), shared, as(shared), server, c.keys, retention, day(3))
		for _, err := range []error{described, opened} {
			missing, is := errors.AsType[*MissingError](err)
			if is != (c.missed != "") || is && missing.ID != c.missed || err != nil && !is {
				t.Errorf("with keys %v: got %v, want key %q missed", c.keys.IDs(), err, c.missed)
			}
		}
	}
}

// TestAccountsOfUsedKeysAreMerged: what either says that a key was used counts.
func TestAccountsOfUsedKeysAreMerged(t *testing.T) {
	t.Parallel()
	day := func(n int) time.Time { return time.Date(2026, 10, n, 12, 0, 0, 0, time.UTC) }
	for name, c := range map[string]struct{ one, other, want []Used }{
		"one of both is empty": {nil, []Used{{ID: "a", Since: day(1)}}, []Used{{ID: "a", Since: day(1)}}},
		"another key": {
			[]Used{{ID: "a", Since: day(1)}},
			[]Used{{ID: "b", Since: day(2)}},
			[]Used{{ID: "a", Since: day(1)}, {ID: "b", Since: day(2)}},
		},
		"another key of that ID": {
			[]Used{{ID: "a", Mark: "1", Since: day(1)}},
			[]Used{{ID: "a", Mark: "2", Since: day(2)}},
			[]Used{{ID: "a", Mark: "1", Since: day(1)}, {ID: "a", Mark: "2", Since: day(2)}},
		},
		"one that ended later": {
			[]Used{{ID: "a", Since: day(2), Until: day(3)}},
			[]Used{{ID: "a", Since: day(1), Until: day(4)}},
			[]Used{{ID: "a", Since: day(1), Until: day(4)}},
		},
		"one that has not ended": {
			[]Used{{ID: "a", Since: day(1), Until: day(3)}},
			[]Used{{ID: "a", Since: day(1)}},
			[]Used{{ID: "a", Since: day(1)}},
		},
	} {
		for _, got := range [][]Used{merge(c.one, c.other), merge(c.other, c.one)} {
			slices.SortFunc(got, func(a, b Used) int { return cmp.Compare(a.ID+a.Mark, b.ID+b.Mark) })
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestKeysAreDescribedByWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	server, shared := Server{Dir: t.TempDir(), ID: "one", Name: "gpu-1"}, documents.Local()
	use := func(keys *Keys, now time.Time) {
		t.Helper()
		if _, err := OpenJournal(t.Context(), shared, as(shared), server, keys, time.Hour, now); err != nil {
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
	if diff := gocmp.Diff(want, [][]string{before, after, late}); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
