// Command gpu-check shows on a machine with a GPU what of Spillway works there and how fast; `make gpu-check` bundles
// it with what it needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/cmd/internal/gpucheck"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// version is the commit that was bundled; the linker sets it.
var version = "unknown"

const usage = `gpu-check shows on a machine with a GPU what of Spillway works there and how fast.

It needs Python with torch 2 (1.13 does), takes at most eight minutes, uses one GPU, and writes report.md and
report.json into a directory after every step. It exits with 1 when a step failed, with 2 when it could not be run,
with 3 when none failed and there was no time for some on a GPU. A machine without a GPU gets a report, too: of what
was skipped.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx)
	stop()
	os.Exit(code)
}

func run(ctx context.Context) int {
	config := gpucheck.Config{Version: version, Output: os.Stdout}
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		config.Visible = &visible
	}
	var setup gpucheck.Setup
	flags := flag.NewFlagSet("gpu-check", flag.ContinueOnError)
	flags.StringVar(&config.Device, "device", "", "cuda, or cpu to run the steps with small models on CPUs; by default a "+
		"GPU where there is one")
	flags.StringVar(&config.Python, "python", "", "the Python to use; by default the first that has torch")
	flags.StringVar(&config.Directory, "directory", "gpu-check-report", "where the report goes")
	only := flags.String("only", "", "steps, with commas between them: "+strings.Join(gpucheck.StepNames(), ","))
	flags.DurationVar(&config.Limit, "limit", gpucheck.DefaultLimit, "the longest that all may take")
	flags.DurationVar(&config.StepLimit, "step-limit", 0, "the longest that each step may take, besides its own limit")
	// How it starts itself.
	watch := flags.Bool("watch", false, "print what the driver says of the GPUs every half second, and nothing else")
	step := flags.String("step", "", "run one step in this process; the check does")
	result := flags.String("result", "", "the file for what the step finds")
	memory := flags.Int64("memory", 0, "the bytes of the device of the step")
	flags.BoolVar(&setup.BFloat16, "bfloat16", false, "whether the device of the step computes in it")
	flags.StringVar(&setup.Report, "report", "", "what earlier steps found")
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return 2
	}
	if *only != "" {
		config.Only = strings.Split(*only, ",")
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("%q is no option; gpu-check --help lists them", flags.Arg(0))
	case *watch:
		err = gpucheck.Watch(ctx, os.Stdout)
	case *step != "":
		setup.Device, setup.Python, setup.Directory = config.Device, config.Python, config.Directory
		setup.Memory = quantity.Bytes(*memory)
		err = gpucheck.RunStep(ctx, *step, setup, *result)
	default:
		return check(ctx, config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func check(ctx context.Context, config gpucheck.Config) int {
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
	switch {
	case len(report.Failures()) > 0:
		return 1
	case len(report.LeftOut()) > 0:
		fmt.Printf("there was no time for %s: --only %[1]s --limit 15m does them\n", strings.Join(report.LeftOut(), ","))
		return 3
	default:
		return 0
	}
}
