package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
)

const tinyChain = "name: tiny\nstages:\n  a:\n    run: [\"true\"]\n"

// TestAFIFOOnTheCommandLineIsNotWaitedFor: nobody writes to it.
func TestAFIFOOnTheCommandLineIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "ff.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	good, devices := clitest.WriteGraph(t, clitest.ChainGraph(3, 0)), clitest.Write(t, "d.yaml", clitest.TwoDevices)
	for _, args := range [][]string{
		{"check", fifo},
		{"run", fifo},
		{"plan", fifo, "--devices", devices},
		{"plan", good, "--devices", fifo},
		{"run", "digits", "--input", fifo},
		{"run", "digits", "--state", t.TempDir(), "--prices", fifo},
		{"check", "/dev/zero"},
	} {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != cli.ExitUsage {
			t.Errorf("%q: exit %d", args, code)
		}
		clitest.Contains(t, fmt.Sprintf("standard error of %q", args), stderr, "it is no plain file")
	}
}

// TestWhatIsOpenAlreadyIsReadByItsNumber: as bash's <(...) names it.
func TestWhatIsOpenAlreadyIsReadByItsNumber(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close() //nolint:errcheck // it was only read
	go func() {
		_, _ = writer.WriteString(tinyChain) // what is missing makes the chain a wrong one
		_ = writer.Close()
	}()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "check", fmt.Sprintf("/dev/fd/%d", reader.Fd()))
	if code != cli.ExitOK || stdout == "" {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// TestPlaceholdersOfFlagsAreInCapitalsOrChoices: the first words between backticks of what a flag does are its
// placeholder, whatever they were meant as.
func TestPlaceholdersOfFlagsAreInCapitalsOrChoices(t *testing.T) {
	t.Parallel()
	help, err := os.ReadFile("testdata/help.golden")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ +(?:-\w, |    )(--[\w-]+)(?: ((?:\S+ )*\S+))?  +\S`)
	flags := line.FindAllStringSubmatch(string(help), -1)
	if len(flags) < 100 {
		t.Fatalf("only %d flags were found", len(flags))
	}
	right := regexp.MustCompile(`^([A-Z]+((\||\[?=)[A-Z]+\]?)?|[a-z0-9-]+(\|[\w-]+)+|N\|auto|auto\|N|0\.\.3)?$`)
	for _, flag := range flags {
		if !right.MatchString(flag[2]) {
			t.Errorf("%s takes %q, want a word in capitals, choices, or nothing", flag[1], flag[2])
		}
	}
}

func TestAnInterruptThatNobodyTakesExits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		defer close(signals)
		stopped, exited := 0, 0
		interrupted := cli.Interrupts(signals, func() { stopped++ }, func() { exited++ })
		send := func() {
			signals <- os.Interrupt
			synctest.Wait()
		}
		send()
		time.Sleep(time.Hour)
		if stopped != 1 || exited != 0 {
			t.Errorf("the first interrupt stops %d times, and exits %d times", stopped, exited)
		}
		send()
		time.Sleep(time.Second / 2) // who takes it comes a little later
		<-interrupted
		time.Sleep(time.Hour)
		if stopped != 1 || exited != 0 {
			t.Errorf("an interrupt that is taken stops %d times, and exits %d times", stopped, exited)
		}
		send()
		time.Sleep(time.Minute)
		synctest.Wait()
		if exited != 1 {
			t.Errorf("an interrupt that nobody takes exits %d times", exited)
		}
	})
}
