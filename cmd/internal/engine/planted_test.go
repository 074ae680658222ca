package engine_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/proctest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// planted are secrets, by where they were planted.
type planted map[string]string

// in returns where the secrets were planted that a text has, as they are or in another usual form.
func (p planted) in(text []byte) (found []string) {
	for name, secret := range p {
		for form, as := range map[string]string{
			"": secret, " as base64": strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(secret)), "="),
			" in hexadecimal": hex.EncodeToString([]byte(secret)),
		} {
			// what stands before it decides how the last characters of base64 come out
			if form == " as base64" {
				as = as[:len(as)-2]
			}
			if bytes.Contains(text, []byte(as)) {
				found = append(found, name+form)
			}
		}
	}
	slices.Sort(found)
	return found
}

// wantNone says where secrets are in a text that is to have none.
func (p planted) wantNone(tb testing.TB, where string, text []byte) {
	tb.Helper()
	for _, name := range p.in(text) {
		tb.Errorf("%s: there is %s in it", where, name)
	}
}

// ofKeys are the secrets of a state directory, as its files have them.
func (p planted) ofKeys(t *testing.T, state string) {
	t.Helper()
	for _, name := range []string{"token", "secret", "metrics"} {
		text, err := os.ReadFile(filepath.Join(state, "keys", name))
		if err != nil {
			t.Fatal(err)
		}
		p["keys/"+name] = strings.TrimSpace(string(text))
	}
}

