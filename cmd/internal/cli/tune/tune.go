// Package tune has the command that searches the values of its parameters with which a program does best.
package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/program"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command { return []*cobra.Command{tuneCommand(t)} }

// flags configure `tune`.
type flags struct {
	space     []string
	trials    int
	most      float64
	least     float64
	eta       int
	algorithm string
	seed      uint64
	objective string
	maximise  bool
	time      time.Duration
	money     quantity.Money

	event   flag.Event
	stack   flag.Stack
	command program.Flags
	json    bool
}

// usualTrials is how many trials a tuning has unless it is said: three rungs of thirds, and one that had all.
const usualTrials = 27

func tuneCommand(t *tool.Tool) *cobra.Command {
	f := &flags{trials: usualTrials, objective: "loss"}
	command := &cobra.Command{
		Use:   "tune --space NAME=RANGE... [FLAGS] -- PROGRAM ARGS...",
		Short: "Search the values with which a command does best, in trials of which the best go on",
		Long: `Run one command again and again with other values of its parameters, and find those with which it
does best. The command stands after --, in any language, and is sent, sized and run as run does it.
What it is given stands in braces: {NAME} of each --space, and {to}, how far the trial trains, in
epochs or whatever --most counts in. {from} is from where, {trial} and {rung} are numbers from 0,
and {{ is a brace.

  --space lr=log:1e-4..1e-1                      a number, by equal factors
  --space dropout=0..0.5                         a number: an end has a point or an exponent
  --space layers=2..8                            a whole number; log:2..64 by equal factors
  --space optimizer=adam|sgd                     one of these
  --space 'momentum=0.5..0.99 if optimizer=sgd'  there only where it holds; else the argument is
                                                 left out, and the option before it

The program tells its objective as a result or with its progress, one JSON object a line, in the
file that $SPILLWAY_REPORT names: {"result": {"loss": 0.2}} or {"progress": 3, "metrics": {"loss":
0.2}}. A trial is tried with little at first, and goes on where it is among the best: by asha as
soon as it is, by halving, hyperband and bohb once all have come as far. It goes on from its last
{"checkpoint": "FILE"}, at $SPILLWAY_RESUME, on whatever host; without one it begins anew, and
{from} is 0. A command without {to} is run whole by every trial, with values drawn at random.

A loss that is no number is a result: the trial diverged. Trials that fail are told and left out. By
asha a trial does not go on either whose curve, where the objective is among the metrics of its
progress, ends worse than another stands already. What the best trial made or changed is brought
back. --time and --money bound the tuning, --deadline and --budget the whole run: what was best so
far is then the result. Ctrl-C cancels it; retry then goes on from the jobs that were done.

The exit code is 0 when a best trial was found, 1 when there is none or it was cancelled, and 2 when
the space, the command or a flag is wrong: nothing is started then.`,
		Example: `  spillway tune --space lr=log:1e-4..1e-1 -- python train.py --lr {lr}
  spillway tune --space lr=log:1e-4..1e-1 --most 27 -- python train.py --lr {lr} --epochs {to}
  spillway tune --space 'opt=adam|sgd' --space 'm=0.5..0.99 if opt=sgd' -- ./fit --opt {opt} --m {m}
  spillway tune --space depth=1..12 --objective accuracy --maximise --json -- ./fit --depth {depth}
  spillway tune --space lr=0..1.0 --trials 81 --time 10m --money 0.50 -- python train.py {lr}`,
		Args: arguments,
		RunE: func(cmd *cobra.Command, args []string) error { return tune(cmd.Context(), t, args, f) },
	}
	set := command.Flags()
	f.addSearch(set)
	set.BoolVar(&f.json, "json", false, "write one JSON object to standard output at the end, and all else to "+
		"standard error")
	set.BoolVar(&t.Quiet, "quiet", false, "show no progress")
	f.event.AddID(set)
	f.event.AddGoal(set)
	f.command.Add(set)
	f.stack.Add(set)
	return command
}

