package trigger

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestEventID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header nats.Header
		want   string
	}{
		"without a header it is stream and sequence":    {nil, "spillway_events-17"},
		"the message ID names it":                       {nats.Header{"Nats-Msg-Id": {"a"}}, "a"},
		"the ID of a replay wins over the message's":    {nats.Header{"Nats-Msg-Id": {"a"}, wire.IDHeader: {"b"}}, "b"},
		"an empty message ID is none":                   {nats.Header{"Nats-Msg-Id": {""}}, "spillway_events-17"},
		"a name in another case is another header, too": {nats.Header{"nats-msg-id": {"a"}}, "spillway_events-17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := newEvent(wire.EventStream, 17, "events.x", test.header, nil).id; got != test.want {
				t.Errorf("id of %v = %q, want %q", test.header, got, test.want)
			}
		})
	}
}

func TestRunID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ pipeline, event, want string }{
		"a pipeline and an event":                 {"digits", "e1", "digits-e1"},
		"a UUID stays":                            {"digits", "550e8400-e29b", "digits-550e8400-e29b"},
		"a pipeline with a dash is parted by two": {"digits-large", "e1", "digits-large--e1"},
		"an ID of 200 bytes stays":                {"p", strings.Repeat("a", 200), "p-" + strings.Repeat("a", 200)},
		"an ID of 201 bytes is hashed": {
			"p", strings.Repeat("a", 201),
			"p-sha256-fe6a06ca77190eb3d69e3ecf8df66d82",
		},
		"an ID with a line break is hashed":            {"p", "a\nb", "p-sha256-d90b2ae5ed3057c3a4e0bd4d4cbfd50d"},
		"an ID that begins with a dash is hashed":      {"p", "-a", ""},
		"an ID with two dashes is hashed":              {"p", "a--b", ""},
		"an ID that is not UTF-8 is hashed":            {"p", "\xff", ""},
		"an ID that no header of gRPC holds is hashed": {"p", "größe", ""},
		"an empty ID is hashed":                        {"p", "", ""},
		"a pipeline that ends in a dash hashes its ID": {"p-", "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := RunID(test.pipeline, test.event)
			if test.want == "" || strings.Contains(test.want, "sha256") {
				if !strings.Contains(got, "sha256-") || len(got) > 60 {
					t.Errorf("RunID(%q, %q) = %q, want a hash", test.pipeline, test.event, got)
				}
				return
			}
			if got != test.want {
				t.Errorf("RunID(%q, %q) = %q, want %q", test.pipeline, test.event, got, test.want)
			}
		})
	}
}

