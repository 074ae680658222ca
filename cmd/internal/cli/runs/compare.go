package runs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/threeway"
	"github.com/spillway-ml/spillway/predictor/words"
)

// compareFlags are those of `compare`.
type compareFlags struct {
	rate              float64
	within            time.Duration
	host, container   string
	containerStart    time.Duration
	kept              time.Duration
	svg               string
	sharedOut, asJSON bool
}

// What is not measured here, and is taken as usual: how long a container takes to be scheduled, to fetch its image and
// to start, and for how long AWS keeps an environment without work, of which it says nothing.
const (
	usualContainerStart = 30 * time.Second
	usualKept           = 5 * time.Minute
	usualContainer      = "fargate-x86"
	usualRate           = 1
)

func (f *compareFlags) add(set *pflag.FlagSet) {
	f.container, f.containerStart, f.kept = usualContainer, usualContainerStart, usualKept
	set.Var(flag.Weight{Value: &f.rate, Least: 1e-6}, "rate",
		"tasks that arrive in a second (default as in the latest minutes, or 1 where nothing is known of it)")
	set.Var(flag.Span{Value: &f.within}, "within",
		"what 99 of 100 tasks must take at most from arrival to end, where room is held (default twice the longest "+
			"hundredth of run times)")
	set.StringVar(&f.host, "host", "",
		"the `TYPE` of hosts, one on demand of the catalogue of prices (default the pool's own)")
	set.StringVar(&f.container, "container", f.container, "the `KIND` of containers, one of the catalogue of prices")
	set.Var(flag.SpanOrNone(&f.containerStart, time.Hour), "container-start", "how long a container takes to start")
	set.Var(flag.SpanOrNone(&f.kept, 24*time.Hour), "function-kept", "for how long an environment without work is kept")
	set.BoolVar(&f.asJSON, "json", false, "print everything as JSON; the units are in the names")
	set.Var(flag.Destination{Value: &f.svg}, "svg", "write a picture of costs and latencies over rates to this "+
		"`FILE`, or with - only that to standard output")
	flag.AddSharedOut(set, &f.sharedOut, "--svg")
}

func compareCommand(t *tool.Tool) *cobra.Command {
	var flags compareFlags
	command := &cobra.Command{
		Use:   "compare STAGE [FLAGS]",
		Short: "Compare cost and latency of a stage on hosts, in containers, in functions",
		Long: `Compare what a million tasks of a stage cost, and how long each takes from its arrival to its end,
on hosts that are held, in a container service (AWS Fargate: cores and memory by the second, a
minute at least) and in functions: at one rate of arrivals and over rates, with those from which
another is cheaper. Run times, cold starts and sizes are those of the stage's own latest attempts;
prices are those in force, each with its source in the catalogue.

Arrivals are drawn (Poisson), 10,000 of them after 5,000 that nobody counts, the same for all three;
at high rates functions see more before, to be warm.
Of hosts and containers as few are held as keep --within; a container is started for each task where
that is cheaper and within, too. A function starts where none is idle. STAGE is the name of a stage,
or app/stage where several apps have one of the name. To compare two runs, see spillway diff.

The exit code is 0, 1 when no attempt has succeeded yet, functions cannot run it or no host of the
pool has a price and room for it, and 2 when there is no such stage, or no such host or container in
the catalogue.`,
		Example: `  spillway compare score
  spillway compare digits/score --rate 20 --within 2s
  spillway compare score --host c7i.4xlarge --svg score.svg
  spillway compare score --json | jq '.cheapest'`,
		Args:              flag.Positional("the name of a stage"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return compare(cmd.Context(), t, args[0], flags)
		},
	}
	flags.add(command.Flags())
	return command
}

