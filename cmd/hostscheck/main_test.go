//go:build linux

package hostscheck_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// here is where this suite works, and missing what the machine lacks for it; empty where it can run.
var (
	here    place
	missing string
)

// bin has what is built, and stays: what has not changed is not linked again.
var bin = func() string {
	dir, err := filepath.Abs("../../bin/hostscheck")
	if err != nil {
		panic(err)
	}
	return dir
}()

// The first thread, by which the kernel says in which namespace a process is, stays with TestMain: no other goroutine
// can take it elsewhere (host.within).
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // only here is it known to be that thread

func TestMain(m *testing.M) {
	began := time.Now()
	code, err := run(m)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	fmt.Printf("hosts: the whole took %s\n", time.Since(began).Round(time.Second))
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	missing = lacks()
	if missing == "" {
		if here, err = openPlace(); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, here.remove()) }()
	}
	return m.Run(), nil
}

// lacks says what the machine does not have.
func lacks() string {
	if os.Geteuid() != 0 {
		return "hosts are network namespaces, which only root makes"
	}
	for _, program := range []string{"ip", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			return "there is no program " + program
		}
	}
	if err := ip("netns", "add", prefix+"try"); err != nil {
		return "no network namespace can be made: " + err.Error()
	}
	if err := ip("netns", "del", prefix+"try"); err != nil {
		return "no network namespace can be removed: " + err.Error()
	}
	return ""
}

// need skips a test that cannot run here; where SPILLWAY_TEST_REQUIRE names hosts, it fails.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts hosts: takes minutes")
	}
	refuse(t, missing)
}

func refuse(t *testing.T, why string) {
	t.Helper()
	switch {
	case why == "":
	case slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "hosts"):
		t.Fatal(why + ", and SPILLWAY_TEST_REQUIRE names hosts")
	default:
		t.Skip(why)
	}
}

// buildServers builds programs of others, which are the same at every commit, into bin.
func buildServers(t *testing.T, dir string, packages ...string) {
	t.Helper()
	build(t, dir, append([]string{"-buildvcs=false"}, packages...)...)
}

// build builds programs of the module in dir into bin; flags of `go build` may stand before them.
func build(t *testing.T, dir string, packages ...string) {
	t.Helper()
	if err := os.MkdirAll(bin, 0o755); err != nil { //nolint:gosec // PostgreSQL's user passes
		t.Fatal(err)
	}
	began := time.Now()
	command := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", bin + "/"}, packages...)...)
	command.Dir = dir
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", packages, err, text)
	}
	t.Logf("built %s in %s", strings.Join(packages, " "), time.Since(began).Round(time.Second))
}
