package stack_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// configuration writes a configuration file and returns its name.
func configuration(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// in returns an environment.
func in(values ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(values); i += 2 {
			if values[i] == name {
				return values[i+1], true
			}
		}
		return "", false
	}
}

func TestAStackStartsAsFileEnvironmentAndFlagsSay(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	file := configuration(t, "state: "+state, "value-of-time: 2", "host-price: 0.25", "pool-memory: 64MiB", "no-ui: true",
		"alert-webhook: [http://127.0.0.1:1/a, http://127.0.0.1:1/b]")
	start, configs := clitest.Starter(t, func(stack *clitest.Stack) {
		stack.OnPublish = func(_ web.Event, run string) {
			clitest.Finish(stack, run, "tiny", clitest.ServedDigits.Build, predictor.RunSucceeded, "{}", clitest.Begin)
		}
	})
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{
		StartEngine: start,
		Environment: in("SPILLWAY_CONFIG", file, "SPILLWAY_HOST_PRICE", "0.5", "SPILLWAY_POOL_MEMORY", "128MiB"),
	}, "run", "tiny", "--app", clitest.Script(t, "tiny"), "--pool-memory", "256MiB")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	config := (*configs)[0]
	if config.StateDir != state || config.Policy.ValueOfTime != 2*quantity.USD || config.HostPrice != quantity.USD/2 ||
		config.PoolMemory != 256<<20 || !config.NoUI || len(config.AlertWebhooks) != 2 {
		t.Errorf("it starts with %+v", config)
	}
}

func TestWhatAFileSaysIsForNoStackThatRunsAlready(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.OnPublish = func(_ web.Event, run string) {
		clitest.Finish(stack, run, "digits", clitest.ServedDigits.Build, predictor.RunSucceeded, "{}", clitest.Begin)
	}
	file := configuration(t, "state: "+state, "host-price: 0.25")
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "digits", "--config", file)
	if code != cli.ExitOK {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "run", "digits", "--config", file, "--no-ui")
	if code != cli.ExitUsage || !strings.Contains(stderr, "--no-ui can only be said when it starts") ||
		strings.Contains(stderr, "host-price") {
		t.Errorf("got exit %d: %s", code, stderr)
	}
}

func TestMistakesOfAConfigurationAreToldBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lines []string
		want  []string
	}{
		"a key that there is not": {
			[]string{"http-prot: 7474"},
			[]string{`spillway.yaml:1:1: there is no setting "http-prot"`, "hint: did you mean http-port"},
		},
		"a value": {
			[]string{"no-ui: true", "http-port: 70000"},
			[]string{"spillway.yaml:2:12: http-port 70000: it is not a TCP port", "hint: write a number from 1 to 65535"},
		},
		"a value that the machine has not": {
			[]string{"pool-cpus: 8000"},
			[]string{"spillway.yaml:1:12: pool-cpus 8000: this process may not use CPU 8000"},
		},
		"a conflict": {
			[]string{"no-ui: true", "ui-port: 8233"},
			[]string{"spillway.yaml:2:10: ui-port: it does not go with no-ui"},
		},
		"several": {
			[]string{"http-prot: 7474", "http-port: x", "keep-for: 1"},
			[]string{
				"spillway.yaml:1:1: ", "spillway.yaml:2:12: ", "spillway.yaml:3:11: ", "the settings have 3 mistakes",
				"hint: correct them; `spillway config check`",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "dev", "--state", t.TempDir(), "--config",
				configuration(t, test.lines...))
			if code != cli.ExitUsage || stdout != "" {
				t.Errorf("got exit %d and %s", code, stdout)
			}
			clitest.Contains(t, "standard error", stderr, test.want...)
		})
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "dev", "--state", t.TempDir(), "--config",
		"nowhere.yaml")
	if code != cli.ExitUsage {
		t.Errorf("got exit %d", code)
	}
	clitest.Contains(t, "standard error", stderr, "read the configuration file nowhere.yaml: no such file or directory")
}

func TestTheCheckOfAConfigurationNamesEveryMistakeAndTriesTheRest(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	file := configuration(t, "htp-port: 1", "keep-for: 1", "no-ui: true", "ui-port: 8233", "http-port: "+port,
		"prices: nowhere.csv")
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "config", "check", file, "--state", t.TempDir())
	if code != cli.ExitFailure || stderr != "" {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout,
		file+":1:1", `there is no setting "htp-port"`, "-> did you mean http-port?",
		file+":2:11", "keep-for 1: it is not a duration",
		file+":4:10", "ui-port: it does not go with no-ui",
		"failed   http-port", "127.0.0.1:"+port, "address already in use",
		"failed   prices", "nowhere.csv: no such file or directory",
		"ok       state directory",
		"failed: 5\n")
	code, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "config", "check", "--state", t.TempDir(), "--offline",
		"--config", configuration(t, "http-port: "+port, "keep-for: 24h"))
	if code != cli.ExitOK {
		t.Errorf("got exit %d: %s", code, stdout)
	}
	clitest.Contains(t, "standard output", stdout, "ok       settings", "2 settings in ")
}