// addSearch adds the flags that say what is searched, and how.
func (f *flags) addSearch(set *pflag.FlagSet) {
	set.StringArrayVar(&f.space, "space", nil, "`NAME=RANGE` of a parameter, once for each")
	set.Var(flag.Count{Value: &f.trials, Least: 1}, "trials", "how many trials are begun at most")
	set.Var(flag.Ratio(&f.most), "most", "how much the best trials get in all: an `AMOUNT` such as 27 epochs, in "+
		"what {to} counts in")
	set.Var(flag.Ratio(&f.least), "least",
		"how much every trial gets: an `AMOUNT` (default --most over --eta three times, at least 1 where that is whole)")
	set.Var(flag.Count{Value: &f.eta, Least: 2}, "eta",
		"how many times as much the next rung is, and one in how many goes on there (default 3)")
	set.Var(flag.Choice{Value: &f.algorithm, Of: []string{
		string(search.ASHA), string(search.Random), string(search.Halving), string(search.Hyperband), string(search.BOHB),
	}}, "algorithm", "how it is searched (default asha; random where the command has no {to})")
	set.Var(flag.Seed{Value: &f.seed}, "seed", "by which values are drawn: the same ones lead to the same trials "+
		"(default 0)")
	set.StringVar(&f.objective, "objective", f.objective, "`NAME` of the value that is made small")
	set.BoolVar(&f.maximise, "maximise", false, "make it large instead, as of an accuracy")
	set.Var(flag.Span{Value: &f.time}, "time", "how long the trials may take together, such as 10m (default no limit)")
	set.Var(flag.Amount(&f.money), "money", "what the trials may cost together, in US dollars (default no limit)")
}

// arguments accepts a command after --.
func arguments(cmd *cobra.Command, args []string) error {
	hint := "usage: spillway " + cmd.Use
	switch dash := cmd.ArgsLenAtDash(); {
	case dash > 0:
		return &fault.UsageError{Problem: fmt.Sprintf("%q stands before --: only flags do", args[0]), Hint: hint}
	case dash == 0 && (len(args) == 0 || args[0] == ""):
		return &fault.UsageError{Problem: "there is no program after --", Hint: hint}
	case dash < 0 && len(args) > 0:
		return &fault.UsageError{
			Problem: fmt.Sprintf("it does not take the argument %q", args[0]),
			Hint:    "a command stands after --: spillway tune --space NAME=RANGE -- " + flag.ShellWords(args...),
		}
	case dash < 0:
		return &fault.UsageError{Problem: "it needs a command after --", Hint: hint}
	}
	return nil
}

// tuning reads what the flags say of the search.
func (f *flags) tuning() (*chain.Tuning, error) {
	if len(f.space) == 0 {
		return nil, &fault.UsageError{
			Problem: "there is nothing to search", Hint: "say what: --space lr=log:1e-4..1e-1",
		}
	}
	tuning := &chain.Tuning{Objective: f.objective, Time: f.time, Money: f.money, Options: search.Options{
		Algorithm: search.Algorithm(f.algorithm), Trials: f.trials, Least: f.least, Most: f.most, Eta: f.eta,
		Maximise: f.maximise, Seed: f.seed,
	}}
	for _, text := range f.space {
		p, err := search.Parse(text)
		if err != nil {
			return nil, &fault.UsageError{
				Problem: "--space: " + err.Error(), Hint: "`spillway tune --help` shows how ranges are written",
			}
		}
		tuning.Space = append(tuning.Space, p)
	}
	if tuning.Space.Check() == nil && tuning.Space.Size() == 1 && f.trials > 1 {
		return nil, &fault.UsageError{
			Problem: "there is nothing to search: each parameter has one value, and all its trials would be the same",
			Hint:    "give one of them a range, such as --space lr=log:1e-4..1e-1",
		}
	}
	return tuning, nil
}

// prepare reads the command and how it is tuned, and refuses whatever is wrong of it.
func (f *flags) prepare(arguments []string, t *tool.Tool) (p program.Prepared, single chain.Chain, err error) {
	tuning, err := f.tuning()
	if err != nil {
		return p, single, err
	}
	if f.command.InPlace {
		return p, single, &fault.UsageError{
			Problem: "--in-place: trials run at the same time, and would write over each other's files",
			Hint:    "leave it out: each trial gets a copy of the directory",
		}
	}
	workingDirectory, err := os.Getwd()
	if err != nil {
		return p, single, fmt.Errorf("find the working directory: %w", err)
	}
	if p, err = f.command.Prepare(arguments, t.Deps.Environment, workingDirectory); err != nil {
		return p, single, err
	}
	used, err := runs.PlaceholdersOf(p.Input.Command)
	if err == nil {
		err = f.checkReach(used)
	}
	if err != nil {
		return p, single, refused(err)
	}
	if f.most == 0 { // the command has no {to}: each trial is one run of it
		tuning.Options.Most = max(1, f.least)
	}
	p.Input.Tuning = tuning
	if err := p.Input.Validate(); err != nil {
		return p, single, refused(err)
	}
	if single, err = chain.Single(p.Name); err != nil {
		return p, single, &fault.UsageError{Problem: err.Error(), Hint: "give it another name with --name"}
	}
	return p, single, f.command.CheckFiles(p)
}

