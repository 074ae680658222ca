package wire_test

import (
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestSubjectsAreMadeOfOneTokenForAName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, want string }{
		{"digits", "digits"},
		{"train-2_b", "train-2_b"},
		{"a.b", "a_b"},
		{"*", "_"},
		{">", "_"},
		{"a b\tc\n", "a_b_c_"},
		{"\x00\x7f", "__"},
		{"", "_"},
		{"größe", "größe"},
	} {
		for prefix, subject := range map[string]string{
			"events.":        wire.EventSubject(c.name),
			"spillway.dead.": wire.DeadSubject(c.name),
			"spillway.done.": wire.DoneSubject(c.name),
		} {
			if want := prefix + c.want; subject != want {
				t.Errorf("subject of %q: got %q, want %q", c.name, subject, want)
			}
		}
	}
}

func TestMessagesOfTheLoopAreCapturedByItsStream(t *testing.T) {
	t.Parallel()
	for kind := range loopMessages() {
		if got, want := wire.LoopSubject(kind), strings.TrimSuffix(wire.LoopSubjects, ">")+string(kind); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestASubjectHasAsManyTokensAsItsStreamExpectsWhateverTheName(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		for captured, subject := range map[string]string{
			wire.EventSubjects: wire.EventSubject(name), wire.DeadSubjects: wire.DeadSubject(name),
			wire.DoneSubjects: wire.DoneSubject(name),
		} {
			prefix := strings.TrimSuffix(captured, ">")
			last, found := strings.CutPrefix(subject, prefix)
			if !found || last == "" || strings.ContainsAny(last, ".*>") || strings.ContainsFunc(last, func(r rune) bool {
				return r < 0x80 && unicode.IsSpace(r)
			}) {
				t.Fatalf("name %q: subject %q is not %q and one token", name, subject, prefix)
			}
		}
	})
}
