package teams

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAFileOfTeamsIsRead(t *testing.T) {
	t.Parallel()
	declared, mistakes := Parse("teams.yaml", []byte(`
teams:
  - name: vision
    pipelines: [digits, "vision-*"]
    slots: 8
    usd-per-day: 20.5
    weight: 2
  - name: default
    private: true
    slots: 2
  - name: text
`))
	want := Teams{
		{
			Team:      predictor.Team{Name: "vision", Slots: 8, PerDay: quantity.USD * 41 / 2, Weight: 2},
			Pipelines: []string{"digits", "vision-*"},
		},
		{Team: predictor.Team{Slots: 2}, Private: true},
		{Team: predictor.Team{Name: "text"}},
	}
	if diff := cmp.Diff(want, declared); diff != "" || len(mistakes) > 0 {
		t.Fatalf("%v (-want +got):\n%s", mistakes, diff)
	}
	for pipeline, owner := range map[string]string{
		"digits": "vision", "vision-nightly": "vision", "churn": "-", "digit": "-",
	} {
		got, owned := declared.Owner(pipeline)
		if !owned {
			got = "-"
		}
		if got != owner {
			t.Errorf("pipeline %s is of team %q, want %q", pipeline, got, owner)
		}
	}
	if declared.Private("vision") || !declared.Private("") || declared.Private("nobody") {
		t.Error("who is private is another than the file says")
	}
	if _, owned := Teams(nil).Owner("digits"); owned || Teams(nil).Bounds() != nil {
		t.Error("no file declares something")
	}
}

func TestEachMistakeIsToldWithItsLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", "teams.yaml:1:1: the file is empty"},
		{"- a", "teams.yaml:1:1: the file is no mapping"},
		{"teams: [\n", "teams.yaml:1:1: not YAML"},
		{"team: []", `teams.yaml:1:1: there is no key "team"`},
		{"teams: vision", "teams.yaml:1:8: teams is no list"},
		{"teams: [vision]", "teams.yaml:1:9: a team is no mapping"},
		{"teams:\n  - slots: 3", "teams.yaml:2:5: a team has no name"},
		{"teams:\n  - name: Vision", "teams.yaml:2:11: a team cannot have that name"},
		{"teams:\n  - {name: a}\n  - {name: a}", "teams.yaml:3:12: team a is declared twice, first in line 2"},
		{"teams:\n  - name: a\n    slot: 3", `teams.yaml:3:5: a team has no key "slot"; did you mean slots?`},
		{"teams:\n  - name: a\n    slots: 1.5", `teams.yaml:3:12: slots is "1.5"; write a whole number from 0 to 4096`},
		{"teams:\n  - name: a\n    slots: -1", `teams.yaml:3:12: slots is "-1"`},
		{"teams:\n  - name: a\n    usd-per-day: .nan", `teams.yaml:3:18: usd-per-day is ".nan"`},
		{"teams:\n  - name: a\n    usd-per-day: 0", "teams.yaml:3:18: usd-per-day is 0"},
		{"teams:\n  - name: a\n    weight: 0", `teams.yaml:3:13: weight is "0"; write a number from more than 0 to 1000`},
		{"teams:\n  - name: a\n    private: maybe", `teams.yaml:3:14: private is "maybe"; write true or false`},
		{"teams:\n  - name: a\n    pipelines: x", "teams.yaml:3:16: pipelines is no list"},
		{"teams:\n  - name: a\n    pipelines: ['[']", `teams.yaml:3:17: "[" is no name or pattern`},
		{"teams:\n  - name: a\n    name: b", "teams.yaml:3:5: name is said twice"},
		{
			"teams:\n  - {name: a, pipelines: [x]}\n  - {name: b, pipelines: [y, x]}",
			`teams.yaml:3:30: pipeline "x" is team a's`,
		},
	} {
		_, mistakes := Parse("teams.yaml", []byte(c.text))
		if len(mistakes) != 1 || !strings.HasPrefix(mistakes[0].String(), c.want) {
			t.Errorf("%q: got %v, want %s", c.text, mistakes, c.want)
		}
	}
	if _, mistakes := Parse("f", []byte("teams:\n  - {name: A, slots: x}\n  - {slots: y}")); len(mistakes) != 4 {
		t.Errorf("of four mistakes these are told: %v", mistakes)
	}
}

func TestAFileIsReadAgainWhenItChangesAndAWrongOneChangesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "teams.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write("teams: [{name: a, slots: 1}]")
		file, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan struct{})
		go func() {
			file.Follow(ctx, slog.New(slog.NewTextHandler(&log, nil)))
			close(followed)
		}()
		for _, row := range []struct {
			text  string
			slots int
		}{
			{"teams: [{name: a, slots: 2}]", 2}, {"teams: [{name: a, slots: x}]", 2}, {"teams: [{name: a, slots: 3}]", 3},
		} {
			write(row.text)
			time.Sleep(7 * Look / 2) // of the bubble
			if got := fmt.Sprint(file.Bounds()); got != fmt.Sprint([]predictor.Team{{Name: "a", Slots: row.slots}}) {
				t.Errorf("after %s: %s", row.text, got)
			}
		}
		cancel()
		<-followed
		if said := log.String(); strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "teams.yaml:1:26") {
			t.Errorf("the log says %s", said)
		}
	})
	if _, err := Open(path + "x"); err == nil || MistakesOf(err) != nil {
		t.Errorf("a file that there is not: %v", err)
	}
	var none *File
	none.Follow(t.Context(), slog.Default())
	if none.Now() != nil || none.Bounds() != nil {
		t.Error("no file declares something")
	}
}