func TestTwoEventsNeverShareARun(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[ab-]{1,5}`)
		id := rapid.StringMatching(`[ab-]{0,5}`)
		p, q, d, e := name.Draw(t, "p"), name.Draw(t, "q"), id.Draw(t, "d"), id.Draw(t, "e")
		if (p != q || d != e) && RunID(p, d) == RunID(q, e) {
			t.Fatalf("RunID(%q, %q) = RunID(%q, %q) = %q", p, d, q, e, RunID(p, d))
		}
	})
}

// TestARunTellsItsPipeline holds for all names that pipelines can have.
func TestARunTellsItsPipeline(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`a[ab-]{0,5}`)
		p, q, e := name.Draw(t, "p"), name.Draw(t, "q"), rapid.StringMatching(`[ab/é-]{0,6}`).Draw(t, "e")
		child := RunID(p, e) + rapid.SampledFrom([]string{"", "/b", "/a--b", "/-/"}).Draw(t, "child")
		if got := wire.IsRunOf(q, child); got != (p == q) {
			t.Fatalf("IsRunOf(%q, %q) = %v: it is a run of %q", q, child, got, p)
		}
	})
}

// TestAttackABindingReadsWhatOthersAreAnswered would have the stream of events keep what NATS answers to the engine, to
// its owner and to other builds, and start runs with it.
func TestAttackABindingReadsWhatOthersAreAnswered(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"_INBOX_engine.>", "_INBOX_owner.>", "_R_.>", "_R_.a.b", "_GR_.>", "_INBOX",
	} {
		if err := checkSubject(subject); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("checkSubject(%q) = %v, want that it is reserved", subject, err)
		}
	}
	// One that is in force from before stays so.
	binding := wire.Binding{Pipeline: "digits", Subject: "_data.new"}
	if _, err := newBound(binding, Command); err != nil {
		t.Errorf("a binding that was kept is refused: %v", err)
	}
	if _, err := asked(binding, Command); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("a binding that is asked for now: %v, want that its subject is reserved", err)
	}
}

func TestCheckSubject(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"data.new", "data.*", "data.>", "data.*.x.>", "a", "ümlaut.x"} {
		if err := checkSubject(good); err != nil {
			t.Errorf("checkSubject(%q) = %v, want nil", good, err)
		}
	}
	for bad, want := range map[string]string{
		"":                        "empty",
		"a..b":                    "empty part",
		".a":                      "empty part",
		"a b":                     "space",
		"a.\x01":                  "printed",
		"a.\xff":                  "UTF-8",
		"a.b\u2028c":              "printed",
		"a.>.b":                   "before its end",
		"a.b*":                    "wildcard inside",
		">":                       "begins with a wildcard",
		"*.a":                     "begins with a wildcard",
		"$JS.API.>":               "reserved",
		"_INBOX.x":                "reserved",
		"spillway.loop.x":         "reserved",
		strings.Repeat("a.", 200): "at most 255",
	} {
		if err := checkSubject(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("checkSubject(%q) = %v, want an error with %q", bad, err, want)
		}
	}
}

func TestCover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		subjects, want []string
		wrong          string
	}{
		"a subject within a wider one goes": {
			subjects: []string{"events.>", "events.a", "data.*", "data.x"},
			want:     []string{"data.*", "events.>"},
		},
		"equal subjects are one":              {subjects: []string{"a.b", "a.b"}, want: []string{"a.b"}},
		"a prefix is no part of what follows": {subjects: []string{"a", "a.>"}, want: []string{"a", "a.>"}},
		"partial overlap is refused":          {subjects: []string{"a.*.c", "a.b.*"}, wrong: `"a.*.c" and "a.b.*" overlap`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := cover(test.subjects)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Fatalf("cover(%q) = %v, want an error with %q", test.subjects, err, test.wrong)
				}
				return
			}
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("cover(%q): %v, -want +got:\n%s", test.subjects, err, diff)
			}
		})
	}
}

// TestPatternsAgreeWithMatching has matching itself as the oracle: a narrow pattern is covered, and two overlap, as the
// subjects say.
func TestPatternsAgreeWithMatching(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*](\.[ab*]){0,2}(\.>)?`)
		a, b := pattern.Draw(t, "a"), pattern.Draw(t, "b")
		covered, common := true, false
		for _, subject := range allSubjects() {
			inA, inB := isCovered(subject, a), isCovered(subject, b)
			covered = covered && (!inA || inB)
			common = common || inA && inB
		}
		if isCovered(a, b) && !covered {
			t.Fatalf("isCovered(%q, %q), but some subject says otherwise", a, b)
		}
		if overlaps(a, b) != common {
			t.Fatalf("overlaps(%q, %q) = %v, want %v", a, b, overlaps(a, b), common)
		}
	})
}

// allSubjects are all subjects of up to five parts out of a, b and c.
func allSubjects() []string {
	all := []string{"a", "b", "c"}
	for length, from := 1, 0; length < 5; length++ {
		until := len(all)
		for _, head := range all[from:until] {
			all = append(all, head+".a", head+".b", head+".c")
		}
		from = until
	}
	return all
}

