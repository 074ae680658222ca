package wire_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestTheSubjectOfAnAttemptHasSixTokensWhateverItsNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		source := wire.LogSource{
			Run: rapid.String().Draw(t, "run"), Stage: rapid.String().Draw(t, "stage"), Task: rapid.String().Draw(t, "task"),
			Attempt: rapid.IntRange(1, 100).Draw(t, "attempt"),
		}
		subject := wire.LogSubject(source)
		if tokens := strings.Split(subject, "."); len(tokens) != 6 || strings.ContainsAny(subject, " *>\t\r\n") {
			t.Fatalf("%+v has the subject %q", source, subject)
		}
		if source.Stage != "" && source.Task != "" &&
			wire.LogFilter(source.Run, source.Stage, source.Task, source.Attempt) != subject {
			t.Fatalf("%+v is not found under its own filter", source)
		}
	})
}

func TestWhatIsNotSaidInAFilterStandsForAll(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"spillway.logs.digits-1.*.*.*":              wire.LogFilter("digits-1", "", "", 0),
		"spillway.logs.digits-1.score.*.*":          wire.LogFilter("digits-1", "score", "", 0),
		"spillway.logs.digits-1.*.score-17.2":       wire.LogFilter("digits-1", "", "score-17", 2),
		"spillway.logs.a_b.score_1.score_1-17.2":    wire.LogFilter("a.b", "score 1", "score*1-17", 2),
		"spillway.logs._.score_1.score_1-17.100000": wire.LogFilter("", "score 1", "score*1-17", 100000),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestLogsOfAnotherVersionAreRefused(t *testing.T) {
	t.Parallel()
	for _, data := range []string{`{"v":2,"lines":7}`, `{}`} {
		if _, err := wire.DecodeLogs([]byte(data)); !errors.Is(err, wire.ErrVersion) {
			t.Errorf("%s: got %v, want %v", data, err, wire.ErrVersion)
		}
	}
}

func FuzzDecodeLogs(f *testing.F) {
	f.Add(readGolden(f, "logs"))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"lines":[{"at":"yesterday"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		message, err := wire.DecodeLogs(data)
		if err != nil {
			if !cmp.Equal(message, wire.Logs{}) {
				t.Fatalf("%q: %+v beside the error %v", data, message, err)
			}
			return
		}
		encoded, err := json.Marshal(message)
		if err != nil {
			t.Fatalf("%q decodes to what does not encode: %v", data, err)
		}
		if _, err := wire.DecodeLogs(encoded); err != nil {
			t.Fatalf("%q encodes to %q, which does not decode: %v", data, encoded, err)
		}
	})
}
