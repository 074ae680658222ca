// Command gpu-check shows on a machine with a GPU what of Spillway works there and how fast; `make gpu-check` bundles
// it with what it needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/cmd/internal/gpucheck"
)

// version is the commit that was bundled; the linker sets it.
var version = "unknown"

const usage = `gpu-check shows on a machine with a GPU what of Spillway works there and how fast.

It needs Python with torch 2 (1.13 does), takes at most eight minutes, uses one GPU, and writes report.md and
report.json into a directory after every step. It exits with 1 when a step failed, with 2 when it could not be run,
with 3 when none failed and there was no time for some on a GPU. A machine without a GPU gets a report, too: of what
was skipped. An interrupt ends it with a report of what was done until then, and with 130.

`

func main() {
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		caught := <-signals
		signal.Stop(signals) // a second one ends the check at once
		stop(ended{caught})
	}()
	os.Exit(run(ctx, os.Args[1:]))
}

// ended says which signal ended the check.
type ended struct{ by os.Signal }

func (e ended) Error() string { return "it was ended: " + e.by.String() }

// run does what the arguments say. The check starts itself with two words that are no options.
func run(ctx context.Context, arguments []string) int {
	var err error
	switch {
	case len(arguments) == 1 && arguments[0] == gpucheck.WatchCommand:
		err = gpucheck.Watch(ctx, os.Stdout)
	case len(arguments) == 2 && arguments[0] == gpucheck.StepCommand:
		err = gpucheck.RunStep(ctx, arguments[1])
	default:
		return check(ctx, arguments)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// errOptions says that the options are wrong, which was told.
var errOptions = errors.New("wrong options")

// options reads them; flag.ErrHelp says that help was asked for, and given.
func options(arguments []string) (gpucheck.Config, error) {
	config := gpucheck.Config{Version: version, Output: os.Stdout}
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		config.Visible = &visible
	}
	flags := flag.NewFlagSet("gpu-check", flag.ContinueOnError)
	flags.StringVar(&config.Device, "device", "", "cuda, or cpu to run the steps with small models on CPUs; by default a "+
		"GPU where there is one")
	flags.StringVar(&config.Python, "python", "", "the Python to use; by default the first that has torch")
	flags.StringVar(&config.Directory, "directory", "gpu-check-report", "where the report goes")
	only := flags.String("only", "", "steps, with commas between them: "+strings.Join(gpucheck.StepNames(), ","))
	flags.DurationVar(&config.Limit, "limit", gpucheck.DefaultLimit, "the longest that all may take")
	flags.DurationVar(&config.StepLimit, "step-limit", 0, "the longest that each step may take, besides its own limit")
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return config, err
		}
		return config, errOptions
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "%q is no option; gpu-check --help lists them\n", flags.Arg(0))
		return config, errOptions
	}
	if *only != "" {
		config.Only = strings.Split(*only, ",")
	}
	return config, nil
}

func check(ctx context.Context, arguments []string) int {
	config, err := options(arguments)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "find this program:", err)
		return 2
	}
	config.Bundle = filepath.Dir(self)
	report, err := gpucheck.Run(ctx, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	fmt.Printf("%s\n%s\n", report.Verdict(), filepath.Join(config.Directory, gpucheck.ReportText))
	var signalled ended
	switch {
	case report.Interrupted && errors.As(context.Cause(ctx), &signalled):
		if signalled.by == os.Interrupt {
			return 130 // as shells have it: 128 and the number of the signal
		}
		return 143
	case len(report.Failures()) > 0:
		return 1
	case len(report.LeftOut()) > 0:
		fmt.Printf("there was no time for %s: --only %[1]s --limit 15m does them\n", strings.Join(report.LeftOut(), ","))
		return 3
	default:
		return 0
	}
}
