// Package plan has the command plan, which divides a model among devices and starts nothing.
package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/workers/devicelist"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/partition/appraisal"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		planCommand(t),
	}
}

// usualBatch is how many samples a model is run with that is looked into.
const usualBatch = 32

var errNothingFits = errors.New("nothing fits")

func planCommand(t *tool.Tool) *cobra.Command {
	flags := &planFlags{format: formatAuto, weightBytes: usualWeight}
	command := &cobra.Command{
		Use:   "plan GRAPH|MODEL.py:FUNCTION --devices FILE [FLAGS]",
		Short: "Divide a model among devices, and say what that comes to",
		Long: `Read the op graph of a model, divide it among devices, and say what each device runs and holds, how
long a batch or a training step takes, how far that is from the least possible, and which other
plans leave less memory idle. Nothing is started.

GRAPH is a recorded graph: the JSON of Spillway, of dnn-partitioning or of Piper, or the text of a
profile of PipeDream or DAPPLE. MODEL.py:FUNCTION is a function that returns a PyTorch model, which
is run once to be measured.

The file of devices is YAML. An entry with a count stands for devices ID-1, ID-2 and so on; class
is one that the graph has costs for, and speed divides them. Links join two devices, or all that
have no link of their own:

  devices:
    - {id: gpu, class: accelerator, count: 4, memory: 16GiB, speed: 1.0, price: 2.50}
  links:
    - {between: all, bandwidth: 10GiB/s, latency: 10us}

--objective says which time is made small: "throughput" that between two batches of an endless
stream, "step" that of a synchronous training step (a pipeline of stages with replicas and
micro-batches), "latency" that of one batch from its first operation to its last. With --lambda
idle memory of the devices in use counts as well.

The exit code is 0 with a plan, 1 when nothing fits, with what is lacking and what would help, and 2
when a file or a flag is wrong.`,
		Example: `  spillway plan vgg16.txt --devices devices.yaml
  spillway plan bert.json --devices devices.yaml --inference --objective latency
  spillway plan train.py:model --devices devices.yaml --batch 64 --recompute --zero 1 --svg plan.svg
  spillway plan vgg16.txt --devices devices.yaml --lambda 0.5 --json | jq '.front'`,
		Args: flag.Positional("the file of a recorded graph, or MODEL.py:FUNCTION"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error { return plan(cmd.Context(), t, args[0], flags) },
	}
	flags.add(command.Flags())
	return command
}

func plan(ctx context.Context, t *tool.Tool, name string, flags *planFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	devices, err := ReadDevices(t, flags.devices)
	if err != nil {
		return err
	}
	found, err := opGraph(ctx, t, name, flags)
	if err != nil {
		return err
	}
	devices, leftOut, err := runnable(t, flags.devices, devices, found.Graph)
	if err != nil {
		return err
	}
	problem, err := flags.problem(found, devices)
	if err != nil {
		return err
	}
	report, err := planned(ctx, problem)
	if err != nil {
		return err
	}
	report.Graph.Format = string(found.Format)
	report.Notes = slices.Concat([]string{}, leftOut, notesOf(problem, devices))
	if flags.svg != "" {
		if err := safefile.WriteFile(flags.svg, display.PlanSVG(report), 0o644, flags.sharedOut); err != nil {
			return flag.RefusedOut("--svg", flags.svg, err)
		}
	}
	return tellPlan(t, report, flags.json)
}

func tellPlan(t *tool.Tool, report appraisal.Report, asJSON bool) error {
	if asJSON {
		if err := t.WriteJSON(report); err != nil {
			return err
		}
	} else {
		style, _ := t.StyleOf(t.Out)
		for _, line := range display.Plan(report, style) {
			t.Say("%s\n", display.Own(line))
		}
	}
	if report.Plan != nil {
		return nil
	}
	unfit, hint := errNothingFits, "give more memory, or other devices"
	if v := report.Infeasible; v.ShortDevice != "" {
		unfit = fmt.Errorf("%w: %s lacks %s", errNothingFits, v.ShortDevice, v.ShortBytes)
	}
	if len(report.Infeasible.Remedies) > 0 {
		hint = report.Infeasible.Remedies[0].Change + " would do"
	}
	return fault.Advise(unfit, hint)
}

// ReadDevices reads the file of devices and prints all that is wrong with it.
func ReadDevices(t *tool.Tool, file string) (devicelist.List, error) {
	text, err := flag.ReadFile(file, flag.MostYAML)
	if err != nil {
		return devicelist.List{}, &fault.UsageError{
			Problem: fmt.Sprintf("--devices %s: %v", file, fault.WithoutPath(err)),
			Hint:    "give a file of devices; `spillway plan --help` shows one",
		}
	}
	list, mistakes := devicelist.Parse(text)
	return list, complainOf(t, file, mistakes)
}

// complainOf prints mistakes in a file, each with its place; nil without any.
func complainOf(t *tool.Tool, file string, mistakes []devicelist.Mistake) error {
	if len(mistakes) == 0 {
		return nil
	}
	for _, m := range mistakes {
		t.Complain("%s:%d:%d: %s\n", file, m.Line, m.Column, m.Text)
	}
	return &fault.UsageError{
		Problem: fmt.Sprintf("%s has %s", file, display.Count(len(mistakes), "mistake")),
		Hint:    "correct the file",
	}
}

// runnable returns the devices that run something of the graph, and notes which ones do not: one list serves graphs of
// several kinds. It refuses a list of which no device is left.
func runnable(
	t *tool.Tool, file string, list devicelist.List, g graph.Graph,
) (left devicelist.List, notes []string, err error) {
	left, without := list.For(g)
	if len(left.Devices) == 0 {
		return left, nil, complainOf(t, file, without)
	}
	for _, m := range without {
		notes = append(notes, fmt.Sprintf("devices of %s:%d are left out: %s", file, m.Line, m.Text))
	}
	return left, notes, nil
}

// opGraph reads a recorded graph or looks into a model.
func opGraph(ctx context.Context, t *tool.Tool, name string, flags *planFlags) (graph.Recorded, error) {
	if !ModelReference.MatchString(name) {
		return readOpGraph(name, flags.format, flags.batch)
	}
	if flags.format != formatAuto {
		return graph.Recorded{}, &fault.UsageError{Problem: "--format is for recorded graphs", Hint: "leave it out"}
	}
	if t.Deps.ProbeModel == nil {
		return graph.Recorded{}, &fault.UsageError{
			Problem: "this build cannot look into models",
			Hint:    "give a recorded graph",
		}
	}
	samples := cmp.Or(flags.batch, usualBatch)
	g, err := t.Deps.ProbeModel(ctx, name, samples)
	if err != nil {
		return graph.Recorded{}, fmt.Errorf("look into %s: %w", name, err)
	}
	if err := g.Plannable(); err != nil {
		return graph.Recorded{}, fmt.Errorf("the graph of %s: %w", name, err)
	}
	if g.Name == "" {
		g.Name = name
	}
	return graph.Recorded{Graph: g, Format: formatModel, Samples: samples}, nil
}

// notesOf says what the figures leave out.
func notesOf(p partition.Problem, list devicelist.List) []string {
	var notes []string
	switch {
	case p.Links.ThroughHost:
		notes = append(notes, "the graph holds measured transfers between a device and the memory of its host: they are "+
			"used, and links are not")
	case !list.Linked && len(list.Devices) > 1:
		notes = append(notes, "no links are given: tensors travel in no time")
	case p.Objective == partition.Step && len(list.Links.Pairs) > 0:
		notes = append(notes, fmt.Sprintf("a training step is priced with the slowest link for all pairs: %.3g GB/s, "+
			"%v s latency",
			p.Links.Between.BytesPerSecond/1e9, float64(p.Links.Between.Latency)))
	}
	return notes
}

// planned plans, and returns early when ctx ends; the search is pure and then ends with the process.
func planned(ctx context.Context, p partition.Problem) (appraisal.Report, error) {
	if err := ctx.Err(); err != nil {
		return appraisal.Report{}, err
	}
	type answer struct {
		report appraisal.Report
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		report, err := appraisal.Of(p)
		done <- answer{report, err}
	}()
	select {
	case <-ctx.Done():
		return appraisal.Report{}, ctx.Err()
	case a := <-done:
		if errors.Is(a.err, partition.ErrProblem) {
			return a.report, &fault.UsageError{Problem: a.err.Error(), Hint: "change the devices or the graph"}
		}
		return a.report, a.err
	}
}
