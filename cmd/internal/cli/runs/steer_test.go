package runs_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// steered is a stack with a run that has succeeded, one that has failed and one that goes on.
func steered(t *testing.T) (stack *clitest.Stack, state string) {
	t.Helper()
	state = t.TempDir()
	stack = clitest.StartStack(t, state, clitest.ServedDigits)
	clitest.Finish(stack, "digits-1", "digits", clitest.ServedDigits.Build, predictor.RunSucceeded, `{"accuracy":0.97}`,
		clitest.Begin)
	clitest.Finish(stack, "digits-2", "digits", clitest.ServedDigits.Build, predictor.RunFailed, "",
		clitest.Begin.Add(time.Minute))
	train := predictor.StageID{App: "digits", Build: clitest.ServedDigits.Build, Name: "train"}
	stack.Apply("digits-2", predictor.Record{
		Run: "digits-2", Pipeline: "digits", Stage: train, Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "local",
		Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit, Error: "killed at its limit",
		ScheduledAt: clitest.Begin.Add(61 * time.Second), At: clitest.Begin.Add(63 * time.Second),
		Usage: quantity.Usage{Wall: time.Second}, Cost: 5_000_000,
	})
	stack.Print(logs.Line{
		LogSource: wire.LogSource{Run: "digits-2", Stage: "train", Task: "train-0", Attempt: 1},
		LogLine:   wire.LogLine{At: clitest.Begin.Add(62 * time.Second), Origin: wire.LogErr, Text: "allocating 3 GiB"},
	})
	stack.Apply("digits-9", predictor.RunStarted{
		Run: "digits-9", Pipeline: "digits", App: "digits", At: time.Now(), RetryOf: "digits-2",
		Goal: predictor.Goal{Deadline: time.Hour, Budget: quantity.USD / 2},
	})
	stack.OnOutlook = func(run string, goal predictor.Goal) predictor.Outlook {
		way := predictor.Alternative{
			Name: "pool only", FinishSeconds: predictor.Interval{Low: 100, Mid: 120, High: 150},
			CostUSD: predictor.Interval{Low: 0.01, Mid: 0.01, High: 0.02},
		}
		outlook := predictor.Outlook{
			Run: run, Goal: goal, Known: true, Feasible: true, Summary: "ends after 2m00s for $0.01",
			Present: way, Chosen: way, Alternatives: []predictor.Alternative{way},
		}
		if goal.Deadline > 0 && goal.Deadline < time.Minute {
			outlook.Feasible, outlook.Summary = false, "a deadline of "+goal.Deadline.String()+" cannot be met"
		}
		return outlook
	}
	stack.OnRetry = func(run string, request web.Retry) (web.Retried, error) {
		switch run {
		case "digits-1":
			return web.Retried{}, &web.Error{Status: http.StatusGone, Message: "artifact 3b1f of stage score is gone"}
		default:
			retried := web.Retried{Run: run + "-again", Event: "again", Stages: []string{"score"}, Tasks: 2}
			if request.From != "" {
				retried.Stages, retried.Tasks, retried.Unsigned = nil, 0, 3
			}
			return retried, nil
		}
	}
	return stack, state
}