func compare(ctx context.Context, t *tool.Tool, stage string, flags compareFlags) error {
	if flags.svg == "-" && flags.asJSON {
		return &fault.UsageError{
			Problem: "--svg - and --json both write to standard output", Hint: "give --svg a FILE, or leave one out",
		}
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	measured, err := s.Client.Measured(ctx, stage)
	if err != nil {
		return err
	}
	prices, err := s.Client.Prices(ctx)
	if err != nil {
		return err
	}
	c, err := flags.of(measured, prices)
	if err != nil {
		return err
	}
	report := display.Comparison{Measured: measured, Host: c.Host, Container: c.Container, Functions: c.Functions}
	rate := flags.rate
	if rate == 0 {
		rate, report.RateSource = measured.Rate, fmt.Sprintf("as in the latest minutes (%s tasks in %s)",
			words.Grouped(measured.LatelyTasks), words.Count(measured.LatelyMinutes, "minute"))
	} else {
		report.RateSource = "as asked"
	}
	if rate == 0 {
		rate, report.RateSource = usualRate, "for want of arrivals"
	}
	if report.Comparison, err = c.Compare(rate); err != nil {
		return fmt.Errorf("compare %s: %w", measured.Stage, err)
	}
	switch flags.svg {
	case "":
	case "-":
		t.Say("%s", display.Own(string(display.ComparisonSVG(report))))
		return nil
	default:
		if err := safefile.WriteFile(flags.svg, display.ComparisonSVG(report), 0o644, flags.sharedOut); err != nil {
			return flag.RefusedOut("--svg", flags.svg, err)
		}
		t.Note("the picture is written to %s", flags.svg)
	}
	if flags.asJSON {
		return t.WriteJSON(report)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range report.Lines(style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}

// of are the terms on which a stage is compared.
func (f compareFlags) of(m predictor.Measured, prices []pricing.Row) (c threeway.Case, err error) {
	if len(m.Walls) == 0 {
		return c, fault.Advise(fmt.Errorf("no attempt of %s has succeeded yet: %w", m.Stage, threeway.ErrCase),
			"compare it once one has: spillway runs")
	}
	if m.Class == 0 {
		return c, fault.Advise(fmt.Errorf("functions do not run %s: %s: %w", m.Stage, m.Refusal, threeway.ErrCase),
			"only what functions can run is compared; spillway show RUN --why says what it holds")
	}
	c = threeway.Case{
		Walls: m.Walls, Slower: m.Slower, Within: f.within, Seed: 1,
		Functions: threeway.Functions{
			Offered: m.Venue, Class: m.Class, Cold: time.Duration(m.Cold * float64(time.Second)), Kept: f.kept,
		},
		Host: threeway.Host{Name: m.Host.ID, Slots: m.Slots, PerHour: m.Host.PricePerHour},
	}
	if f.host != "" {
		offer, row, err := priced(prices, pricing.OnDemandHost, f.host, "--host")
		if err != nil {
			return c, err
		}
		capacity := row.Capacity
		c.Host = threeway.Host{Name: f.host, Slots: m.Fit(capacity), PerHour: offer[pricing.PerHour]}
	}
	if c.Host.Slots < 1 || c.Host.PerHour <= 0 {
		return c, fault.Advise(fmt.Errorf("no host with a price has room for a slot of %s: %w", m.Size, threeway.ErrCase),
			"name another one of the catalogue, such as --host c7i.xlarge")
	}
	offer, _, err := priced(prices, pricing.Container, f.container, "--container")
	if err != nil {
		return c, err
	}
	size, perHour, known := pricing.Offer{Prices: offer}.ContainerFor(m.Size)
	if !known {
		return c, fault.Advise(fmt.Errorf("no container holds a slot of %s: %w", m.Size, threeway.ErrCase),
			"the largest has 16 cores and 120 GiB, and no GPU")
	}
	c.Container = threeway.Container{
		Name: f.container, Size: size, PerHour: perHour, Start: f.containerStart, Least: pricing.ContainerLeast,
	}
	return c, nil
}

// priced looks up what one name costs among the prices in force.
func priced(rows []pricing.Row, kind pricing.Kind, name, flagged string) (
	units map[pricing.Unit]quantity.Money, found pricing.Row, err error,
) {
	units = map[pricing.Unit]quantity.Money{}
	var names []string
	for _, row := range rows {
		if row.Kind != kind || row.Region != flag.UsualRegion {
			continue // a catalogue may have other regions, which no engine plans with
		}
		names = append(names, row.Name)
		if row.Name == name {
			units[row.Unit], found = row.Price, row
		}
	}
	if len(units) == 0 {
		hint := "the prices in force have none: write rows of this kind into the file of --prices"
		if names = slices.Compact(slices.Sorted(slices.Values(names))); len(names) > 0 {
			hint = "write one of " + strings.Join(names, ", ")
		}
		return nil, found, &fault.UsageError{Problem: fmt.Sprintf("%s %q has no price", flagged, name), Hint: hint}
	}
	return units, found, nil
}
