package teams_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTeamsAreListedWithWhatTheyHaveAndMay(t *testing.T) {
	t.Parallel()
	state, file := t.TempDir(), filepath.Join(t.TempDir(), "teams.yaml")
	if err := os.WriteFile(file, []byte("teams: [{name: vision, slots: 4, usd-per-day: 2, weight: 2}, {name: default}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	declared, err := teams.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		declared *teams.File
		want     []string
	}{
		{nil, []string{"no teams", "--teams-file"}},
		{declared, []string{
			"vision   4/4    50%    2       3        9        $0.5000/$2.00  $0.2500",
			"default  1      10%    1       1        0        $0 ",
			"vision: 9 tasks wait: it has 4 slots of 4",
		}},
	} {
		stack := clitest.StartStackOf(t, state, c.declared, clitest.ServedDigits)
		stack.Decide(predictor.Plan{Term: 1, Tick: 1, Teams: []predictor.TeamRow{
			{Team: predictor.Team{}, Held: 1, Running: 1, Share: 0.1},
			{
				Team: predictor.Team{Name: "vision"}, Held: 4, Running: 3, Waiting: 9, Share: 0.5, Spent: quantity.USD / 2,
				Reserved: quantity.USD / 4, Why: "it has 4 slots of 4",
			},
		}})
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "teams", "--state", state)
		if said := stdout + stderr; code != cli.ExitOK || !containsAll(said, c.want) {
			t.Errorf("exit %d, want %q in\n%s", code, c.want, said)
		}
		if err := stack.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
