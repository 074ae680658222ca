// Package simulate has the command simulate, which replays a trace in virtual time and starts nothing.
package simulate

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor/sim/policy"
	"github.com/spillway-ml/spillway/predictor/size"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	flags := &simulateFlags{}
	command := &cobra.Command{
		Use:   "simulate --trace FILE [FLAGS]",
		Short: "Replay a recorded load, and say what it costs and how late it is by several policies",
		Long: `Replay a trace of arrivals in virtual time, on what Spillway decides and on what simple policies
hold, and say of each what it costs, how long tasks take from arrival to end, how many are late, and
how many run on functions. Nothing is started.

The trace is CSV with a header. Each row is a task and the core-seconds that it takes, or, with
--work, a minute and how many tasks came in it. Times are RFC 3339 or seconds since 1970, in order:

  timestamp,work                       timestamp,count
  2026-11-26T10:00:00.25Z,0.2          2026-11-26T10:00:00Z,340
  2026-11-26T10:00:00.75Z,1.5          2026-11-26T10:01:00Z,377

The policies:

  ours       the code that decides in the engine, on a pool of --hosts, with functions for the
             excess; it begins with nothing learned
  static     hosts for the busiest minute, which it knows, all the time
  mean       hosts for the mean of the last minute, and functions for what finds no core free
  kpa        Knative's autoscaler (KPA) at its defaults, a host as each pod
  hpa        Kubernetes's horizontal pod autoscaler, at 70% of the cores, a host as each pod
  functions  no hosts

Each task takes one core wherever it runs, and waits in one queue where none is free. Hosts are paid
from their launch until they have ended what they run. kpa and hpa have at most what the busiest
minute takes at 70%. The best, which is marked, is the cheapest of those with which at most 1% of
the tasks are late; where there is none, that with the fewest late.`,
		Example: `  spillway simulate --trace arrivals.csv
  spillway simulate --trace minutes.csv --work 0.25 --slo 2s --hosts 3
  spillway simulate --trace arrivals.csv --policy ours,kpa --host m7i.xlarge --svg costs.svg
  spillway simulate --trace arrivals.csv --json | jq '.scores[] | select(.best)'`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return simulate(cmd.Context(), t, flags) },
	}
	flags.add(command.Flags())
	return []*cobra.Command{command}
}

// mostAtOnce is how many tasks ours replays within some seconds, of more the user is told.
const mostAtOnce = 20_000

func simulate(ctx context.Context, t *tool.Tool, flags *simulateFlags) error {
	if err := flags.check(); err != nil {
		return err
	}
	setting, err := flags.setting()
	if err != nil {
		return err
	}
	start, span, arrivals, err := flags.arrivals()
	if err != nil {
		return err
	}
	setting.Start, setting.Span = start, span
	report := display.Simulation{
		Trace: flags.trace, Start: start, Seconds: span.Seconds(), Tasks: len(arrivals), LimitSeconds: flags.limit.Seconds(),
		Host: flags.host, Cores: setting.Cores, HostPrice: setting.HostPrice, HostStart: setting.HostStart.Seconds(),
		Function: flag.UsualFunction, FunctionMemory: size.CoreMemory, PerGiBSecond: setting.Functions.PerGiBSecond,
		PerRequest: setting.Functions.PerRequest, ColdStart: setting.Functions.ColdStart.Seconds(),
		Concurrency: setting.Functions.Concurrency, KeepWarm: setting.KeepWarm.Seconds(), Notes: []string{},
	}
	longest := time.Duration(0)
	for _, arrival := range arrivals {
		report.CoreSeconds += arrival.Work.Seconds()
		longest = max(longest, arrival.Work)
		if arrival.Work > flags.limit {
			report.Impossible++
		}
	}
	if setting.Functions.Enabled = longest <= awslambda.MaxTimeout; !setting.Functions.Enabled {
		report.Notes = append(report.Notes, fmt.Sprintf(
			"nothing runs on functions: a task takes %s, and an invoke at most %s", longest, awslambda.MaxTimeout))
	}
	if report.Scores, err = scores(ctx, t, flags, setting, arrivals, &report); err != nil {
		return err
	}
	policy.MarkBest(report.Scores)
	if flags.svg != "" {
		if err := safefile.WriteFile(flags.svg, display.SimulationSVG(report), 0o644, flags.sharedOut); err != nil {
			return flag.RefusedOut("--svg", flags.svg, err)
		}
	}
	if flags.json {
		return t.WriteJSON(report)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range report.Lines(style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}

// scores are those of the policies that are asked for.
func scores(
	ctx context.Context, t *tool.Tool, flags *simulateFlags, setting policy.Setting, arrivals []policy.Arrival,
	report *display.Simulation,
) ([]policy.Score, error) {
	peak, target := policy.PeakHosts(setting, arrivals), policy.PodsAtPeak(setting, arrivals)
	entrants := map[string]policy.Entrant{
		"static":    {Policy: policy.Fixed(peak), First: peak},
		"mean":      {Policy: policy.Mean(setting.Cores), First: 1, Spills: true},
		"kpa":       {Policy: policy.NewKPA(setting.Cores), First: 1, Most: target},
		"hpa":       {Policy: policy.NewHPA(setting.Cores), First: 1, Most: target},
		"functions": {Policy: policy.Fixed(0), Spills: true},
	}
	all := []policy.Score{}
	for _, name := range flags.policies {
		var outcome policy.Outcome
		var err error
		switch entrant := entrants[name]; {
		case name == "ours":
			report.Hosts = flags.hosts
			if report.Hosts == 0 {
				report.Hosts, report.ByMean = policy.MeanHosts(setting, arrivals), true
			}
			if len(arrivals) > mostAtOnce && !flags.json {
				t.Note("ours decides anew whenever one of the %d tasks comes or ends, which takes a while", len(arrivals))
			}
			outcome, err = policy.Ours(ctx, setting, arrivals, report.Hosts, flags.limit)
		case name == "functions" && !setting.Functions.Enabled:
			continue
		default:
			outcome, err = policy.Replay(ctx, setting, arrivals, entrant)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, policy.ScoreOf(name, outcome, flags.limit))
	}
	return all, nil
}
