// Command spillway-eval replays recorded data against the predictor and prints its figures beside those of others.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// verb is one evaluation.
type verb struct {
	name, summary string
	// explain is printed by VERB --help, above the flags.
	explain string
	// simulated says that it needs no recorded data.
	simulated bool
	// define adds the verb's own flags and returns what runs once they are parsed.
	define func(*flag.FlagSet) func(context.Context, common) error
}

// common is what every verb is given.
type common struct {
	// data is the folder that holds the sets, one folder each.
	data string
	// report takes the figures.
	report *report
	// notes takes what a person should know besides, such as a set that is absent.
	notes io.Writer
}

// verbs returns all verbs in the order of their names.
func verbs() []verb {
	return []verb{
		curves(), deadlines(), forecasts(), partitions(), runs(), sizing(), spilling(), tasks(), tuningJobs(),
	}
}

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // as shells say it: 128 and the number of SIGINT
)

func run(ctx context.Context, args []string, out, notes io.Writer) int {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		overview(out)
		if len(args) == 0 {
			return exitUsage
		}
		return exitDone
	}
	all := verbs()
	i := slices.IndexFunc(all, func(v verb) bool { return v.name == args[0] })
	if i < 0 {
		_, _ = fmt.Fprintf(notes, "spillway-eval: no verb %q; `spillway-eval help` lists them\n", args[0])
		return exitUsage
	}
	err := execute(ctx, all[i], args[1:], out, notes)
	var misuse usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitDone
	case errors.As(err, &misuse):
		_, _ = fmt.Fprintf(notes, "spillway-eval %s: %v; `spillway-eval %s --help` tells more\n", args[0], err, args[0])
		return exitUsage
	case ctx.Err() != nil:
		_, _ = fmt.Fprintf(notes, "spillway-eval %s: interrupted; what was printed so far stands\n", args[0])
		return exitInterrupted
	default:
		_, _ = fmt.Fprintf(notes, "spillway-eval %s: %v\n", args[0], err)
		return exitFailed
	}
}

// usageError is about the command line.
type usageError string

func (e usageError) Error() string { return string(e) }

func execute(ctx context.Context, v verb, args []string, out, notes io.Writer) error {
	flags := flag.NewFlagSet(v.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	data := ""
	if !v.simulated {
		flags.StringVar(&data, "data", "", "`folder` that holds the sets of recorded data, one folder each")
	}
	asJSON := flags.Bool("json", false, "print one JSON object a line instead of a table")
	do := v.define(flags)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		given := " --data DIR"
		if v.simulated {
			given = ""
		}
		_, _ = fmt.Fprintf(out, "spillway-eval %s%s [flags]: %s\n\n%s\n\nFlags:\n", v.name, given, v.summary,
			strings.TrimSpace(v.explain))
		_, _ = io.WriteString(out, described(flags))
		return err
	case err != nil:
		return usageError(err.Error())
	case flags.NArg() > 0:
		return usageError(fmt.Sprintf("unexpected %q", flags.Arg(0)))
	case data == "" && !v.simulated:
		return usageError("--data is missing: name the folder that holds the sets")
	}
	if err := present(data); !v.simulated && err != nil {
		return err
	}
	into := &report{json: *asJSON, out: out}
	if err := do(ctx, common{data: data, report: into, notes: notes}); err != nil {
		return err
	}
	return into.close()
}

// present says what is wrong with the folder that --data names.
func present(data string) error {
	found, err := os.Stat(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--data %s: there is no such folder", data)
	case err != nil:
		return fmt.Errorf("--data: %w", err)
	case !found.IsDir():
		return fmt.Errorf("--data %s is a file: name the folder that holds the sets, one folder each", data)
	default:
		return nil
	}
}

// described lists flags as they are written everywhere else, with two dashes.
func described(flags *flag.FlagSet) string {
	var text strings.Builder
	flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		line := "  --" + f.Name
		if value != "" {
			line += " " + strings.ToUpper(value)
		}
		text.WriteString(line + "\n        " + strings.ReplaceAll(usage, "\n", "\n        "))
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			text.WriteString(" (default " + f.DefValue + ")")
		}
		text.WriteString("\n")
	})
	return text.String()
}

func overview(out io.Writer) {
	_, _ = fmt.Fprint(out, "spillway-eval replays recorded and simulated data against Spillway's predictor and prints "+
		"its figures beside those of others.\n\n"+
		"Usage: spillway-eval VERB [--data DIR] [--json]\n\nVerbs:\n")
	for _, v := range verbs() {
		_, _ = fmt.Fprintf(out, "  %-10s %s\n", v.name, v.summary)
	}
	_, _ = fmt.Fprint(out, "\nExit code: 0 when it is done, 1 when data is broken or absent, 2 when the command line "+
		"is wrong, 130 when it was interrupted.\n")
}
