package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/program"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// runProgram runs one command to its end, and shows what it prints.
func runProgram(ctx context.Context, t *tool.Tool, arguments []string, flags *runFlags) (err error) {
	var given []string
	for _, one := range []struct {
		name string
		set  bool
	}{
		{"--app", len(flags.stack.Apps) > 0},
		{"--input", flags.event.Input != ""},
		{"--cache", flags.event.Cache},
		{"--out", flags.out.Dir != ""},
		{"--" + flag.SharedOut, flags.out.Shared},
	} {
		if one.set {
			given = append(given, one.name)
		}
	}
	if err := flag.Refuse(given, "a command", "a command takes its input as arguments and files; see --file "+
		"and --output"); err != nil {
		return err
	}
	workingDirectory, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	p, err := flags.command.Prepare(arguments, t.Deps.Environment, workingDirectory)
	if err != nil {
		return err
	}
	single, err := chain.Single(p.Name)
	if err != nil {
		return &fault.UsageError{Problem: err.Error(), Hint: "give it another name with --name"}
	}
	if err := flags.command.CheckFiles(p); err != nil {
		return err
	}
	s, err := session.ConnectOrStart(ctx, t, &flags.stack, session.NoApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseForcibly(ctx, t.Deps.Interrupted)) }()
	here, err := program.Send(ctx, t, s, &flags.command, &p)
	if err != nil {
		return err
	}
	output := program.NewView(ctx, t, s, cmp.Or(p.Input.MaxAttempts, runs.DefaultMaxAttempts), flags.json)
	defer output.Close()
	model, err := program.Run(ctx, t, s, single, p, &flags.event, output)
	if err != nil {
		return err
	}
	return concludeProgram(ctx, t, s, model, p, here, flags)
}

// concludeProgram says how a command has ended, and brings back what it left.
func concludeProgram(
	ctx context.Context, t *tool.Tool, s *session.Session, model display.Model, p program.Prepared, here transfer.Local,
	flags *runFlags,
) error {
	succeeded := model.Run.State == predictor.RunSucceeded
	var left chain.StageResult
	if succeeded {
		encoded, err := s.Client.Result(ctx, model.Run.Run)
		if err != nil {
			return err
		}
		model.Run.Result = encoded
		var result chain.Result
		if err := json.Unmarshal(encoded, &result); err != nil {
			return fmt.Errorf("decode the result of run %s: %w", model.Run.Run, err)
		}
		left = result.Stages[p.Name]
	}
	if flags.json {
		if err := t.WriteJSON(display.NewReport(model, s.Stack.PoolCPUs, s.Stack.FunctionCPUs)); err != nil {
			return err
		}
	}
	t.Note("%s", display.CommandEnd(model.Run))
	if advice := display.CommandAdvice(model.Run); advice != "" {
		t.Note("%s", advice)
	}
	if !succeeded {
		if code, ended := program.ExitCode(model.Run.Error); ended && model.Run.State == predictor.RunFailed {
			return &fault.ExitError{Code: code}
		}
		return fault.ErrReported
	}
	style, _ := t.StyleOf(t.Err)
	for _, values := range left.Values {
		if text := display.Values(values, style); text != "" {
			t.Note("result: %s", text)
		}
	}
	if flags.command.InPlace {
		return nil
	}
	return program.BringBack(ctx, t, s.Client, here, left, flags.command.NoFetch)
}
