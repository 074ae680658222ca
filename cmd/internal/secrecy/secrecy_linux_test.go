package secrecy_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

// asEngine makes this test binary a process with secrets that starts a stage: "open" as it is, "concealed" after
// Conceal.
const asEngine = "SPILLWAY_TEST_AS_ENGINE"

const canary, header = "canary-8f2a", "authorization=canary-77b1"

func TestMain(m *testing.M) {
	if how := os.Getenv(asEngine); how != "" {
		if err := engine(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// engine runs a stage that looks at its parent.
func engine(how string) error {
	if how == "concealed" {
		if err := secrecy.Conceal(); err != nil {
			return err
		}
	}
	if os.Getenv("AWS_SECRET_ACCESS_KEY") != canary || os.Getenv("OTEL_EXPORTER_OTLP_HEADERS") != header {
		return errors.New("the engine lost its own secrets")
	}
	stage := exec.Command("sh", "-c", "cat /proc/$PPID/environ; cat /proc/$PPID/maps; grep core /proc/self/limits; true")
	stage.Env = []string{"PATH=" + os.Getenv("PATH")}
	stage.Stdout, stage.Stderr = os.Stdout, os.Stderr
	if err := stage.Run(); err != nil {
		return err
	}
	if err := secrecy.Forget(); err != nil {
		return err
	}
	heir := exec.Command("env")
	heir.Stdout, heir.Stderr = os.Stdout, os.Stderr
	return heir.Run()
}

// runEngine returns what the stage of an engine finds. With a credential the engine is another user's.
func runEngine(t *testing.T, program, how string, user *syscall.Credential) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{
		asEngine + "=" + how, "PATH=" + os.Getenv("PATH"), "AWS_SECRET_ACCESS_KEY=" + canary,
		"OTEL_EXPORTER_OTLP_HEADERS=" + header, "LANG=C",
		alerts.WebhooksVariable + "=https://hooks.example/canary-31c0",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	found, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, found)
	}
	return string(found)
}

// coreless is how the kernel tells that a process leaves no core file.
var coreless = regexp.MustCompile(`Max core file size +1 +1 `)

// TestAttackAStageFindsNoSecretInItsEngine looks for the engine's secrets through /proc, as the engine's own user.
func TestAttackAStageFindsNoSecretInItsEngine(t *testing.T) {
	t.Parallel()
	path := spawntest.Program(t)
	users := map[string]*syscall.Credential{"this user": nil}
	if os.Getuid() == 0 {
		users["nobody"] = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	for name, user := range users {
		if found := runEngine(t, path, "open", user); !strings.Contains(found, canary) {
			t.Errorf("%s: the attack finds nothing in an engine that is open, so it shows nothing", name)
		}
		found := runEngine(t, path, "concealed", user)
		if strings.Contains(found, "canary") {
			t.Errorf("%s: the stage finds a secret", name)
		}
		if !coreless.MatchString(found) {
			t.Errorf("%s: the stage may leave a core file: %s", name, found)
		}
		if (user != nil || os.Getuid() != 0) && strings.Contains(found, "[stack]") {
			t.Errorf("%s: the stage may look into the engine's memory", name)
		}
	}
}