// checkReach refuses a command that is told how far to train where nobody says how far that is, and one that is not
// told where somebody does.
func (f *flags) checkReach(used []string) error {
	told := slices.Contains(used, "to")
	switch {
	case told && f.most == 0:
		return &fault.UsageError{
			Problem: "{to} is how far a trial trains, and nothing says how far that is at most",
			Hint:    "say it in what the program counts in, such as --most 27 for 27 epochs",
		}
	case !told && f.most != 0:
		return &fault.UsageError{
			Problem: "--most is how far {to} goes, and the command has no {to}: every trial would run the whole of it",
			Hint:    "write {to} where the command takes it, such as --epochs {to}, or leave --most out",
		}
	}
	return nil
}

// refused is an error of the request, one line of it.
func refused(err error) error {
	if fault.IsUsage(err) {
		return err
	}
	return &fault.UsageError{
		Problem: strings.ReplaceAll(err.Error(), "\n", "; "),
		Hint:    "`spillway tune --help` shows how spaces and commands are written",
	}
}

func tune(ctx context.Context, t *tool.Tool, arguments []string, f *flags) (err error) {
	p, single, err := f.prepare(arguments, t)
	if err != nil {
		return err
	}
	if size := p.Input.Tuning.Space.Size(); size < float64(f.trials) {
		t.Note("the space has %.0f configurations at most, and %s are drawn from it: some are the same",
			size, display.Count(f.trials, "trial"))
	}
	s, err := session.ConnectOrStart(ctx, t, &f.stack, session.NoApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseForcibly(ctx, t.Deps.Interrupted)) }()
	here, err := program.Send(ctx, t, s, &f.command, &p)
	if err != nil {
		return err
	}
	shown := newView(ctx, t, s, follow.Output(t, f.json))
	defer shown.close()
	model, err := program.Run(ctx, t, s, single, p, &f.event, shown)
	if err != nil {
		return err
	}
	return conclude(context.WithoutCancel(ctx), t, s, model, p, here, f)
}

// conclude says what a tuning has found, and brings back what its best trial left.
func conclude(
	ctx context.Context, t *tool.Tool, s *session.Session, model display.Model, p program.Prepared, here transfer.Local,
	f *flags,
) error {
	tunings, err := s.Client.Tunings(ctx, model.Run.Run)
	if err != nil { // what it has found is in its result, too
		t.Complain("spillway: how its trials went is not known: %v\n", err)
	}
	var result chain.Result
	succeeded := model.Run.State == predictor.RunSucceeded
	if succeeded {
		encoded, err := s.Client.Result(ctx, model.Run.Run)
		if err != nil {
			return err
		}
		model.Run.Result = encoded
		if err := json.Unmarshal(encoded, &result); err != nil {
			return fmt.Errorf("decode the result of run %s: %w", model.Run.Run, err)
		}
	}
	if f.json {
		report := display.NewReport(model, s.Stack.PoolCPUs, s.Stack.FunctionCPUs)
		report.Tunings = tunings
		if err := t.WriteJSON(report); err != nil {
			return err
		}
	} else {
		style, _ := t.StyleOf(t.Out)
		for _, tuning := range tunings {
			for _, line := range display.Tuning(tuning, f.again(p.Input.Best(tuning)), style) {
				t.Say("%s\n", display.Own(line))
			}
		}
	}
	more := fmt.Sprintf("`spillway show %s` lists its trials", model.Run.Run)
	if !succeeded {
		more += fmt.Sprintf(", and `spillway retry %s` goes on from the jobs that were done", model.Run.Run)
	}
	t.Note("%s; %s", display.CommandEnd(model.Run), more)
	if advice := display.CommandAdvice(model.Run); advice != "" {
		t.Note("%s", advice)
	}
	if !succeeded {
		return fault.ErrReported
	}
	return program.BringBack(ctx, t, s.Client, here, result.Stages[p.Name], f.command.NoFetch)
}

// again is the command line that runs the best configuration alone, as the trials ran; empty where there is none.
func (f *flags) again(best wire.Command) string {
	if best.Arguments == nil {
		return ""
	}
	f.fillVariables(best.Environment)
	line := "spillway run "
	if given := flag.Typed(f.command.Set); given != "" {
		line += display.Clean(given) + " "
	}
	return line + "-- " + flag.ShellWords(best.Arguments...)
}

// fillVariables puts what the best trial was given in the place of what --env gives to all; a variable that it was not
// given is left out.
func (f *flags) fillVariables(given map[string]string) {
	variables, many := f.command.Set.Lookup("env").Value.(pflag.SliceValue)
	if !many {
		return
	}
	var filled []string
	for _, text := range variables.GetSlice() {
		name, _, valued := strings.Cut(text, "=")
		value, has := given[name]
		switch {
		case !valued: // it is that of whoever runs it
			filled = append(filled, text)
		case has:
			filled = append(filled, name+"="+value)
		}
	}
	_ = variables.Replace(filled) // of texts no replacing fails
}
