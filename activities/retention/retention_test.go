package retention_test

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// now is the time of all decisions here.
var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// of is the digest of an artifact by its name.
func of(name string) retention.Digest { return sha256.Sum256([]byte(name)) }

// artifact is one of 10 bytes.
func artifact(name string, age time.Duration, names ...string) retention.Artifact {
	return retention.Artifact{Digest: of(name), Bytes: 10, Written: now.Add(-age), Names: digests(names...)}
}

func digests(names ...string) (all []retention.Digest) {
	for _, name := range names {
		all = append(all, of(name))
	}
	return all
}

// goesOn and ended are runs.
func goesOn(name string, names ...string) retention.Holder {
	return retention.Holder{Name: "run " + name, Names: digests(names...)}
}

func ended(name string, age time.Duration, names ...string) retention.Holder {
	return retention.Holder{Name: "run " + name, Ended: now.Add(-age), Names: digests(names...)}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	given := ended("a", day, "x")
	given.Given = true
	for name, test := range map[string]struct {
		keepBytes  quantity.Bytes // 0 is more than there is
		busy       time.Duration  // since when; 0 is that nothing is
		artifacts  []retention.Artifact
		holders    []retention.Holder
		superseded map[retention.Digest]time.Time
		want       map[string]string // by name: why it goes
		give       []string
		over       quantity.Bytes
	}{
		"what nothing reaches goes": {
			artifacts: []retention.Artifact{artifact("x", 2*time.Hour)},
			want:      map[string]string{"x": retention.Unreached},
		},
		"what was just written stays, with what it names": {
			artifacts: []retention.Artifact{artifact("list", time.Minute, "file"), artifact("file", 9*time.Hour)},
		},
		"what was written since the oldest attempt began stays": {
			busy:      50 * time.Hour,
			artifacts: []retention.Artifact{artifact("x", 49*time.Hour), artifact("y", 51*time.Hour)},
			want:      map[string]string{"y": retention.Unreached},
		},
		"what a run that goes on reaches stays, however old and however much it is": {
			keepBytes: 1, artifacts: []retention.Artifact{artifact("list", 90*day, "file"), artifact("file", 90*day)},
			holders: []retention.Holder{goesOn("a", "list")}, over: 19,
		},
		"what a run reaches that ended too long ago goes": {
			artifacts: []retention.Artifact{artifact("x", 40*day), artifact("y", 40*day)},
			holders:   []retention.Holder{ended("a", 31*day, "x"), ended("b", 29*day, "y")},
			want:      map[string]string{"x": "run a ended 31 days ago"}, give: []string{"run a"},
		},
		"what another run still holds is given back by nobody": {
			artifacts: []retention.Artifact{artifact("x", 40*day)},
			holders:   []retention.Holder{ended("a", 31*day, "x"), ended("b", 29*day, "x")},
		},
		"the run that ended first gives back until the rest fits": {
			keepBytes: 15,
			artifacts: []retention.Artifact{artifact("x", 3*day), artifact("y", 3*day), artifact("z", 3*day)},
			holders: []retention.Holder{
				ended("a", time.Hour, "x"), ended("b", 2*day, "y", "x"), ended("c", 25*time.Hour, "z"),
			},
			want: map[string]string{
				"y": "artifacts take more than 15 B, and run b, which ended 2 days ago, is the oldest",
				"z": "artifacts take more than 15 B, and run c, which ended 1 day ago, is the oldest",
			},
			give: []string{"run b", "run c"},
		},
		"a run that gave back holds nothing any more": {
			artifacts: []retention.Artifact{artifact("x", 2*day)}, holders: []retention.Holder{given},
			want: map[string]string{"x": retention.Unreached},
		},
		"what a superseded checkpoint names goes at once": {
			busy: 9 * time.Hour,
			artifacts: []retention.Artifact{
				artifact("old", 2*time.Minute, "part", "same"), artifact("part", 2*time.Minute), artifact("same", 2*time.Minute),
				artifact("new", time.Minute, "same"), artifact("again", time.Minute), twice(artifact("twice", 2*time.Minute)),
			},
			holders: []retention.Holder{goesOn("a", "new")},
			superseded: map[retention.Digest]time.Time{
				of("old"): now.Add(-90 * time.Second), of("part"): now.Add(-90 * time.Second),
				of("same"): now.Add(-90 * time.Second), of("again"): now.Add(-90 * time.Second),
				of("twice"): now.Add(-90 * time.Second),
			},
			want: map[string]string{"old": retention.Superseded, "part": retention.Superseded},
		},
		"what one who has ended names goes beside an attempt that goes on, but not what was put twice": {
			busy: 9 * time.Hour,
			artifacts: []retention.Artifact{
				artifact("list", 5*time.Hour, "file"), artifact("file", 5*time.Hour), twice(artifact("same", 5*time.Hour)),
				artifact("its own", 5*time.Hour),
			},
			holders:   []retention.Holder{goesOn("a"), ended("b", 25*time.Hour, "list", "same")},
			keepBytes: 1,
			want: map[string]string{
				"list": "artifacts take more than 1 B, and run b, which ended 1 day ago, is the oldest",
				"file": "artifacts take more than 1 B, and run b, which ended 1 day ago, is the oldest",
			},
			give: []string{"run b"}, over: 19,
		},
		"what nobody knows to be of one who has ended stays beside an attempt that goes on": {
			busy:      9 * time.Hour,
			artifacts: []retention.Artifact{artifact("x", 5*time.Hour)},
			holders:   []retention.Holder{goesOn("a"), guessed(ended("b", 25*time.Hour, "x"))},
			keepBytes: 1, over: 9,
		},
		"a circle that nothing reaches goes": {
			artifacts: []retention.Artifact{artifact("x", 2*time.Hour, "y"), artifact("y", 2*time.Hour, "x")},
			want:      map[string]string{"x": retention.Unreached, "y": retention.Unreached},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := retention.Usual(quantity.GiB)
			if test.keepBytes > 0 {
				policy.KeepBytes = test.keepBytes
			}
			stock := retention.Stock{At: now, Artifacts: test.artifacts, Holders: test.holders, Superseded: test.superseded}
			if test.busy > 0 {
				stock.Busy = now.Add(-test.busy)
			}
			decision := retention.Decide(policy, stock)
			want := map[retention.Digest]string{}
			for name, reason := range test.want {
				want[of(name)] = reason
			}
			got, give := map[retention.Digest]string{}, []string(nil)
			for _, removal := range decision.Remove {
				got[removal.Digest] = removal.Reason
			}
			for _, giving := range decision.Give {
				give = append(give, test.holders[giving.Holder].Name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what goes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.give, give); diff != "" {
				t.Errorf("who gives back (-want +got):\n%s", diff)
			}
			if decision.Over != test.over {
				t.Errorf("over by %d, want %d", decision.Over, test.over)
			}
		})
	}
}

