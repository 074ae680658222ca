package runs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
)

func printed(task string, attempt int, origin wire.LogOrigin, text string) logs.Line {
	return logs.Line{
		LogSource: wire.LogSource{
			Run: "digits-1", Stage: strings.Split(task, "-")[0], Task: task, Attempt: attempt,
			Venue: predictor.Pool,
		},
		LogLine: wire.LogLine{At: clitest.Begin, Origin: origin, Text: text},
	}
}

// printing starts a stack with the run digits-1, which goes on and has printed a little.
func printing(t *testing.T) (stack *clitest.Stack, state string) {
	t.Helper()
	state = t.TempDir()
	app := clitest.ServedDigits
	app.Stages = []wire.Stage{{Name: "prep"}, {Name: "train"}, {Name: "score"}}
	stack = clitest.StartStack(t, state, app)
	stack.Apply("digits-1", predictor.RunStarted{
		Run: "digits-1", Pipeline: "digits", App: "digits",
		Build: clitest.ServedDigits.Build, At: clitest.Begin,
	})
	cut := printed("score-10", 1, wire.LogOut, "much")
	cut.Cut = true
	stack.Print(
		printed("prep-1", 1, wire.LogOut, "ready"),
		printed("score-10", 2, wire.LogErr, "\x1b[31mwarning\x1b[0m: \x07low\x1b]0;title\x07 accuracy\tofshard"),
		printed("score-10", 2, wire.LogNote, "3 lines left out"),
		cut,
	)
	return stack, state
}

func end(stack *clitest.Stack) {
	stack.Apply("digits-1", predictor.RunEnded{
		Run: "digits-1", State: predictor.RunSucceeded,
		At: clitest.Begin.Add(time.Minute),
	})
}

func TestLogsShowsLinesWithTheirOrigin(t *testing.T) {
	t.Parallel()
	stack, state := printing(t)
	end(stack)
	prep, score1, score2 := "prep prep-1#1 | ready\n", "score score-10#1 | much (cut)\n",
		"score score-10#2 ! warning: low accuracy\tofshard\n"
	note := "score score-10#2 * 3 lines left out\n"
	for args, want := range map[string]string{
		"":                  prep + score2 + note + score1,
		"--no-follow":       prep + score2 + note + score1,
		"prep":              prep,
		"--task score-10":   score2 + note + score1,
		"score --attempt 2": score2 + note,
		"--tail 1":          score1,
		"--since 999999h":   prep + score2 + note + score1,
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append([]string{"logs", "digits-1", "--state", state}, strings.Fields(args)...)...)
		if code != cli.ExitOK || stderr != "" {
			t.Errorf("%s: got exit %d, stderr %q", args, code, stderr)
		}
		if diff := cmp.Diff(want, stdout); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
}

func TestLogsCanTellTimes(t *testing.T) {
	t.Parallel()
	stack, state := printing(t)
	end(stack)
	_, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, "logs", "digits-1", "prep", "--timestamps", "--state",
		state)
	if want := clitest.Begin.Local().Format("2006-01-02T15:04:05.000Z07:00") + " prep prep-1#1 | ready\n"; stdout != want {
		t.Errorf("got %q, want %q", stdout, want)
	}
}

func TestLogsAsJSONAreAsTheyWerePrinted(t *testing.T) {
	t.Parallel()
	stack, state := printing(t)
	end(stack)
	code, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, "logs", "digits-1", "--json", "--attempt", "2",
		"--state", state)
	if code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
	var got []logs.Line
	decoder := json.NewDecoder(strings.NewReader(stdout))
	for decoder.More() {
		var line logs.Line
		if err := decoder.Decode(&line); err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		got = append(got, line)
	}
	if len(got) != 2 || !strings.HasPrefix(got[0].Text, "\x1b[31mwarning") || got[0].Origin != wire.LogErr ||
		got[0].Task != "score-10" || !got[0].At.Equal(clitest.Begin) {
		t.Errorf("got %+v", got)
	}
}