func TestCommandsThatSteerAndAccount(t *testing.T) {
	t.Parallel()
	_, state := steered(t)
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"cost", 0, "cost by stage, from "},
		{"cost --by run", 0, "digits-2"},
		{"cost --by run --run digits-1", 0, "total"},
		{"cost --by venue --pipeline digits", 0, "function"},
		{"cost --run digits-11", 2, "there is no run \"digits-11\"\n  hint: did you mean digits-1, digits-2, digits-9?"},
		{"cost --csv", 0, "digits/score"},
		{"cost --since 7d --until 1h --by pipeline", 0, "cost by pipeline"},
		{"cost --since 1h --until 2h", 2, "is not before --until"},
		{"cost --since yesterday", 2, "--since yesterday: it is neither a time nor how long ago"},
		{"cost --since -3h", 2, "it is negative"},
		{"cost --since xd", 2, "it is not a number of days"},
		{"cost --by user", 2, "--by user: it is none of stage, run, pipeline, team, venue, host"},
		{"cost --csv --json", 2, "exclude each other"},

		{"goal digits-9", 0, "outlook   ends after 2m00s for $0.01"},
		{"goal digits-9", 0, "goal      deadline 1h, budget $0.5000"},
		{"goal digits-9 --deadline 10m --dry-run", 0, "nothing was changed"},
		{"goal digits-9 --dry-run", 2, "--dry-run is for a goal, and none is given"},
		{"goal digits-9 --deadline 10s --dry-run", 0, "a deadline of 10s cannot be met"},
		{"goal digits-9 --deadline 10s", 2, "spillway: goal: a deadline of 10s cannot be met"},
		{"goal digits-9 --deadline 10s", 2, "pool only"},
		{"goal digits-9", 0, "deadline 1h"},
		{"goal digits-9 --deadline 10m", 0, "goal      deadline 10m, budget $0.5000"},
		{"goal digits-9", 0, "deadline 10m"},
		{"goal digits-9 --none --minimise cost", 0, "goal      minimise cost"},
		{"goal digits-1", 0, "ended     succeeded in 4.0 s for $0.000002000"},
		{"goal digits-1 --budget 3", 1, "has succeeded already"},
		{"goal digit-9", 2, "did you mean digits-9"},
		{"goal digits-9 --budget -1", 2, "it is negative"},

		{"retry digits-2", 0, "run digits-2-again tries digits-2 again, and reuses 2 results of score"},
		{"retry digits-2 --from score --detach", 0, "and reuses nothing of it; it makes 3 results again that this engine " +
			"did not sign"},
		{"retry digits-2 --from scor", 2, "run digits-2 has no stage \"scor\"\n  hint: did you mean score?"},
		{"retry digits-2 --from xyz", 2, "its stages are score, train"},
		{"retry digits-1", 1, "artifact 3b1f of stage score is gone\n  hint: run the stages that made them again: " +
			"--from STAGE"},
		{"retry digits-9", 1, "goes on"},
		{"retry digits-22", 2, "did you mean digits-2"},
		{"retry digits-2 --follow --detach", 2, "exclude each other"},

		{"diff digits-1 digits-2", 0, "failed"},
		{"diff digits-1 digits-1", 0, "digits-1"},
		{"diff digits-1 digits-2 --all", 0, "score peak at pool"},
		{"diff digits-1 digits-3", 2, "there is no run \"digits-3\"\n  hint: did you mean digits-1, digits-2, digits-9?"},
		{"diff digits-1", 2, "it needs the name of another run"},

		{"top", 0, "digits-9"},
		{"top --once", 0, "host"},

		{"show digits-2 --why", 0, "train-0 attempt 1 at pool, host local"},
		{"show digits-2 --why", 0, "| allocating 3 GiB"},
		{"show digits-2 --why", 0, "unattributed"},
		{"show digits-2 --why", 0, "retries   digits-2 -> digits-9"},
		{"show digits-9 --why", 0, "retries   digits-2 -> digits-9"},
		{"show digits-1 --why", 0, "slots at function: 1 slot (was 0 slots) since 1.0 s after its start: 2 tasks wait 2 s"},
		{"show digits-1", 0, "time went to "},
		{"show digits-11 --why", 2, "did you mean digits-1"},
		{"show digits-11", 2, "did you mean digits-1"},
		{"logs digits-11", 2, "did you mean digits-1"},
		{"cancel digits-11", 2, "did you mean digits-1"},
		{"runs", 0, "PREDICTED"},
		{"show digits-1 --why --history", 2, "--history and --why exclude each other"},

		{"completion bash", 0, "__start_spillway"},
		{"completion zsh", 0, "#compdef spillway"},
		{"completion fish", 0, "complete -c spillway"},
		{"completion tcsh", 2, "there is no completion for tcsh"},
		{"completion", 2, "it needs the name of a shell"},
		{"help exit-codes", 0, "It was refused at the door"},
		{"help goals", 0, "--minimise latency"},
		{"help sizes", 0, "runs out of memory"},
		{"help money", 0, "picodollars"},
		{"--help", 0, "exit-codes"},
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append(strings.Fields(test.args), "--state", state)...)
		if code != test.code {
			t.Errorf("%s: got exit %d, want %d: %s", test.args, code, test.code, stderr)
		}
		clitest.Contains(t, test.args, stdout+stderr, test.want)
		if code != 0 && stdout != "" {
			t.Errorf("%s: a command that is refused printed %q", test.args, stdout)
		}
	}
}

