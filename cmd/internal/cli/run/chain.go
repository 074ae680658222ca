package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/program"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// isChainFile reports whether an argument of `run` names a file and not a pipeline.
func isChainFile(argument string) bool {
	extension := strings.ToLower(filepath.Ext(argument))
	return extension == ".yaml" || extension == ".yml"
}

func runChain(ctx context.Context, t *tool.Tool, file string, flags *runFlags) (err error) {
	given := flag.Changed(flags.command.Set)
	if len(flags.stack.Apps) > 0 {
		given = append(given, "--app")
	}
	if err := flag.Refuse(given, "a chain", "its file says it, stage by stage"); err != nil {
		return err
	}
	c, err := readChain(t, file)
	if err != nil {
		return err
	}
	input, err := flag.ReadInput(flags.event.Input, t.Deps.Stdin)
	if err != nil {
		return err
	}
	if err := flags.out.Check(); err != nil { // it is made when there is something to put into it
		return err
	}
	s, err := session.ConnectOrStart(ctx, t, &flags.stack, session.NoApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseForcibly(ctx, t.Deps.Interrupted)) }()
	for _, stage := range c.App().Stages {
		if err := program.AwaitGPUs(ctx, t, s, "gpu of stage "+stage.Name, stage.Declared); err != nil {
			return err
		}
	}
	if c, err = pack(ctx, t, s, c, filepath.Dir(file)); err != nil {
		return err
	}
	if _, err := s.Client.RegisterChain(ctx, c); err != nil {
		return fmt.Errorf("serve chain %s: %w", c.Name(), err)
	}
	published, err := s.Client.Publish(ctx, flags.event.Event(c.Name(), input))
	if err != nil {
		return err
	}
	viewer := follow.NewViewer(t, s, follow.Output(t, flags.json))
	model, err := follow.ToEnd(ctx, t, s, published, viewer, follow.Leave)
	if err != nil {
		return err
	}
	return concludeChain(ctx, t, s, model, c.Steps(), flags, viewer)
}

// pack sends all that hosts need of a chain's directory.
func pack(ctx context.Context, t *tool.Tool, s *session.Session, c chain.Chain, directory string) (chain.Chain, error) {
	packed := map[string]chain.Packed{}
	for _, one := range c.Files() {
		sent, err := transfer.Send(ctx, t, s.Client, transfer.Packing{
			Path: filepath.Join(directory, filepath.FromSlash(one.Path)), Code: one.Use == "code", State: s.Stack.StateDir,
		})
		if err != nil {
			return c, fmt.Errorf("%s of chain %s: %w", one.Use, c.Name(), err)
		}
		packed[one.Use] = sent
		if one.Use == "code" {
			c = c.Reading(program.Reader(filepath.Join(directory, filepath.FromSlash(one.Path))))
		}
	}
	return c.With(packed)
}

// serveStoredChain serves the newest stored chain of this name, if there is one.
func serveStoredChain(ctx context.Context, s *session.Session, name string) error {
	stored, err := build.NewChains(s.Stack.StateDir).Newest()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(stored, func(c build.StoredChain) bool { return c.Name() == name })
	if i < 0 {
		return nil
	}
	if _, err := s.Client.RegisterChain(ctx, stored[i].Chain); err != nil {
		return fmt.Errorf("serve chain %s: %w", name, err)
	}
	s.Stack, err = s.Client.Stack(ctx)
	return err
}

// concludeChain prints what is left of a run of a chain and fetches what was asked for.
func concludeChain(
	ctx context.Context, t *tool.Tool, s *session.Session, model display.Model, steps []chain.Step, flags *runFlags,
	viewer *follow.Viewer,
) (err error) {
	if model.Run.State != predictor.RunSucceeded {
		return follow.Conclude(t, model, s.Stack, flags.json, viewer)
	}
	encoded, err := s.Client.Result(ctx, model.Run.Run)
	if err != nil {
		return err
	}
	model.Run.Result = encoded // the ledger keeps only small ones
	var result chain.Result
	if err := json.Unmarshal(encoded, &result); err != nil {
		return fmt.Errorf("decode the result of run %s: %w", model.Run.Run, err)
	}
	if err := follow.Conclude(t, model, s.Stack, flags.json, viewer); err != nil {
		return err
	}
	if !flags.json {
		style, _ := t.StyleOf(t.Out)
		for _, line := range display.Outputs(result, stagesOf(steps), style) {
			t.Say("%s\n", display.Own(line))
		}
	}
	return fetchLeft(ctx, t, s, model.Run.Run, transfer.LeftByChain(result, steps, false), flags)
}

// fetchLeft puts what a run has left where it was asked for.
func fetchLeft(
	ctx context.Context, t *tool.Tool, s *session.Session, run string, files []transfer.Left, flags *runFlags,
) error {
	if flags.out.Dir == "" {
		return nil
	}
	if err := flags.out.Fetch(ctx, s.Client, files); err != nil {
		hint := "`spillway outputs " + run + " --out DIR` fetches the rest"
		if advice := fault.AdviceOf(err); advice != "" {
			hint = advice + "; " + hint
		}
		// It is not wrapped: the run has succeeded, so that an error of the directory is none of usage any more.
		missed := fmt.Errorf("run %s has succeeded, but not all that it left was fetched: %s", run, err.Error())
		return fault.Advise(missed, hint)
	}
	if !t.Quiet {
		t.Complain("%s in %s\n", display.Count(len(files), "output"), flags.out.Dir)
	}
	return nil
}

// stagesOf are the names of the stages, in the order of steps.
func stagesOf(steps []chain.Step) []string {
	names := make([]string, len(steps))
	for i, step := range steps {
		names[i] = step.Stage
	}
	return names
}