// TestWhatIsHeldStaysWheneverACollectionIsKilled plays with random graphs: collections come at random moments and some
// are killed before they have removed all, while runs begin, end and name what there is. What a kept holder reaches is
// always there, and once a collection was not killed, nothing is left of what goes.
func TestWhatIsHeldStaysWheneverACollectionIsKilled(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := world{
			policy: retention.Policy{
				KeepFor:   rapid.SampledFrom([]time.Duration{time.Hour, 5 * time.Hour, 30 * day}).Draw(t, "keep for"),
				KeepBytes: quantity.Bytes(rapid.IntRange(1, 2000).Draw(t, "keep bytes")),
				Grace:     time.Hour,
			},
			stock: retention.Stock{At: now, Superseded: map[retention.Digest]time.Time{}},
		}
		t.Repeat(map[string]func(*rapid.T){
			"write":   w.write,
			"begin":   w.begin,
			"end":     w.end,
			"collect": w.collect,
			"wait": func(t *rapid.T) {
				w.stock.At = w.stock.At.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "minutes")) * time.Minute)
			},
			"": w.check,
		})
	})
}

// guessed is a holder of which nobody knows what it names.
func guessed(holder retention.Holder) retention.Holder {
	holder.Guessed = true
	return holder
}

// twice is an artifact that was put twice.
func twice(artifact retention.Artifact) retention.Artifact {
	artifact.Again = true
	return artifact
}

// world is a stack whose artifacts are collected.
type world struct {
	policy retention.Policy
	stock  retention.Stock
	names  int
}

// some draws a few of the artifacts.
func (w *world) some(t *rapid.T) (names []retention.Digest) {
	if len(w.stock.Artifacts) == 0 {
		return nil
	}
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(w.stock.Artifacts)-1), 0, 3).Draw(t, "names") {
		names = append(names, w.stock.Artifacts[i].Digest)
	}
	return names
}

func (w *world) write(t *rapid.T) {
	w.names++
	w.stock.Artifacts = append(w.stock.Artifacts, retention.Artifact{
		Digest: of(strconv.Itoa(w.names)), Bytes: quantity.Bytes(rapid.IntRange(0, 400).Draw(t, "bytes")),
		Written: w.stock.At, Names: w.some(t),
	})
}

func (w *world) begin(t *rapid.T) {
	w.stock.Holders = append(w.stock.Holders, retention.Holder{Name: strconv.Itoa(len(w.stock.Holders)), Names: w.some(t)})
}

func (w *world) end(t *rapid.T) {
	if len(w.stock.Holders) > 0 {
		holder := &w.stock.Holders[rapid.IntRange(0, len(w.stock.Holders)-1).Draw(t, "holder")]
		if holder.Ended.IsZero() {
			holder.Ended = w.stock.At
		}
	}
}

