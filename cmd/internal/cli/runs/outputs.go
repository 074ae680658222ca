package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// outputsFlags are the flags of `outputs`.
type outputsFlags struct {
	out       transfer.Out
	all, json bool
}

func outputsCommand(t *tool.Tool) *cobra.Command {
	flags := &outputsFlags{}
	command := &cobra.Command{
		Use:   "outputs RUN [FLAGS]",
		Short: "List the files that a run has left, or fetch them",
		Long: `List the files that a run has left, with their sizes; with --out, fetch them into a directory. They
are there for as long as the run's artifacts are kept (--keep-for of dev and run).

Of a chain they are the outputs of the stages that no other waits for, or with --all those of every
stage, as STAGE/PATH, or STAGE/TASK/PATH where it fans out: as "spillway run FILE.yaml --out" puts
them. Of a command they are its outputs and the files that it made or changed, as it left them. Of a
pipeline in Go they are the artifacts that its result names, each by its place in the result.

A file that is in the directory already is replaced; the others stay.

The exit code is 0 when they were listed or fetched, 1 when the run has not succeeded or its files
are gone, and 2 when there is no such run or a flag is wrong.`,
		Example: `  spillway outputs fit-dd2jk36nuyno
  spillway outputs fit-dd2jk36nuyno --out results
  spillway outputs fit-dd2jk36nuyno --all --json | jq -r '.[].path'`,
		Args:              flag.Positional("the name of a run"),
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return outputs(cmd.Context(), t, args[0], flags) },
	}
	set := command.Flags()
	set.Var(flag.Destination{Value: &flags.out.Dir}, "out", "`DIR` to fetch them into; it is made where it is not there")
	flag.AddSharedOut(set, &flags.out.Shared, "--out")
	set.BoolVar(&flags.all, "all", false, "of a chain, take the outputs of all stages, not only those of the last")
	set.BoolVar(&flags.json, "json", false, "print them as JSON")
	return command
}

func outputs(ctx context.Context, t *tool.Tool, run string, flags *outputsFlags) error {
	if flags.out.Shared && flags.out.Dir == "" {
		return &fault.UsageError{Problem: "--" + flag.SharedOut + " is for --out", Hint: "give --out DIR, or leave it out"}
	}
	if err := flags.out.Check(); err != nil {
		return err
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	view, err := s.Client.Run(ctx, run)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	if !display.Ended(view) {
		return fault.Advise(fmt.Errorf("run %s goes on: it leaves its files when it ends", run),
			"`spillway show "+run+" --follow` waits for its end")
	}
	encoded, err := s.Client.Result(ctx, run)
	if err != nil {
		return err
	}
	files, err := leftBy(s, view, encoded, flags.all)
	if err != nil {
		return fmt.Errorf("the files of run %s: %w", run, err)
	}
	if flags.out.Dir != "" && len(files) > 0 {
		if err := flags.out.Fetch(ctx, s.Client, files); err != nil {
			return err
		}
		t.Complain("%s fetched into %s\n", display.Count(len(files), "output"), flags.out.Dir)
	}
	return sayLeft(t, run, files, flags.json)
}

// leftBy finds what a run has left.
func leftBy(s *session.Session, view ledger.RunView, encoded json.RawMessage, all bool) ([]transfer.Left, error) {
	single, err := chain.Single(view.Pipeline)
	isSingle := err == nil && single.Digest() == view.Build
	stored, err := build.NewChains(s.Stack.StateDir).Get(view.App, view.Build)
	if errors.Is(err, build.ErrUnknownBuild) && !isSingle {
		return transfer.LeftInResult(encoded)
	}
	if err != nil && !isSingle {
		return nil, err
	}
	var result chain.Result
	if err := json.Unmarshal(encoded, &result); err != nil {
		return nil, fmt.Errorf("decode the result: %w", err)
	}
	if isSingle {
		return transfer.LeftByProgram(result.Stages[view.Pipeline]), nil
	}
	return transfer.LeftByChain(result, stored.Steps(), all), nil
}

// sayLeft lists what a run has left.
func sayLeft(t *tool.Tool, run string, files []transfer.Left, asJSON bool) error {
	if asJSON {
		if files == nil {
			files = []transfer.Left{}
		}
		return t.WriteJSON(files)
	}
	if len(files) == 0 {
		t.Say("run %s has left no files; `spillway show %s --json` has its result\n", run, run)
		return nil
	}
	table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	display.Printf(table, "PATH\tSIZE\tDIGEST\n")
	for _, file := range files {
		name := display.Name(file.Name)
		if file.Tree {
			name += "/"
		}
		display.Printf(table, "%s\t%s\t%s\n", name, quantity.Bytes(file.Bytes), file.Digest[:min(len(file.Digest), 12)])
	}
	return table.Flush()
}