func TestJSONIsTheAnswerOfTheAPI(t *testing.T) {
	t.Parallel()
	_, state := steered(t)
	for args, into := range map[string]any{
		"cost --json":                                   &ledger.Bill{},
		"goal digits-9 --json":                          &predictor.Outlook{},
		"goal digits-1 --json":                          &predictor.Outlook{},
		"goal digits-9 --deadline 20m --json":           &predictor.Outlook{},
		"goal digits-9 --deadline 20m --dry-run --json": &predictor.Outlook{},
		"retry digits-2 --json":                         &web.Retried{},
		"diff digits-1 digits-2 --json":                 &ledger.Diff{},
		"cancel digits-9 --json":                        &struct{ Run string }{},
		"bind a digits --json":                          &web.Binding{},
		"dead replay --all --json":                      &web.Replayed{},
		"version --json":                                &struct{ Version, Go, Platform, GoExperiment string }{},
		"top --json":                                    &map[string]json.RawMessage{},
		"show digits-2 --why --json":                    &map[string]json.RawMessage{},
		"show digits-2 --json":                          &map[string]json.RawMessage{},
		"runs --json":                                   &[]ledger.RunView{},
		"runs --totals --json":                          &ledger.RunTotals{},
		"bindings --json":                               &[]web.Binding{},
		"dead list --json":                              &[]web.DeadLetter{},
		"trigger digits --cache --json":                 &web.Published{},
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(args), "--state", state)...)
		decoder := json.NewDecoder(strings.NewReader(stdout))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil || code != cli.ExitOK || decoder.More() {
			t.Errorf("%s: got exit %d, %v: %s%s", args, code, err, stdout, stderr)
		}
	}
	wantKeys := map[string][]string{
		"top --json":                 {"now", "version", "hosts", "functions", "runs", "running_attempts", "use", "alerts"},
		"show digits-2 --why --json": {"run", "breakdown", "latest_decisions", "retries", "failures"},
	}
	for args, keys := range wantKeys {
		_, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(args), "--state", state)...)
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		for _, key := range keys {
			if text, found := got[key]; !found || string(text) == "null" {
				t.Errorf("%s: %s is %q", args, key, text)
			}
		}
	}
}

func TestCSVIsWhatTheEngineWrites(t *testing.T) {
	t.Parallel()
	stack, state := steered(t)
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "cost", "--csv", "--by", "run", "--state", state)
	if code != cli.ExitOK || stderr != "" {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		stack.Server.URL+"/api/v1/cost?by=run&format=csv", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+stack.Keys.Token())
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if _, err := want.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	names, _, _ := strings.Cut(stdout, "\n")
	wantNames, _, _ := strings.Cut(want.String(), "\n")
	if diff := cmp.Diff(wantNames, names); diff != "" ||
		strings.Count(stdout, "\n") != strings.Count(want.String(), "\n") || strings.Count(stdout, "\n") < 3 {
		t.Errorf("names (-want +got):\n%s\nof:\n%s", diff, stdout)
	}
}

func TestCacheTravelsWithTheEvent(t *testing.T) {
	t.Parallel()
	stack, state := steered(t)
	got := make(chan web.Event, 1)
	stack.OnPublish = func(event web.Event, run string) {
		got <- event
		clitest.Finish(stack, run, "digits", clitest.ServedDigits.Build, predictor.RunSucceeded, "{}", clitest.Begin)
	}
	for args, want := range map[string]bool{
		"trigger digits": false, "trigger digits --cache": true, "run digits": false,
		"run digits --cache": true,
	} {
		if code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append(strings.Fields(args), "--state", state)...); code != cli.ExitOK {
			t.Errorf("%s: got exit %d: %s", args, code, stderr)
		}
		if event := <-got; event.Cache != want {
			t.Errorf("%s: cache is %v", args, event.Cache)
		}
	}
}

func TestARetryIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	stack, state := steered(t)
	again := stack.OnRetry
	stack.OnRetry = func(run string, request web.Retry) (web.Retried, error) {
		retried, err := again(run, request)
		go func() {
			stage := predictor.StageID{App: "digits", Build: clitest.ServedDigits.Build, Name: "score"}
			stack.Apply(retried.Run,
				predictor.RunStarted{
					Run: retried.Run, Pipeline: "digits", App: "digits", Build: clitest.ServedDigits.Build,
					RetryOf: run, At: clitest.Begin,
				},
				predictor.Reused{
					Run: retried.Run, Stage: stage, Tasks: 2, From: run, Saved: 400_000_000,
					Wall: 3100 * time.Millisecond, At: clitest.Begin,
				},
			)
			stack.Alert(alerting.Alert{
				ID: "a1", Run: retried.Run, Kind: alerting.KindDeadlineAtRisk, At: clitest.Begin,
				Message: "it ends too late",
			})
			clitest.Finish(stack, retried.Run, "digits", clitest.ServedDigits.Build, predictor.RunSucceeded, "{}", clitest.Begin)
		}()
		return retried, err
	}
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "retry", "digits-2", "--follow", "--state", state)
	if code != cli.ExitOK {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "reuses 2 results of score", "digits digits-2-again succeeded",
		"reused: score (2 tasks, saved 3.1 s and $0.0004000)")
	code, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "retry", "digits-2", "--follow", "--json",
		"--quiet=false", "--state", state)
	if code != cli.ExitUsage || stdout != "" {
		t.Errorf("retry has no --quiet: got exit %d, %s", code, stdout)
	}
}

