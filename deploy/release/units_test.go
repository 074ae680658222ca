package release_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// skip skips a test whose tool is missing, unless it is required.
func skip(t *testing.T, tool string, err error) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), tool) {
		t.Fatalf("SPILLWAY_TEST_REQUIRE names %s: %v", tool, err)
	}
	t.Skipf("no %s: %v", tool, err)
}

func TestUnitsAreWhatSystemdReads(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		skip(t, "systemd", err)
	}
	units, err := filepath.Glob("../systemd/*.service")
	if err != nil || len(units) != 2 {
		t.Fatalf("units are %q, %v", units, err)
	}
	program := filepath.Join(t.TempDir(), "spillway")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	started := regexp.MustCompile(`(?m)^ExecStart=\S+/spillway (server|agent) --config `)
	for _, unit := range units {
		t.Run(filepath.Base(unit), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(unit)
			if err != nil {
				t.Fatal(err)
			}
			match := started.FindSubmatch(text)
			if match == nil || !strings.Contains(filepath.Base(unit), string(match[1])) {
				t.Fatalf("it starts %q", match)
			}
			// It says that a program is not there, which is not its affair here.
			here := filepath.Join(t.TempDir(), filepath.Base(unit))
			placed := strings.ReplaceAll(string(text), "/usr/local/bin/spillway", program)
			if err := os.WriteFile(here, []byte(placed), 0o600); err != nil {
				t.Fatal(err)
			}
			told, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", here).CombinedOutput()
			if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(told)) {
				if strings.Contains(line, filepath.Base(unit)) {
					t.Errorf("systemd: %s", line)
				}
			}
		})
	}
}
