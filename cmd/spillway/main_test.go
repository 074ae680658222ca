package main_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the engine may be at most, in bytes: as make builds it, and without what only debuggers read.
const (
	mostBytes    = 235_000_000
	mostStripped = 165_000_000
)

// unwanted are modules that Temporal can use and the engine does not.
var unwanted = []string{"k8s.io/client-go", "k8s.io/api", "k8s.io/apimachinery"}

// tags are the build tags of the Makefile, as flags of the go command.
func tags(t *testing.T) []string {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^export GOFLAGS := .*(-tags=\w+)`).FindSubmatch(makefile)
	if found == nil {
		t.Fatal("the Makefile names no build tags")
	}
	return []string{string(found[1])}
}

// goCommand returns what a go command prints. Reading go.mod and go.sum makes them part of the key of go test's cache.
func goCommand(t *testing.T, args ...string) string {
	t.Helper()
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
	command := exec.CommandContext(t.Context(), tool, args...)
	var problems strings.Builder
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, problems.String())
	}
	return string(output)
}

func TestTheEngineHoldsNoKubernetes(t *testing.T) {
	t.Parallel()
	packages := strings.Fields(goCommand(t, slices.Concat([]string{"list", "-deps"}, tags(t), []string{"."})...))
	if len(packages) < 1000 {
		t.Fatalf("only %d packages are listed: %q", len(packages), packages)
	}
	for _, name := range packages {
		for _, module := range unwanted {
			if name == module || strings.HasPrefix(name, module+"/") {
				t.Errorf("%s is in the engine (`go list -deps -f '{{.ImportPath}} {{.Imports}}' ./cmd/spillway` tells who "+
					"imports it)", name)
			}
		}
	}
}

// TestTheEngineIsNoLargerThanItMayBe builds the engine as make does. It keeps what a crash is read with: the names and
// lines of a traceback, which are in every Go program, and the symbols and the DWARF that debuggers and profilers read.
func TestTheEngineIsNoLargerThanItMayBe(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("a measurement: run it with make measure")
	}
	binary := filepath.Join(t.TempDir(), "spillway")
	goCommand(t, slices.Concat([]string{"build", "-o", binary}, tags(t), []string{"."})...)
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(binary)
	if err != nil {
		t.Skipf("sections are read of ELF files only: %v", err)
	}
	defer func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, needed := range []string{".gopclntab", ".symtab", ".debug_info", ".debug_line"} {
		if file.Section(needed) == nil {
			t.Errorf("the engine has no section %s: a crash of it cannot be read", needed)
		}
	}
	stripped := info.Size()
	for _, section := range file.Sections {
		if name := section.Name; name == ".symtab" || name == ".strtab" || strings.HasPrefix(name, ".debug") {
			stripped -= int64(section.FileSize)
		}
	}
	t.Logf("the engine has %.1f MB, %.1f MB without symbols and DWARF", float64(info.Size())/1e6, float64(stripped)/1e6)
	if info.Size() > mostBytes || stripped > mostStripped {
		t.Errorf("the engine has %d bytes, %d stripped; want at most %d and %d", info.Size(), stripped, mostBytes,
			mostStripped)
	}
}
