package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// isChainFile reports whether an argument of `run` names a file and not a pipeline.
func isChainFile(argument string) bool {
	extension := strings.ToLower(filepath.Ext(argument))
	return extension == ".yaml" || extension == ".yml"
}

func (t *tool) checkCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "check FILE.yaml [FLAGS]",
		Short: "Say all that is wrong with a chain of commands, or in which order its stages run",
		Long: `Read the file of a chain and say everything that is wrong with it, with line and column; the files
and directories that it names must be there. Without a mistake, its stages are listed in an order in
which they can run, with those that each waits for. Nothing is started.

The exit code is 0 without a mistake, and 2 with one.`,
		Example: `  spillway check churn.yaml
  spillway check churn.yaml --json | jq -r '.stages[].stage'`,
		Args: positional("the file of a chain"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := t.readChain(args[0])
			if err != nil {
				return err
			}
			steps := c.Steps()
			if asJSON {
				return t.writeJSON(checked{Chain: c.Name(), Stages: steps})
			}
			t.say("chain %s: %s\n", c.Name(), counted(len(steps), "stage"))
			for _, step := range steps {
				t.say("  %s\n", step)
			}
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the chain and its stages as JSON")
	return command
}

// checked is the JSON of a chain without a mistake.
type checked struct {
	Chain  string       `json:"chain"`
	Stages []chain.Step `json:"stages"`
}

// readChain reads a chain's file and prints all that is wrong with it.
func (t *tool) readChain(file string) (chain.Chain, error) {
	text, err := readNamed(file, mostYAML)
	if err != nil {
		return chain.Chain{}, &usage{problem: fmt.Sprintf("read %s: %v", file, unwrapPath(err)), hint: "give the file of a chain; a pipeline's name has no .yaml"}
	}
	directory := os.DirFS(filepath.Dir(file))
	c, err := chain.Parse(file, text, chain.Checks{
		Stat: func(path string) (fs.FileInfo, error) { return fs.Stat(directory, path) }, Binding: trigger.Check,
	})
	if wrong, ok := errors.AsType[*chain.Error](err); ok {
		for _, problem := range wrong.Problems {
			t.complain("%s\n", problem)
		}
		return chain.Chain{}, &usage{problem: fmt.Sprintf("%s has %s", file, counted(len(wrong.Problems), "mistake")), hint: "correct the file; `spillway check " + file + "` reads it again"}
	}
	return c, err
}

func counted(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

func (t *tool) runChain(ctx context.Context, file string, flags *runFlags) (err error) {
	given := changed(flags.command.set)
	if len(flags.stack.apps) > 0 {
		given = append(given, "--app")
	}
	if err := refuse(given, "a chain", "its file says it, stage by stage"); err != nil {
		return err
	}
	c, err := t.readChain(file)
	if err != nil {
		return err
	}
	input, err := readInput(flags.event.input, t.deps.Stdin)
	if err != nil {
		return err
	}
	if flags.out != "" { // it is made when there is something to put into it
		if err := safefile.Check(flags.out, flags.sharedOut); err != nil {
			return refusedOut("--out", flags.out, err)
		}
	}
	session, err := t.connectOrStart(ctx, &flags.stack, noApps)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.closeForcibly(ctx, session)) }()
	if c, err = t.pack(ctx, session, c, filepath.Dir(file)); err != nil {
		return err
	}
	if _, err := session.client.RegisterChain(ctx, c); err != nil {
		return fmt.Errorf("serve chain %s: %w", c.Name(), err)
	}
	published, err := session.client.Publish(ctx, flags.event.event(c.Name(), input))
	if err != nil {
		return err
	}
	viewer := t.newViewer(session, t.viewOutput(flags.json))
	model, err := t.followToEnd(ctx, session, published, viewer, leave)
	if err != nil {
		return err
	}
	return t.concludeChain(ctx, session, model, c.Steps(), flags, viewer)
}

