package wire_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" // the example of the standard

func TestATraceContextIsReadAsTheStandardSays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		parent: parent,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00": "00-" +
			"0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff":      parent,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what": parent,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what": "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-":     "",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":      "",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":      "",
		"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      "",
		"00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01":      "",
		"00-0af7651916cd43dd8448eb211c80319c7-b7ad6b716920333-01":      "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331":         "",
		"": "",
	} {
		place, ok := wire.ParseTraceparent(text)
		if got := place.Traceparent(); got != want || ok != (want != "") {
			t.Errorf("%q is read as %q, %t, want %q", text, got, ok, want)
		}
	}
}

func TestARunThatBroughtATraceStaysInIt(t *testing.T) {
	t.Parallel()
	got := wire.AttemptTraceparent("run-1", parent, "train-1", 2, false)
	if !strings.HasPrefix(got, parent[:36]) || got == parent {
		t.Errorf("got %q, want another span of the trace of %q", got, parent)
	}
	own, ok := wire.ParseTraceparent(wire.AttemptTraceparent("run-1", "nonsense", "train-1", 2, false))
	if !ok || own.Trace != wire.TraceID("run-1") || own.Span != wire.AttemptSpanID("run-1", "train-1", 2, false) ||
		!own.Sampled {
		t.Errorf("got %+v, %t, want the run's own trace, sampled", own, ok)
	}
}

// Agents of other versions and programs of other languages make the same IDs.
func TestIDsOfSpansNeverChange(t *testing.T) {
	t.Parallel()
	const want = "00-7083818bd44b0a64a4f2b8f99281e35e-b5c524cfc5a3d275-01"
	if got := wire.AttemptTraceparent("run-1", "", "train-1", 1, false); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNoTwoSpansShareAnID(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[a-c 0-9-]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		type attempt struct {
			run, task string
			number    int
			poolOnly  bool
		}
		draw := func() attempt {
			return attempt{
				name.Draw(t, "run"), name.Draw(t, "task"), rapid.IntRange(1, 12).Draw(t, "attempt"),
				rapid.Bool().Draw(t, "pool only"),
			}
		}
		a, b := draw(), draw()
		ids := wire.AttemptSpanID(a.run, a.task, a.number, a.poolOnly) ==
			wire.AttemptSpanID(b.run, b.task, b.number, b.poolOnly)
		if ids != (a == b) {
			t.Errorf("%+v and %+v: same ID %t", a, b, ids)
		}
		if a.run != b.run && (wire.TraceID(a.run) == wire.TraceID(b.run) || wire.RunSpanID(a.run) == wire.RunSpanID(b.run)) {
			t.Errorf("%q and %q share an ID", a.run, b.run)
		}
		if (a.run != b.run || a.task != b.task) && wire.TaskSpanID(a.run, a.task) == wire.TaskSpanID(b.run, b.task) {
			t.Errorf("%+v and %+v share the ID of a task", a, b)
		}
	})
}

func FuzzParseTraceparent(f *testing.F) {
	for _, seed := range []string{parent, "cc" + parent[2:] + "-x", parent[:54], strings.ToUpper(parent), "----", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		place, ok := wire.ParseTraceparent(text)
		if !ok {
			return
		}
		if again, still := wire.ParseTraceparent(place.Traceparent()); !still || again != place {
			t.Errorf("%q is read as %+v, which is read back as %+v, %t", text, place, again, still)
		}
	})
}
