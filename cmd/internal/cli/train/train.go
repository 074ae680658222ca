// Package train has the command train, which trains a model that is split over devices.
package train

import (
	"cmp"
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		trainCommand(t),
	}
}

func trainCommand(t *tool.Tool) *cobra.Command {
	flags := &trainFlags{}
	command := &cobra.Command{
		Use:   "train MODEL.py:FUNCTION --data DATA [FLAGS]",
		Short: "Train a model that is split into parts, one on each device",
		Long: `Train a PyTorch model. It is run once to be measured, split into parts that fit their devices, and
trained by a pipeline schedule; the losses are those of the unsplit model. Shown are the plan and
why, then the progress, and at the end what was predicted beside what came. The result is a
state_dict that plain PyTorch loads, model.pt in the directory --out, and the same as
model.safetensors, for which nobody needs pickle; the last checkpoint is beside them.

FUNCTION of MODEL.py returns a torch.nn.Module. The file may have more functions, all optional:

  data(path)                what to train on: a pair of tensors (inputs, targets), a Dataset, or
                            batches. Without it --data is a .npz, .pt or .csv file.
  loss(output, target)      the mean over the samples; without it cross entropy for targets that
                            are whole numbers, and the mean squared error for others
  optimizer(parameters)     a torch.optim.Optimizer; --optimizer wins; without both Adam at 0.001.
                            optimizer(named_parameters) gets (name, parameter) each, for groups.
  scheduler(optimizer)      changes the learning rate after each step; {"scheduler": one,
                            "interval": "epoch"} does after each epoch, and a ReduceLROnPlateau by
                            validation_loss, or by its "monitor". scheduler(optimizer, total_steps)
                            gets the number of steps.
  validation(path)          data that the model is not trained on, in any form of data(path): it is
                            looked at every --eval-every steps, in evaluation mode. The path is that
                            of --validation-data, without that the one of --data.
  metrics(output, target)   a dict of numbers for validation data, means over the samples
  example_inputs(batch)     what the model is measured with, instead of the first samples
  blocks(model)             a list of (name, module) that run in turn, for a model whose path
                            depends on the values of tensors, which cannot be traced

With --hosts the training has room on several hosts of the pool at once, or on none, and its ranks
exchange tensors over their network: those whose agents run with --training-address take part. The
losses are those that as many replicas and parts have on one host. When a host is lost, the attempt
ends on all of them and goes on from its last checkpoint, with auto on those that are left.

With validation data the model of the best step is kept beside that of the last, by
validation_loss or by --best, as model-best.pt; --result best makes it the result. --patience ends
a training early.

The training is a run of the engine, as "spillway run -- PROGRAM" is: the directory of MODEL.py and
DATA are sent along, sizes are learnt, and an attempt that is lost goes on from its last checkpoint.
The stack that runs on the state directory is used; without one, a stack is started for the
occasion. With --here there is no engine; so it is in a stage of a chain, which is a run already:

  train:
    run: [spillway, train, "model.py:build", --data, text, --partitions, 2, --out, trained]
    outputs: {trained: trained}

Ctrl-C stops the training after the step that is going on, makes a last checkpoint and says how to
go on from it; a second one stops at once. The exit code is 0 when the model is trained, 1 when the
training failed or was stopped, and 2 when a flag or a file is wrong.`,
		Example: `  spillway train model.py:build --data train.npz --epochs 3
  spillway train model.py:build --data text --partitions 2 --micro-batches 4 --steps 400
  spillway train model.py:build --data text --hosts 2 --steps 400
  spillway train model.py:build --data text --best max:accuracy --patience 3 --result best
  spillway train model.py:build --data text --resume model-trained/checkpoints/step-000000400
  spillway train model.py:build --data train.npz --here --optimizer adamw --learning-rate 0.0003
  spillway train model.py:build --data train.npz --devices devices.yaml --json | jq .plan`,
		Args: flag.Positional("a model, FILE.py:FUNCTION"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error { return train(cmd.Context(), t, args[0], flags) },
	}
	set := command.Flags()
	set.BoolVar(&t.Quiet, "quiet", false, "show no progress")
	flags.add(set)
	return command
}

// train trains in this process where it is told to or is the program of an attempt, else as a run of the engine.
func train(ctx context.Context, t *tool.Tool, reference string, flags *trainFlags) error {
	model, err := readModel(reference)
	if err != nil {
		return err
	}
	if err := flags.check(); err != nil {
		return err
	}
	if t.Deps.Executor == nil {
		return &fault.UsageError{Problem: "this build cannot train models", Hint: "build cmd/spillway"}
	}
	flags.out = filepath.Clean(cmp.Or(flags.out, model.stem()+"-trained"))
	if _, isAttempt := t.Deps.Environment(wire.ReportEnvironment); isAttempt {
		flags.sharedOut = true // in the directory of an attempt there is nobody else, whoever owns it
		return trainInAttempt(ctx, t, model, flags)
	}
	if err := checkOut(flags.out, flags.resume != "", flags.sharedOut); err != nil {
		return err
	}
	if !flags.here {
		return trainByEngine(ctx, t, model, flags)
	}
	if flags.hosts > 1 || flags.hosts == autoHosts {
		return &fault.UsageError{
			Problem: "--hosts with --here: other hosts are those of an engine's pool",
			Hint:    "leave --here out, and the training is a run of the engine",
		}
	}
	given := append(flag.Changed(flags.command.Set), flags.stack.Changed()...)
	if flags.dataInPlace {
		given = append(given, "--data-in-place")
	}
	if err := flag.Refuse(given, "a training in this process",
		"leave --here out, and the training is a run of the engine"); err != nil {
		return err
	}
	return trainHere(ctx, t, model, flags)
}