// noApps is for stacks that need no app of ours.
func noApps(context.Context, *web.Stack) ([]build.App, error) { return nil, nil }

// pack sends all that hosts need of a chain's directory.
func (t *tool) pack(ctx context.Context, session *session, c chain.Chain, directory string) (chain.Chain, error) {
	packed := map[string]chain.Packed{}
	for _, one := range c.Files() {
		sent, err := t.send(ctx, session.client, packing{path: filepath.Join(directory, filepath.FromSlash(one.Path)), code: one.Use == "code"})
		if err != nil {
			return c, fmt.Errorf("%s of chain %s: %w", one.Use, c.Name(), err)
		}
		packed[one.Use] = sent
	}
	return c.With(packed)
}

// serveStoredChain serves the newest stored chain of this name, if there is one.
func (t *tool) serveStoredChain(ctx context.Context, session *session, name string) error {
	stored, err := build.NewChains(session.stack.StateDir).Newest()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(stored, func(c build.StoredChain) bool { return c.Name() == name })
	if i < 0 {
		return nil
	}
	if _, err := session.client.RegisterChain(ctx, stored[i].Chain); err != nil {
		return fmt.Errorf("serve chain %s: %w", name, err)
	}
	session.stack, err = session.client.Stack(ctx)
	return err
}

// concludeChain prints what is left of a run of a chain and fetches what was asked for.
func (t *tool) concludeChain(
	ctx context.Context, session *session, model display.Model, steps []chain.Step, flags *runFlags, viewer *viewer,
) (err error) {
	if model.Run.State != predictor.RunSucceeded {
		return t.conclude(model, session.stack, flags.json, viewer)
	}
	encoded, err := session.client.Result(ctx, model.Run.Run)
	if err != nil {
		return err
	}
	model.Run.Result = encoded // the ledger keeps only small ones
	var result chain.Result
	if err := json.Unmarshal(encoded, &result); err != nil {
		return fmt.Errorf("decode the result of run %s: %w", model.Run.Run, err)
	}
	if err := t.conclude(model, session.stack, flags.json, viewer); err != nil {
		return err
	}
	if !flags.json {
		style, _ := t.styleOf(t.out)
		for _, line := range display.Outputs(result, stagesOf(steps), style) {
			t.say("%s\n", own(line))
		}
	}
	if flags.out == "" {
		return nil
	}
	out, err := safefile.Open(flags.out, 0o755, flags.sharedOut)
	if err != nil {
		return refusedOut("--out", flags.out, err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	fetched, err := download(ctx, session, result, steps, out)
	if err == nil && !t.quiet {
		t.complain("%s of the last stages in %s\n", counted(fetched, "output"), flags.out)
	}
	return err
}

// download fetches the outputs of the stages that no other waits for, and returns how many.
func download(
	ctx context.Context, session *session, result chain.Result, steps []chain.Step, out *os.Root,
) (fetched int, err error) {
	for _, step := range steps {
		if !step.Last {
			continue
		}
		for _, files := range result.Stages[step.Stage].Outputs {
			for task, file := range files {
				if file.Artifact.Digest == "" {
					continue // an optional one that was left out
				}
				where := step.Stage
				if len(step.Over) > 0 {
					where = filepath.Join(where, strconv.Itoa(task))
				}
				name := filepath.Join(where, filepath.FromSlash(file.Path))
				if err := receive(ctx, session.client, out, name, file.Artifact, file.Tree); err != nil {
					return fetched, fmt.Errorf("fetch %s of stage %s: %w", display.Name(file.Path), step.Stage, err)
				}
				fetched++
			}
		}
	}
	return fetched, nil
}

// stagesOf are the names of the stages, in the order of steps.
func stagesOf(steps []chain.Step) []string {
	names := make([]string, len(steps))
	for i, step := range steps {
		names[i] = step.Stage
	}
	return names
}
