package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unwanted are the packages that must not be in a user's binary: it starts cold in functions, where every megabyte is
// waited for.
var unwanted = map[string]string{
	"go.temporal.io/server":                        "the embedded Temporal server",
	"github.com/temporalio/ui-server":              "Temporal's web UI",
	"github.com/nats-io/nats-server":               "the embedded NATS server",
	"modernc.org/sqlite":                           "the database of the embedded servers",
	"github.com/prometheus":                        "metrics, which the engine serves",
	"github.com/spf13/cobra":                       "flags, which only the engine has",
	"github.com/aws/aws-sdk-go-v2/service/lambda":  "the caller's side of functions",
	"github.com/aws/aws-sdk-go-v2/service/pricing": "what AWS costs",
	"github.com/aws/aws-sdk-go-v2/service/ec2":     "what AWS costs",
	"github.com/aws/aws-sdk-go-v2/config":          "credentials of people and machines: a function has its role's",
	"github.com/spillway-ml/spillway/cmd/internal": "the engine",
}

// The outcome must not be taken from go test's cache when dependencies changed: reading go.mod and go.sum makes them
// part of its key, and the sources of this module are part of it because the test binary links them.
func TestABinaryOfAUserHoldsNoServer(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"go.mod", "go.sum"} {
		if _, err := os.ReadFile(filepath.Join("..", "..", file)); err != nil {
			t.Fatal(err)
		}
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "go") {
			t.Fatal("the go command is not installed, and SPILLWAY_TEST_REQUIRE names it")
		}
		t.Skip("needs the go command")
	}
	list := exec.CommandContext(t.Context(), tool, "list", "-deps", "-f", "{{.ImportPath}}", ".")
	var problems strings.Builder
	list.Stderr = &problems
	listed, err := list.Output()
	if err != nil {
		t.Fatalf("list the packages of this binary: %v\n%s", err, problems.String())
	}
	packages := strings.Fields(string(listed))
	if len(packages) < 100 {
		t.Fatalf("only %d packages are listed: %q", len(packages), packages)
	}
	for _, name := range packages {
		for prefix, what := range unwanted {
			if name == prefix || strings.HasPrefix(name, prefix+"/") {
				t.Errorf("%s is in this binary: %s (`go list -deps -f '{{.ImportPath}} {{.Imports}}' ./cmd/digits` tells who "+
					"imports it)", name, what)
			}
		}
	}
}