// confiding is a chain of which one stage is given a secret, says it in every way, and waits for a file; the other
// stage is not given it.
const confiding = `name: confiding
code: none
parameters: {go: ""}
stages:
  confide:
    secrets: [planted-key]
    attempts: 2
    run: |
      echo "the key is $PLANTED_KEY"
      printf '%s' "$PLANTED_KEY" | cut -c1-9 | tr -d '\n'
      printf '%s\n' "$PLANTED_KEY" | cut -c10-
      if [ "$SPILLWAY_ATTEMPT" = 1 ]; then echo "no login with $PLANTED_KEY" >&2; exit 3; fi
      printf '{"result": {"sum": "%s"}}\n' "$(printf '%s' "$PLANTED_KEY" | sha256sum | cut -c1-64)" > "$SPILLWAY_REPORT"
      touch ${go}.begun
      while [ ! -e ${go} ]; do sleep 0.05; done
  other:
    run: |
      printf '{"result": {"set": %d}}\n' "$(env | grep -c PLANTED_KEY || true)" > "$SPILLWAY_REPORT"
`

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// TestASecretThatIsPlantedIsFoundNowhere plants secrets wherever a setting takes one or names a file of one, has runs
// succeed and fail and the engine crash, and looks for them in everything that an engine leaves or tells.
func TestASecretThatIsPlantedIsFoundNowhere(t *testing.T) {
	t.Parallel()
	state, dir := t.TempDir(), t.TempDir()
	const stageKey, ownKey = "sk-plant-ed-4711-stage-key", "sk-plant-ed-8150-other-app"
	payloadKey := bytes.Repeat([]byte("payload-planted-"), 2)
	secrets := planted{
		"a secret of a stage": stageKey, "a secret of another app": ownKey, "a payload key": string(payloadKey),
		"a webhook": "hook-planted-token-2290", "a header of traces": "otel-planted-header-3381",
		"AWS_SECRET_ACCESS_KEY": "aws-planted-secret-key-5512", "AWS_SESSION_TOKEN": "aws-planted-session-6623",
	}
	files := directory(t, map[string]string{
		"secrets/planted-key": stageKey + "\n", "secrets/testapp/planted-own": ownKey,
		"payload": "one " + base64.StdEncoding.EncodeToString(payloadKey) + "\n",
	})
	e := &testEngine{t: t, state: state, concealed: true, environment: []string{
		"SPILLWAY_ALERT_WEBHOOKS=http://127.0.0.1:1/" + secrets["a webhook"],
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=" + secrets["a header of traces"],
		"AWS_ACCESS_KEY_ID=AKIAPLANTED", "AWS_SECRET_ACCESS_KEY=" + secrets["AWS_SECRET_ACCESS_KEY"],
		"AWS_SESSION_TOKEN=" + secrets["AWS_SESSION_TOKEN"], "GOTRACEBACK=all",
	}}
	flags := []string{
		"--no-burst", "--log-level", "debug", "--secrets-dir", filepath.Join(files, "secrets"), "--payload-keys-file",
		filepath.Join(files, "payload"), "--listen", "127.0.0.1:0",
	}
	app := buildAppWith(t, "testapp-confiding", "-X main.confides=planted-own")
	e.start(os.Args[0], app, flags...)
	secrets.ofKeys(t, state)
	joining, err := os.ReadFile(e.joining()[3])
	if err != nil {
		t.Fatal(err)
	}
	_, secrets["what hosts join with"], _ = strings.Cut(strings.TrimSpace(string(joining)), ".")

	// A chain and a stage in Go are given theirs, say them, fail with them, and are killed in the middle.
	if _, err := e.client.RegisterChain(t.Context(), packedChain(t, confiding)); err != nil {
		t.Fatal(err)
	}
	going := filepath.Join(dir, "go")
	run := e.publish("confiding", "a", map[string]string{"go": going})
	e.until("the stage is at work", func() bool { _, err := os.Stat(going + ".begun"); return err == nil })
	e.wantProcesses(secrets, "a secret of a stage")
	for where, text := range e.tells(run) {
		secrets.wantNone(t, where+", while it runs", text)
	}
	if err := e.command.Process.Signal(syscall.SIGQUIT); err != nil { // a crash, with the stacks of all goroutines
		t.Fatal(err)
	}
	<-e.ended
	if !strings.Contains(e.printed(), "goroutine ") {
		t.Errorf("the crash is not reported:\n%s", e.printed())
	}
	secrets.wantNone(t, "what the engine prints that crashes", []byte(e.printed()))
	e.launch(os.Args[0], app, flags...)
	if err := os.WriteFile(going, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	result := succeed[chain.Result](e, run, patience)
	if sum := result.Stages["confide"].Values[0]["sum"]; sum != sumOf(stageKey) {
		t.Errorf("the stage was not given its secret: %v", sum)
	}
	if set := result.Stages["other"].Values[0]["set"]; set != 0.0 {
		t.Errorf("the other stage has the secret as well, %v times", set)
	}
	own := e.publish("confide", "b", map[string]int{"index": 1})
	if sum := succeed[string](e, own, patience); sum != sumOf(ownKey) {
		t.Errorf("the stage in Go was not given its secret: %v", sum)
	}
	lost := e.publish("fail", "c", map[string]int{"index": 1})
	if view := e.wait(lost, patience); view.State != predictor.RunFailed {
		t.Errorf("run %s: %s", lost, view.State)
	}
	told := e.tells(run, own, lost)
	for where, text := range told {
		secrets.wantNone(t, where, text)
	}
	printed := string(told["spillway logs "+run]) + string(told["spillway logs "+own])
	if strings.Count(printed, "the key is (secret)") < 3 {
		t.Errorf("what the stages print is not told, with the secret masked:\n%s", printed)
	}
	for _, arguments := range [][]string{
		slices.Concat([]string{"config", "show"}, flags[3:7]), slices.Concat([]string{"config", "check"}, flags[3:7]),
		{"doctor"},
	} {
		secrets.wantNone(t, "spillway "+strings.Join(arguments, " "), e.says(arguments...))
	}
	e.stop()
	secrets.wantNone(t, "what the engine prints", []byte(e.printed()))
	wantNoneInFiles(t, secrets, state)
}

// TestMistakesWithSecretsRepeatNoneOfThem gives engines wrong secrets, and secrets where a file is wanted.
func TestMistakesWithSecretsRepeatNoneOfThem(t *testing.T) {
	t.Parallel()
	served := sharedEngine(t)
	stack, err := served.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const secret = "planted-4711-mistaken"
	secrets := planted{"the secret": secret}
	// Of the forms of an nkey and of a payload key.
	seed := "SUPLANTED7PLANTED7PLANTED7PLANTED7PLANTED7PLANTED7PLANTED7"
	key := base64.StdEncoding.EncodeToString([]byte(secret + "-and-10more"))
	files := directory(t, map[string]string{
		"password": "engine:" + secret, "key": secret, "url": "postgres://me:" + secret + "@127.0.0.1:1/db",
		"payload": "one " + secret, "open/planted-key": secret,
		"config.yaml": "nats-url: nats://me:" + secret + "@127.0.0.1:1\n",
		"certificate": "-----BEGIN CERTIFICATE-----\n" + secret + "\n", "unknown.yaml": "payload-key: " + secret + "\n",
	})
	if err := os.Chmod(filepath.Join(files, "open", "planted-key"), 0o644); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(files, name) }
	for name, flags := range map[string][]string{
		"a password of NATS":        {"--nats-url", stack.Addresses.NATS, "--nats-credentials", at("password")},
		"one in the URL of NATS":    {"--nats-url", "nats://me:" + secret + "@127.0.0.1:1"},
		"a seed in place of a file": {"--nats-url", "nats://127.0.0.1:1", "--nats-credentials", seed},
		"a key of Temporal": {
			"--temporal-address", stack.Addresses.Temporal, "--temporal-api-key-file", at("key"),
		},
		"a password of the ledger":   {"--ledger-url-file", at("url")},
		"a URL in place of its file": {"--ledger-url-file", "postgres://me:" + secret + "@127.0.0.1:1/db"},
		"a payload key":              {"--payload-keys-file", at("payload")},
		"a key in place of its file": {"--payload-keys-file", "one " + key},
		"a certificate": {
			"--listen", "127.0.0.1:0", "--tls-certificate", at("certificate"), "--tls-key", at("key"),
		},
		"a bucket with credentials":    {"--artifacts", "s3://me:" + secret + "@bucket/prefix"},
		"a webhook that is none":       {"--alert-webhook", "ftp://127.0.0.1/" + secret},
		"a password in a file":         {"--config", at("config.yaml")},
		"a setting that there is not":  {"--config", at("unknown.yaml")},
		"a secret that others read":    {"--secrets-dir", at("open")},
		"a directory that there isn't": {"--secrets-dir", at("nowhere")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			secrets := maps.Clone(secrets)
			secrets["the seed"], secrets["the payload key"] = seed, key
			for _, verb := range [][]string{{"config", "check"}, {"config", "show"}} {
				_, out, errs := command(t, t.Context(), state, slices.Concat(verb, flags)...)
				secrets.wantNone(t, strings.Join(verb, " "), []byte(out+errs))
			}
			if strings.HasPrefix(flags[0], "--secrets-dir") && flags[1] == at("open") {
				return // it starts: the mistake is of an app that wants it
			}
			said := refusesToStart(t, state, append([]string{"--no-burst", "--log-level", "debug"}, flags...)...)
			secrets.wantNone(t, "spillway dev", []byte(said))
			wantNoneInFiles(t, secrets, state)
		})
	}
}