func TestARetryMayHaveAnotherGoal(t *testing.T) {
	t.Parallel()
	stack, state := steered(t)
	again := stack.OnRetry
	var asked []web.Retry
	stack.OnRetry = func(run string, request web.Retry) (web.Retried, error) {
		asked = append(asked, request)
		return again(run, request)
	}
	for _, flags := range [][]string{{"--budget", "0.5"}, nil} {
		arguments := append([]string{"retry", "digits-2", "--detach", "--state", state}, flags...)
		if code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, arguments...); code != cli.ExitOK {
			t.Fatalf("got exit %d: %s", code, stderr)
		}
	}
	if len(asked) != 2 || asked[0].Goal == nil || asked[0].Goal.Budget != quantity.USD/2 || asked[1].Goal != nil {
		t.Errorf("asked for %+v, want a budget of half a dollar, and then the goal of before", asked)
	}
}

func TestNamesAreCompletedFromTheEngine(t *testing.T) {
	t.Parallel()
	_, state := steered(t)
	for args, want := range map[string][]string{
		"show ":                  {"digits-1\tsucceeded", "digits-2\tfailed", "digits-9\trunning"},
		"goal ":                  {"digits-9\trunning"},
		"diff digits-1 ":         {"digits-2\tfailed"},
		"trigger ":               {"digits"},
		"run ":                   {"digits"},
		"logs digits-2 ":         {"score", "train"},
		"retry digits-2 --from ": {"score", "train"},
		"cost --run ":            {"digits-1\tsucceeded"},
		"cost --by ":             {"stage", "venue"},
		"runs --pipeline ":       {"digits"},
		"completion ":            {"bash", "zsh", "fish"},
	} {
		complete := append([]string{"__complete"}, strings.Split(strings.TrimSuffix(args, " "), " ")...)
		complete = append(complete[:2:2], append([]string{"--state", state}, complete[2:]...)...)
		code, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, append(complete, "")...)
		if code != cli.ExitOK {
			t.Errorf("%s: got exit %d", args, code)
		}
		clitest.Contains(t, args, stdout, want...)
		code, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "__complete", "show", "--state", t.TempDir(), "")
		if code != cli.ExitOK || strings.Contains(stdout, "digits") {
			t.Errorf("without an engine: got exit %d, %s", code, stdout)
		}
	}
}

func TestTheEnvironmentAndFlagsSayWhereAlertsAndTracesGo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args        string
		environment map[string]string
		want        string // of the error
	}{
		"nothing": {"", nil, ""},
		"both": {
			"--alert-webhook https://hooks.example.com/s3cret --alert-webhook http://127.0.0.1:9",
			map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"},
			"",
		},
		"a webhook unseen": {"", map[string]string{"SPILLWAY_ALERT_WEBHOOKS": "https://hooks.example.com/s3cret " +
			"http://127.0.0.1:9"}, ""},
		"a file, unseen": {
			"",
			map[string]string{"SPILLWAY_ALERT_WEBHOOKS": "file:///s3cret"},
			"SPILLWAY_ALERT_WEBHOOKS (the 1. of 1)",
		},
		"a webhook of a file": {"--alert-webhook file:///s3cret", nil, "--alert-webhook (the 1. of 1)"},
		"a collector over tcp": {
			"",
			map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"},
			"OTEL_EXPORTER_OTLP_ENDPOINT",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start, configs := clitest.Starter(t, func(stack *clitest.Stack) {
				stack.OnPublish = func(_ web.Event, run string) {
					clitest.Finish(stack, run, "tiny", clitest.ServedDigits.Build, predictor.RunSucceeded, "{}", clitest.Begin)
				}
			})
			deps := cli.Deps{StartEngine: start, Environment: func(name string) (string, bool) {
				value, set := test.environment[name]
				return value, set
			}}
			args := append([]string{"run", "tiny", "--state", t.TempDir(), "--app", clitest.Script(t, "tiny")},
				strings.Fields(test.args)...)
			code, _, stderr := clitest.Execute(t, t.Context(), deps, args...)
			if test.want != "" {
				clitest.Contains(t, "standard error", stderr, test.want)
				if code != cli.ExitUsage || strings.Contains(stderr, "s3cret") {
					t.Errorf("got exit %d, %s", code, stderr)
				}
				return
			}
			if code != cli.ExitOK {
				t.Fatalf("got exit %d: %s", code, stderr)
			}
			config := (*configs)[0]
			if len(config.AlertWebhooks) != strings.Count(test.args, "--alert-webhook")+
				len(strings.Fields(test.environment["SPILLWAY_ALERT_WEBHOOKS"])) {
				t.Errorf("alerts go to %q", config.AlertWebhooks)
			}
			if endpoint := test.environment["OTEL_EXPORTER_OTLP_ENDPOINT"]; endpoint != "" &&
				config.Traces.Endpoint != endpoint+"/v1/traces" || endpoint == "" && config.Traces.Endpoint != "" {
				t.Errorf("traces go to %q", config.Traces.Endpoint)
			}
		})
	}
}