func TestLogsFollowsTheRunToItsEnd(t *testing.T) {
	t.Parallel()
	stack, state := printing(t)
	time.AfterFunc(50*time.Millisecond, func() {
		stack.Print(printed("score-11", 1, wire.LogOut, "late"))
		end(stack)
	})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "logs", "digits-1", "score", "--tail", "1",
		"--state", state)
	if code != cli.ExitOK || stderr != "" {
		t.Errorf("got exit %d, stderr %q", code, stderr)
	}
	if want := "score score-10#1 | much (cut)\nscore score-11#1 | late\n"; stdout != want {
		t.Errorf("got %q, want %q", stdout, want)
	}
}

func TestAnInterruptEndsOnlyTheDisplayOfLogs(t *testing.T) {
	t.Parallel()
	stack, state := printing(t)
	stack.OnCancel = func(run string) { t.Errorf("run %s was cancelled", run) }
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, interrupt)
	code, _, stderr := clitest.Execute(t, ctx, cli.Deps{}, "logs", "digits-1", "--state", state)
	if code != cli.ExitOK || stderr != "" {
		t.Errorf("got exit %d, stderr %q", code, stderr)
	}
}

func TestLogsOfWhatIsNotThereNameWhatIsNear(t *testing.T) {
	t.Parallel()
	_, state := printing(t)
	for args, test := range map[string]struct {
		code int
		want string
	}{
		"digits-2":                     {2, "there is no run \"digits-2\"\n  hint: did you mean digits-1?"},
		"elsewhere":                    {2, "there is no run \"elsewhere\"\n  hint: `spillway runs` lists them"},
		"digits-1 scroe":               {2, "run \"digits-1\" has no stage \"scroe\"\n  hint: did you mean score?"},
		"digits-1 deploy":              {2, "hint: there are: prep, score, train"},
		"digits-1 train --no-follow":   {0, "no lines"}, // a stage that the run has not begun
		"":                             {2, "it needs the name of a run"},
		"a b c":                        {2, "it does not take the argument \"b\""},
		"digits-1 --tail 0":            {2, "--tail 0: it is not a whole number in range"},
		"digits-1 --tail 999999":       {2, "tail \"999999\" is not a number from 1 to 100000"},
		"digits-1 --attempt x":         {2, "--attempt x: it is not a whole number in range"},
		"digits-1 --since yesterday":   {2, "--since yesterday: it is not a duration"},
		"digits-1 --folow":             {2, "there is no flag --folow"},
		"digits-1 --no-folow":          {2, "did you mean --no-follow?"},
		"digits-1 prep --no-follow -n": {2, "there is no flag -n"},
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append([]string{"logs", "--state", state}, strings.Fields(args)...)...)
		if code != test.code || stdout != "" {
			t.Errorf("%s: got exit %d, stdout %q, want exit %d", args, code, stdout, test.code)
		}
		clitest.Contains(t, args, stderr, test.want)
	}
}

func TestLogsHasHelpWithUsageAndExamples(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "logs", "--help")
	if code != cli.ExitOK || stderr != "" {
		t.Errorf("got exit %d, stderr %q", code, stderr)
	}
	clitest.Contains(t, "help", stdout, "Usage:\n  spillway logs RUN [STAGE] [FLAGS]", "Examples:\n  spillway")
	for line := range strings.Lines(stdout) {
		if len([]rune(line)) > 112 {
			t.Errorf("a line has %d columns: %s", len([]rune(line)), line)
		}
	}
}

func TestNothingThatAProgramPrintsReachesTheTerminalAsCommand(t *testing.T) {
	t.Parallel()
	stack, state := printing(t)
	acts := regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f]|\x{9b}`)
	for i, text := range []string{
		"\x1b[2J", "\x1b]8;;http://x\x1b\\link", "\x1bPq#0\x1b\\", "\x1b", "\x1b[", "\x1b[31", "\u009b2J", "\x1b]0;open",
		"\x1b\x1b[1m", "a\x00b\x08c\x7f", "\x1b(B",
	} {
		stack.Print(printed(fmt.Sprintf("evil-%d", i), 1, wire.LogOut, text))
	}
	end(stack)
	_, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, "logs", "digits-1", "--state", state)
	if found := acts.FindString(stdout); found != "" {
		t.Errorf("%q is in %q", found, stdout)
	}
	clitest.Contains(t, "standard output", stdout, "evil evil-1#1    | link\n", "| abc\n")
}