func (w *world) collect(t *rapid.T) {
	decision := retention.Decide(w.policy, w.stock)
	for _, giving := range decision.Give {
		w.stock.Holders[giving.Holder].Given = true // written down before anything goes
	}
	removed := len(decision.Remove)
	if rapid.Bool().Draw(t, "killed") {
		removed = rapid.IntRange(0, removed).Draw(t, "after")
	}
	gone := map[retention.Digest]bool{}
	for _, removal := range decision.Remove[:removed] {
		gone[removal.Digest] = true
	}
	w.stock.Artifacts = slices.DeleteFunc(w.stock.Artifacts, func(a retention.Artifact) bool { return gone[a.Digest] })
	if removed < len(decision.Remove) {
		return
	}
	w.check(t)
	if again := retention.Decide(w.policy, w.stock); len(again.Remove)+len(again.Give) > 0 {
		t.Fatalf("a second collection removes %v, and %v give back", again.Remove, again.Give)
	}
	if decision.Over == 0 && decision.Kept.Bytes > w.policy.KeepBytes {
		t.Fatalf("kept %d bytes of %d and said nothing", decision.Kept.Bytes, w.policy.KeepBytes)
	}
}

// check wants that all that a holder names is there, as long as the holder has not given back.
func (w *world) check(t *rapid.T) {
	there := map[retention.Digest][]retention.Digest{}
	for _, artifact := range w.stock.Artifacts {
		there[artifact.Digest] = artifact.Names
	}
	for _, holder := range w.stock.Holders {
		if holder.Given {
			continue
		}
		seen, next := map[retention.Digest]bool{}, slices.Clone(holder.Names)
		for len(next) > 0 {
			name := next[0]
			next = next[1:]
			names, is := there[name]
			if !is {
				t.Fatalf("holder %s (ended %v) reaches %s, which is gone", holder.Name, holder.Ended, name)
			}
			if !seen[name] {
				seen[name] = true
				next = append(next, names...)
			}
		}
	}
}

func TestPoliciesThatCannotBeAreRefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	if err := retention.Usual(0).Validate(); err != nil {
		t.Errorf("the usual policy: %v", err)
	}
	for name, spoil := range map[string]func(*retention.Policy){
		"kept for 0s":                 func(p *retention.Policy) { p.KeepFor = 0 },
		"kept for -1s":                func(p *retention.Policy) { p.KeepFor = -time.Second },
		"histories are kept for 720h": func(p *retention.Policy) { p.KeepFor = 31 * day },
		"in 0 bytes":                  func(p *retention.Policy) { p.KeepBytes = 0 },
		"in -1 bytes":                 func(p *retention.Policy) { p.KeepBytes = -1 },
		"stay for -1s":                func(p *retention.Policy) { p.Grace = -time.Second },
	} {
		policy := retention.Usual(quantity.GiB)
		spoil(&policy)
		if err := policy.Validate(); err == nil || !strings.Contains(err.Error(), name) ||
			!strings.Contains(err.Error(), "; give") {
			t.Errorf("got %v, want an error with %q and what to give", err, name)
		}
	}
	if got := retention.Usual(1000).KeepBytes; got != 600 {
		t.Errorf("of 1000 bytes %d are kept, want 600", got)
	}
}

func TestNamesFindsDigestsInText(t *testing.T) {
	t.Parallel()
	a, b := of("a").String(), of("b").String()
	for name, test := range map[string]struct {
		text string
		want []retention.Digest
	}{
		"nothing":                  {"", nil},
		"a digest alone":           {a, digests("a")},
		"in JSON":                  {`{"digest":"` + a + `","bytes":3,"next":["` + b + `"]}`, digests("a", "b")},
		"twice":                    {a + " " + a, digests("a")},
		"in JSON within JSON":      {`"{\"digest\":\"` + a + `\"}"`, digests("a")},
		"cut short":                {a[:63], nil},
		"in upper case":            {strings.ToUpper(a), nil},
		"in a row that is no name": {strings.Repeat("0", 500), nil},
	} {
		got := retention.Names([]byte(test.text))
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := retention.Names([]byte(`\b` + a)); !slices.Contains(got, of("a")) {
		t.Errorf("after an escape: got %v, want %s among them", got, a)
	}
}

func TestNamesAreFoundWhereverTheTextIsCut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		var want []retention.Digest
		for i := range rapid.IntRange(0, 5).Draw(t, "digests") {
			text.WriteString(rapid.StringMatching(`[a-z0-9 ]{0,200}[ ":]`).Draw(t, "between"))
			text.WriteString(of(strconv.Itoa(i)).String())
			text.WriteString(`"`)
			want = append(want, of(strconv.Itoa(i)))
		}
		var s retention.Scanner
		for rest := text.String(); rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			if _, err := s.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		got := s.Names()
		for _, digest := range want {
			if !slices.Contains(got, digest) {
				t.Fatalf("%s is not found in %q", digest, text.String())
			}
		}
	})
}

func BenchmarkNames(b *testing.B) {
	random := make([]byte, 0, 1<<20)
	for sum := of("seed"); len(random) < 1<<20; sum = sha256.Sum256(sum[:]) {
		random = append(random, sum[:]...)
	}
	b.SetBytes(int64(len(random)))
	for b.Loop() {
		retention.Names(random)
	}
}