// TestAnAppThatNamesASecretThatIsNotThereIsRefused also where the secret is another app's.
func TestAnAppThatNamesASecretThatIsNotThereIsRefused(t *testing.T) {
	t.Parallel()
	files := directory(t, map[string]string{"another/planted-key": "x"})
	e := startEngine(t, t.TempDir(), "", "--no-burst", "--secrets-dir", files)
	c := packedChain(t, confiding)
	if _, err := e.client.RegisterChain(t.Context(), c); err == nil || !strings.Contains(err.Error(), "planted-key") ||
		!strings.Contains(err.Error(), "stage confide of confiding") {
		t.Fatalf("a chain whose secret is another's: %v", err)
	}
	if err := os.WriteFile(filepath.Join(files, "planted-key"), []byte("a-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
		t.Fatalf("once it is there: %v", err)
	}
	if err := os.Remove(filepath.Join(files, "planted-key")); err != nil {
		t.Fatal(err)
	}
	run := e.publish("confiding", "a", map[string]string{"go": "/"})
	view := e.wait(run, patience)
	if view.State != predictor.RunFailed || !strings.Contains(view.Error, "planted-key") ||
		!strings.Contains(view.Error, files) {
		t.Errorf("a run whose secret is gone: %s, %s", view.State, view.Error)
	}
	e.stop()
}

// says is what a command prints against the engine.
func (e *testEngine) says(arguments ...string) []byte {
	e.t.Helper()
	if len(arguments) == 1 { // what command puts the state directory behind
		arguments = append(arguments, "--json")
	}
	_, out, errs := command(e.t, e.t.Context(), e.state, arguments...)
	return []byte(out + errs)
}

// tells is what the engine tells of itself and of runs, by where: the answers of its API, its metrics and its page.
func (e *testEngine) tells(runs ...string) map[string][]byte {
	e.t.Helper()
	told := map[string][]byte{}
	paths := []string{
		"/", "/metrics", "/healthz", "/api/v1/stack", "/api/v1/plan", "/api/v1/decisions", "/api/v1/alerts",
		"/api/v1/runs", "/api/v1/cost", "/api/v1/prices", "/api/v1/bindings", "/api/v1/dead", "/api/v1/hosts",
		"/api/v1/tokens", "/api/v1/openapi.json",
	}
	for _, run := range runs {
		for _, of := range []string{"", "/history", "/attempts", "/timeline", "/allocation", "/breakdown", "/decisions"} {
			paths = append(paths, "/api/v1/runs/"+run+of)
		}
		if e.stateOf(run) != "running" { // of one that goes on, they go on as well
			told["spillway logs "+run], told["spillway show "+run] = e.says("logs", run), e.says("show", run)
		}
	}
	for _, path := range paths {
		answer := e.get(e.t.Context(), path)
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close() // it was only read
		if err != nil || answer.StatusCode >= 400 {
			e.t.Errorf("%s: %s, %v", path, answer.Status, err)
		}
		told[path] = text
	}
	return told
}

// wantProcesses looks at the arguments and the environment of the engine and all below it while a stage is at work that
// is given the secret of this name: its processes have it, and no others have anything.
func (e *testEngine) wantProcesses(secrets planted, name string) {
	e.t.Helper()
	given := 0
	for _, pid := range proctest.Family(e.t, e.command.Process.Pid) {
		arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has ended
		}
		who := fmt.Sprintf("process %d, %q", pid, bytes.ReplaceAll(arguments, []byte{0}, []byte(" ")))
		secrets.wantNone(e.t, "the arguments of "+who, arguments)
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue
		}
		found := secrets.in(environment)
		if bytes.Contains(environment, []byte("SPILLWAY_STAGE=confide\x00")) {
			given += len(found)
			found = slices.DeleteFunc(found, func(one string) bool { return one == name })
		}
		for _, one := range found {
			e.t.Errorf("the environment of %s has %s", who, one)
		}
	}
	if given == 0 {
		e.t.Error("no process of the stage was found that has its secret: it was looked for in vain")
	}
}

// wantNoneInFiles looks into all files of a state directory, but for those of its keys.
func wantNoneInFiles(t *testing.T, secrets planted, state string) {
	t.Helper()
	err := filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(state, path)
		if err != nil || name == "keys" && entry.IsDir() {
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() || strings.HasPrefix(name, "builds"+string(filepath.Separator)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		secrets.wantNone(t, name, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
