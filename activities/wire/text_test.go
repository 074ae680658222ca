package wire_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func TestTextThatCanBePrintedInOneLineIsAName(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "a b", "größe", "数字-1", strings.Repeat("x", 20)} {
		if err := wire.CheckText(good, 20); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		strings.Repeat("x", 21): "21 bytes: use at most 20",
		"a\nb":                  "U+000A",
		"a\x1b[2J":              "U+001B",
		"a\x00":                 "U+0000",
		"a\u0085":               "U+0085",
		"a\u00a0b":              "U+00A0",
		"abc\u202egnp":          "U+202E",
		"a\u200bb":              "U+200B",
		"a\xff":                 "not UTF-8",
	} {
		if err := wire.CheckText(bad, 20); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", bad, err, want)
		}
	}
}

func TestAttackWhatABuildTellsHasNamesThatCanBePrinted(t *testing.T) {
	t.Parallel()
	const odd = "digits-\x1b]0;owned\a"
	at := time.Unix(1, 0)
	stage := predictor.StageID{App: "digits", Build: "b", Name: "load"}
	good := []predictor.Event{
		// the ID of an event is no name of anything here
		predictor.RunStarted{Run: "digits-größe", Pipeline: "digits", App: "digits", Event: odd, At: at},
		predictor.Scheduled{Run: "digits-1", Stage: stage, At: at},
	}
	for _, event := range good {
		if err := told(t, event); err != nil {
			t.Errorf("%+v: %v", event, err)
		}
	}
	for _, event := range []predictor.Event{
		predictor.RunStarted{Run: odd, At: at},
		predictor.RunStarted{Run: "a", Pipeline: odd, At: at},
		predictor.RunStarted{Run: "a", App: odd, At: at},
		predictor.RunStarted{Run: "a", RetryOf: odd, At: at},
		predictor.RunStarted{Run: "a", Stages: []string{"load", odd}, At: at},
		predictor.RunEnded{Run: odd, At: at},
		predictor.GoalChanged{Run: odd, At: at},
		predictor.Scheduled{Run: odd, Stage: stage, At: at},
		predictor.Scheduled{Run: "a", Stage: predictor.StageID{App: "a", Name: odd}, At: at},
		predictor.Scheduled{Run: "a", Stage: predictor.StageID{App: "a", Name: "load", Team: odd}, At: at},
		predictor.Reused{Run: "a", Stage: stage, From: odd, At: at},
		predictor.Reused{Run: "a", Stage: predictor.StageID{App: "a", Name: "load", Team: odd}, At: at},
		predictor.RunEnded{Run: strings.Repeat("x", wire.MaxName+1), At: at},
	} {
		if err := told(t, event); err == nil || errors.Is(err, wire.ErrVersion) {
			t.Errorf("%T: %v, want a refusal", event, err)
		}
	}
}

// told encodes an event as a sender does and decodes it as a reader does.
func told(t *testing.T, event predictor.Event) error {
	t.Helper()
	_, data, err := wire.EncodeEvent(event)
	if err != nil {
		t.Fatal(err)
	}
	_, err = wire.DecodeMessage(data)
	return err
}