func TestTheCheckNamesEveryMistakeInAFileOfTeams(t *testing.T) {
	t.Parallel()
	teams := filepath.Join(t.TempDir(), "teams.yaml")
	for text, want := range map[string][]string{
		"teams:\n  - name: A\n  - name: b\n    slot: 1\n": {
			"failed   " + teams + ":2:11", "a team cannot have that name",
			"failed   " + teams + ":4:5", `a team has no key "slot"`, "-> did you mean slots?", "failed: 2\n",
		},
		"teams: [{name: a, slots: 2}]": {"ok       teams-file"},
	} {
		if err := os.WriteFile(teams, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, "config", "check", "--state", t.TempDir(), "--offline",
			"--config", configuration(t, "teams-file: "+teams))
		clitest.Contains(t, "standard output", stdout, want...)
	}
}

func TestTheCheckNamesVariablesThatSayNothing(t *testing.T) {
	t.Parallel()
	check := func(variables ...string) (code int, stdout string) {
		deps := cli.Deps{Environ: func() []string { return variables }}
		code, stdout, _ = clitest.Execute(t, t.Context(), deps, "config", "check", "--state", t.TempDir(), "--offline")
		return code, stdout
	}
	code, stdout := check("HOME=/", "SPILLWAY_HTP_PORT=1", "SPILLWAY_WHATEVER_THIS_IS=s3cret", "SPILLWAY_CONFIG=f",
		"SPILLWAY_KEEP_FOR=24h")
	if code != cli.ExitFailure || strings.Contains(stdout, "s3cret") || strings.Contains(stdout, "SPILLWAY_KEEP_FOR ") {
		t.Errorf("got exit %d: %s", code, stdout)
	}
	clitest.Contains(t, "standard output", stdout, "failed   SPILLWAY_HTP_PORT", "-> did you mean SPILLWAY_HTTP_PORT?",
		"note     SPILLWAY_WHATEVER_THIS_IS", "failed: 1\n")
	if code, stdout := check("SPILLWAY_WHATEVER_THIS_IS=1"); code != cli.ExitOK {
		t.Errorf("a variable of another program: got exit %d: %s", code, stdout)
	}
}

func TestTheCheckTriesABucket(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIA0", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_CONFIG_FILE": os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	server := httptest.NewServer(nil)
	address := server.URL
	server.Close() // nobody answers there
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, stdout, stderr := clitest.Execute(t, ctx, cli.Deps{}, "config", "check", "--state", t.TempDir(), "--config",
		configuration(t, "artifacts: s3://bucket/prefix?endpoint="+address))
	if code != cli.ExitFailure {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "failed   artifacts", "try the artifact store s3://bucket/prefix")
}

func TestSettingsAreShownWithWhereTheyComeFrom(t *testing.T) {
	t.Parallel()
	file := configuration(t, "host-price: 0.25", "alert-webhook: https://h/s3cret", "keep-for: 24h")
	deps := cli.Deps{Environment: in("SPILLWAY_KEEP_FOR", "48h", "HOME", t.TempDir())}
	code, stdout, stderr := clitest.Execute(t, t.Context(), deps, "config", "show", file, "--said", "--json")
	if code != cli.ExitOK || strings.Contains(stdout, "s3cret") {
		t.Fatalf("got exit %d, %s%s", code, stdout, stderr)
	}
	var got []map[string]string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]string{
		{"setting": "alert-webhook", "value": "(secret)", "source": "file", "where": file + ":2:16"},
		{"setting": "host-price", "value": "0.25", "source": "file", "where": file + ":1:13"},
		{"setting": "keep-for", "value": "48h0m0s", "source": "environment", "where": "SPILLWAY_KEEP_FOR"},
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		for key, value := range want[i] {
			if got[i][key] != value {
				t.Errorf("%s: %s is %q, want %q", want[i]["setting"], key, got[i][key], value)
			}
		}
	}
	_, stdout, _ = clitest.Execute(t, t.Context(), deps, "config", "show")
	clitest.Contains(t, "standard output", stdout, "function-concurrency", "1000", "default", "SPILLWAY_KEEP_FOR")
}

func TestWhatTheEngineTellsAStageIsNoSetting(t *testing.T) {
	t.Parallel()
	const store = "http://:s3cret@127.0.0.1:1/"
	environment := []string{"HOME", t.TempDir(), "SPILLWAY_ARTIFACTS", store}
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{
		Environment: in(append(environment, "SPILLWAY_ROLE", "child")...),
	}, "config", "show", "--said")
	if code != cli.ExitOK || stdout != "" {
		t.Errorf("in a stage: got exit %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = clitest.Execute(t, t.Context(), cli.Deps{Environment: in(environment...)}, "config", "show")
	if code != cli.ExitUsage || !strings.Contains(stderr, "SPILLWAY_ARTIFACTS: ") || strings.Contains(stderr, "s3cret") {
		t.Errorf("elsewhere it is no location: got exit %d, %s%s", code, stdout, stderr)
	}
}

func TestOthersMayNotReadAFileWithASecret(t *testing.T) {
	t.Parallel()
	file := configuration(t, "alert-webhook: https://hooks.example.com/s3cret")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	_, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, "config", "check", file, "--offline", "--state",
		t.TempDir())
	clitest.Contains(t, "standard output", stdout, "others may read it (-rw-r--r--), and alert-webhook may hold a secret",
		"-> chmod 0600 "+file)
	if strings.Contains(stdout, "s3cret") {
		t.Errorf("the secret is told: %s", stdout)
	}
}