func TestCheckCron(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"0 3 * * *", "*/5 * * * *", "0 0 1,15 * mon-fri", "30 4 * jan,Jul 7", "0 0 * * * 2027", "*/10 * * * * * *",
		"1-9/2 * * * *",
		"@hourly", "@every 10m", "@every 14h/3h", "@every 1d", "@daily", "  0 3 * * *  ",
	} {
		if err := checkCron(good); err != nil {
			t.Errorf("checkCron(%q) = %v, want nil", good, err)
		}
	}
	for bad, want := range map[string]string{
		"":                     "empty",
		"* * * *":              "4 fields",
		"* * * * * * * *":      "8 fields",
		"60 * * * *":           "minute",
		"* 24 * * *":           "hour",
		"* * 0 * *":            "day of month",
		"* * * 13 *":           "month",
		"* * * * 8":            "day of week",
		"* * * * * 1999":       "year",
		"*/0 * * * *":          "step",
		"5-1 * * * *":          "ends before",
		"1-5-7 * * * *":        "minute",
		"1/2/3 * * * *":        "step",
		"1,,2 * * * *":         "minute",
		"x * * * *":            "minute",
		"TZ=Asia/X 0 3 * * *":  "UTC",
		"0 3 * * * # at night": "comment",
		"@noon":                "unknown",
		"@every":               "unknown",
		"@every 5":             "interval",
		"@every 1ms":           "interval",
		"@every 1h/2h":         "phase",
	} {
		if err := checkCron(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("checkCron(%q) = %v, want an error with %q", bad, err, want)
		}
	}
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	var body any
	if err := json.Unmarshal([]byte(`{"kind":"a","meta":{"size":3,"tags":["x","y"]},"on":true,"none":null}`),
		&body); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		filter map[string]any
		want   string // the path; "" when the body fits
	}{
		"an empty filter keeps all":                   {nil, ""},
		"a string":                                    {map[string]any{"kind": "a"}, ""},
		"a Go integer equals a JSON number":           {map[string]any{"meta.size": 3}, ""},
		"a position in an array":                      {map[string]any{"meta.tags.1": "y"}, ""},
		"a whole array":                               {map[string]any{"meta.tags": []string{"x", "y"}}, ""},
		"true and null":                               {map[string]any{"on": true, "none": nil}, ""},
		"another value":                               {map[string]any{"kind": "b"}, "kind"},
		"text is no number":                           {map[string]any{"meta.size": "3"}, "meta.size"},
		"a path that is not there, even for null":     {map[string]any{"other": nil}, "other"},
		"a path through a string":                     {map[string]any{"kind.x": "a"}, "kind.x"},
		"a position outside":                          {map[string]any{"meta.tags.2": "y"}, "meta.tags.2"},
		"the first path in order when several differ": {map[string]any{"on": false, "kind": "b"}, "kind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			filter, err := normalize(test.filter)
			if err != nil {
				t.Fatal(err)
			}
			if got, found := mismatch(filter, body); got != test.want || found != (test.want != "") {
				t.Errorf("mismatch(%v) = %q, %v, want %q", test.filter, got, found, test.want)
			}
		})
	}
}

func TestNewBoundRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		binding wire.Binding
		want    string
	}{
		"neither subject nor schedule": {wire.Binding{Pipeline: "p"}, "subject or a schedule"},
		"no subject":                   {wire.Binding{Pipeline: "p", Subject: "a..b"}, "empty part"},
		"no cron expression":           {wire.Binding{Pipeline: "p", Schedule: "soon"}, "fields"},
		"a negative cap":               {wire.Binding{Pipeline: "p", Subject: "a", MaxRuns: -1}, "max_runs is -1"},
		"a negative goal":              {wire.Binding{Pipeline: "p", Subject: "a", Goal: goal(-1)}, "negative"},
		"a filter that is not JSON": {
			wire.Binding{Pipeline: "p", Subject: "a", Filter: map[string]any{"x": func() {}}},
			"filter is not JSON",
		},
		"a filter path with a hole": {
			wire.Binding{Pipeline: "p", Subject: "a", Filter: map[string]any{"x..y": 1}},
			"empty part",
		},
		"input without a schedule": {
			wire.Binding{Pipeline: "p", Subject: "a", Input: json.RawMessage(`{}`)},
			"give a schedule",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := newBound(test.binding, Command); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("newBound(%+v) = %v, want an error with %q", test.binding, err, test.want)
			}
		})
	}
}

func TestAttackAFilterThatSteersATerminalIsNotBound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		filter map[string]any
		want   string
	}{
		"in the path":          {map[string]any{"k\x1b[1m": "v"}, "U+001B"},
		"in the value":         {map[string]any{"k": "v\x1b[1m"}, "U+001B"},
		"in an array":          {map[string]any{"k": []any{1, "\u202e"}}, "U+202E"},
		"in the name below":    {map[string]any{"k": map[string]any{"\n": 1}}, "U+000A"},
		"in the value below":   {map[string]any{"k": map[string]any{"a": "\u0085"}}, "U+0085"},
		"a path that is long":  {map[string]any{strings.Repeat("k", wire.MaxName+1): 1}, "at most 1000"},
		"a value that is long": {map[string]any{"k": strings.Repeat("v", wire.MaxName+1)}, "at most 1000"},
	} {
		binding := wire.Binding{Pipeline: "p", Subject: "a", Filter: test.filter}
		if err := Check(binding); err == nil || !strings.Contains(err.Error(), test.want) ||
			wire.CheckText(err.Error(), 1<<20) != nil {
			t.Errorf("%s: Check = %q, want a text that can be printed, with %q", name, err, test.want)
		}
		if _, err := newBound(binding, Command); err != nil {
			t.Errorf("%s: a binding kept by an earlier version is not in force any more: %v", name, err)
		}
	}
	plain := wire.Binding{
		Pipeline: "p", Subject: "a",
		Filter: map[string]any{"größe.1": "a b", "n": 3, "o": map[string]any{"x": []any{nil, true, ""}}},
	}
	if err := Check(plain); err != nil {
		t.Error(err)
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	base := wire.Binding{Pipeline: "p q", Subject: "a.b", Filter: map[string]any{"x": 1}}
	changed := base
	changed.MaxRuns, changed.Goal = 3, goal(5)
	if Key(base) != Key(changed) {
		t.Errorf("cap and goal change the key: %s, %s", Key(base), Key(changed))
	}
	for _, other := range []wire.Binding{
		{Pipeline: "p q", Subject: "a.c", Filter: base.Filter},
		{Pipeline: "p q", Subject: "a.b"},
		{Pipeline: "p.q", Subject: "a.b", Filter: base.Filter},
	} {
		if Key(base) == Key(other) {
			t.Errorf("%+v and %+v have the key %s", base, other, Key(base))
		}
	}
	if strings.ContainsAny(Key(base), " .*>") {
		t.Errorf("key %q is no name of a consumer", Key(base))
	}
}

func FuzzEvent(f *testing.F) {
	f.Add([]byte(`{"epochs":3}`), "id", `{"deadline_ns":5}`)
	f.Add([]byte("\xff{"), "-\n", `{"minimise":"x"}`)
	f.Add([]byte(""), "", "")
	f.Add([]byte(`{"epochs":1} {}`), "a--b", `{}{}`)
	f.Add([]byte(`{"parts":[{"k":1}]}`), "a", "null")
	table, err := newTable([]Target{digits()}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, id, goal string) {
		e := newEvent(wire.EventStream, 1, "events.digits", nats.Header{wire.MessageIDHeader: {id}, wire.GoalHeader: {goal}},
			body)
		for _, bound := range table.bounds {
			d := table.decide(bound, e)
			if d.disposition == startRun && (!json.Valid(d.start.Input) || d.start.Run == "" || len(d.start.Run) > 300) {
				t.Errorf("decide(%q, %q, %q) starts %+v", body, id, goal, d.start)
			}
			if d.disposition == deadLetter && (d.reason == "" || strings.ContainsAny(oneLine(d.reason), "\r\n")) {
				t.Errorf("decide(%q, %q, %q) makes a dead letter without a reason in one line: %q", body, id, goal, d.reason)
			}
		}
	})
}
