// Package price has the command price, which brings the catalogue of prices up to date.
package price

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/awsprices"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// history is the time over which the median of spot prices is taken.
const history = 7 * 24 * time.Hour

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	command := &cobra.Command{
		Use:   "price COMMAND",
		Short: "Bring the catalogue of prices up to date",
		Long: `What functions and hosts cost is in a catalogue of prices, each with its date and source: the one
that is part of this binary, or a file that --prices of dev, run and simulate names.`,
		Example: `  spillway price refresh --out prices.csv`,
		Args:    flag.UnknownVerb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(refreshCommand(t))
	return []*cobra.Command{command}
}

// refreshFlags are the flags of `price refresh`.
type refreshFlags struct {
	where             awslambda.Where
	out               string
	asJSON, sharedOut bool
}

func refreshCommand(t *tool.Tool) *cobra.Command {
	flags := &refreshFlags{}
	command := &cobra.Command{
		Use:   "refresh [FLAGS]",
		Short: "Ask AWS what functions and hosts cost, and write a catalogue of prices",
		Long: `Ask AWS what functions and hosts cost in a region, show what has changed, and write a catalogue that
--prices of dev, run and simulate reads. Functions are Lambda's requests and GB-seconds on both
processors, in the tier that a month begins with; hosts are the instance types of the catalogue, on
demand (Linux) and, of spot, the median of seven days in the dearest zone.

What is compared, and kept where AWS names no newer price, is the file of --out where it is there
already, else the catalogue that is part of this binary. Rows of other regions stay as they are;
dev, run and simulate use those of us-east-1. Without --out nothing is written.

Credentials, profile and region are those of AWS's own tools; they need pricing:GetProducts and
ec2:DescribeSpotPriceHistory. The Price List API is asked in us-east-1 whatever the region.

The exit code is 0 when AWS has answered, also when nothing has changed, 1 when it refused or its
prices cannot be used (a region that it has no prices of, another currency than US dollars), and 2
when a flag, the file or the credentials are wrong; nothing is written then.`,
		Example: `  spillway price refresh
  spillway price refresh --region us-east-1 --out prices.csv
  spillway price refresh --out prices.csv --json | jq -r '.changes[] | select(.percent > 5) | .name'`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return refresh(cmd.Context(), t, flags) },
	}
	set := command.Flags()
	set.StringVar(&flags.where.Region, "region", flag.UsualRegion, "`REGION` of AWS whose prices are asked for")
	set.StringVar(&flags.where.Profile, "profile", "", "`PROFILE` of ~/.aws/config (default AWS_PROFILE)")
	set.StringVar(&flags.where.Endpoint, "endpoint", "", "`URL` of another host of both APIs")
	set.Var(flag.Destination{Value: &flags.out}, "out", "write the catalogue to this `FILE`, in CSV")
	flag.AddSharedOut(set, &flags.sharedOut, "--out")
	set.BoolVar(&flags.asJSON, "json", false, "print everything as JSON; the units are in the names")
	return command
}

// changed is a price in JSON.
type changed struct {
	Kind    pricing.Kind   `json:"kind"`
	Region  string         `json:"region"`
	Name    string         `json:"name"`
	Unit    pricing.Unit   `json:"unit"`
	Price   quantity.Money `json:"price"`
	Before  quantity.Money `json:"before"`
	Percent float64        `json:"percent"`
	Change  string         `json:"change"`
	Dated   string         `json:"dated"`
	Source  string         `json:"source"`
}

// refreshed is what `price refresh --json` prints.
type refreshed struct {
	Changes []changed        `json:"changes"`
	Tiers   []awsprices.Tier `json:"tiers"`
	Missing []string         `json:"missing"`
	Out     string           `json:"out,omitempty"`
}

func refresh(ctx context.Context, t *tool.Tool, flags *refreshFlags) error {
	old, oldName, err := before(flags.out)
	if err != nil {
		return err
	}
	if err := writable(flags); err != nil {
		return err
	}
	query, err := asked(old, flags.where.Region)
	if err != nil {
		return err
	}
	cfg, err := flags.where.Load(ctx)
	if problem, ok := errors.AsType[*awslambda.Problem](err); ok {
		return &fault.UsageError{Problem: problem.What, Hint: problem.Hint}
	}
	if err != nil {
		return err
	}
	if flags.where.Endpoint != "" {
		cfg.BaseEndpoint = &flags.where.Endpoint
	}
	answer, err := awsprices.Fetch(ctx, cfg, query)
	if err != nil {
		return explained(err, flags.where)
	}
	rows, changes := old.Refreshed(awsprices.Provider, flags.where.Region, answer.Rows)
	if err := write(flags, rows); err != nil {
		return err
	}
	if flags.asJSON {
		return t.WriteJSON(told(flags.out, changes, answer))
	}
	return show(t, flags, oldName, changes, answer)
}

// writable refuses a destination in a directory that is not there or cannot be written to, before AWS is asked.
func writable(flags *refreshFlags) error {
	if flags.out == "" {
		return nil
	}
	if info, err := os.Stat(flags.out); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // a device, such as /dev/stdout
	}
	dir := filepath.Dir(flags.out)
	_, err := os.Stat(dir)
	if err == nil {
		err = safefile.Check(dir, flags.sharedOut)
	}
	if err != nil {
		return flag.RefusedOut("--out", flags.out, err)
	}
	return nil
}

// before is the catalogue that is refreshed, and what it is called.
func before(out string) (pricing.Catalogue, string, error) {
	if out == "" {
		return pricing.Default(), "the embedded catalogue", nil
	}
	if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
		return pricing.Default(), "the embedded catalogue", nil
	}
	file, err := flag.OpenFile(out)
	if err != nil {
		return pricing.Catalogue{}, "", flag.RefusedOut("--out", out, err)
	}
	// Prices that hold no longer are what a refresh is for.
	old, err := pricing.Parse(file, time.Time{})
	if err := errors.Join(err, file.Close()); err != nil {
		return old, "", &fault.UsageError{
			Problem: fmt.Sprintf("--out %s is there and is no catalogue: %v", out, err),
			Hint:    "correct it, or name another file",
		}
	}
	return old, out, nil
}

// asked is what AWS is asked for: the hosts that the catalogue knows, in whatever region, and the functions.
func asked(old pricing.Catalogue, region string) (awsprices.Query, error) {
	query := awsprices.Query{Region: region, Hosts: map[string]quantity.Size{}, Now: time.Now(), History: history}
	for _, row := range old.Rows() {
		switch {
		case row.Provider != awsprices.Provider:
		case row.Kind.IsHost():
			query.Hosts[row.Name] = row.Capacity
		case row.Kind == pricing.Function:
			query.Functions = row.Capacity
		}
	}
	if query.Functions.Memory == 0 {
		return query, &fault.UsageError{
			Problem: "the catalogue has no functions of AWS, whose size would be known by it",
			Hint:    "name another file with --out, or leave it out",
		}
	}
	return query, nil
}

// explained says what to do about what AWS answered.
func explained(err error, where awslambda.Where) error {
	switch {
	case errors.Is(err, awsprices.ErrRegion):
		return fault.Advise(err, "look at --region: it is written as us-east-1")
	case errors.Is(err, awsprices.ErrCurrency):
		return fault.Advise(err, "write its rows by hand, in dollars at a rate of your own, and give them with --prices")
	case errors.Is(err, awsprices.ErrForm):
		return fault.Advise(err, "nothing was written; tell the makers of Spillway what it says")
	}
	endpoint := where.Endpoint
	if endpoint == "" {
		endpoint = "AWS"
	}
	return awslambda.Explain(err, endpoint)
}

// write writes the catalogue where it is wanted, and only one that reads back.
func write(flags *refreshFlags, rows []pricing.Row) error {
	if flags.out == "" {
		return nil
	}
	var text bytes.Buffer
	text.WriteString("# Prices of AWS in " + flags.where.Region +
		" asked by `spillway price refresh`; each row has its day and source.\n")
	if err := pricing.Write(&text, rows); err != nil {
		return err
	}
	if _, err := pricing.Parse(bytes.NewReader(text.Bytes()), time.Time{}); err != nil {
		return fmt.Errorf("what AWS says makes no catalogue: %w", err)
	}
	if err := safefile.WriteFile(flags.out, text.Bytes(), 0o644, flags.sharedOut); err != nil {
		return flag.RefusedOut("--out", flags.out, err)
	}
	return nil
}

// word says what became of a price.
func word(c pricing.Change) string {
	switch {
	case c.IsNew:
		return "new"
	case c.IsKept:
		return "kept"
	case c.Row.Price == c.Before:
		return "same"
	default:
		return fmt.Sprintf("%+.1f%%", c.Percent())
	}
}

func told(out string, changes []pricing.Change, answer awsprices.Answer) refreshed {
	all := refreshed{Changes: []changed{}, Tiers: answer.Tiers, Missing: answer.Missing, Out: out}
	for _, c := range changes {
		name := word(c)
		if !c.IsNew && !c.IsKept && c.Row.Price != c.Before {
			name = "changed"
		}
		all.Changes = append(all.Changes, changed{
			c.Row.Kind, c.Row.Region, c.Row.Name, c.Row.Unit, c.Row.Price, c.Before, c.Percent(), name,
			c.Row.Dated.Format(time.DateOnly), c.Row.Source,
		})
	}
	return all
}

// show prints what has changed.
func show(
	t *tool.Tool, flags *refreshFlags, oldName string, changes []pricing.Change, answer awsprices.Answer,
) error {
	moved, same, isNew, kept, oldest := tally(changes)
	if moved+isNew > 0 {
		if err := showTable(t, changes); err != nil {
			return err
		}
	}
	for _, tier := range answer.Tiers {
		t.Say("%s costs %s by the %s from %s a month on, which the catalogue does not have\n", display.CleanLine(tier.Name),
			tier.Price.Decimal(), tier.Unit, words.Grouped(tier.From))
	}
	for _, missing := range byKind(answer.Missing) {
		t.Say("AWS has no price in %s of %s\n", flags.where.Region, display.CleanLine(missing))
	}
	t.Say("%d changed, %d the same, %d new, %d kept as they were%s; compared with %s\n", moved, same, isNew, kept, oldest,
		display.CleanLine(oldName))
	if flags.out == "" {
		t.Say("nothing is written: --out FILE writes a catalogue, which dev, run and simulate read by --prices FILE\n")
		return nil
	}
	t.Say("written to %s: give it to dev, run and simulate by --prices\n", display.CleanLine(flags.out))
	return nil
}

// showTable prints the prices that are not as they were.
func showTable(t *tool.Tool, changes []pricing.Change) error {
	table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	display.Printf(table, "KIND\tNAME\tUNIT\tUSD\tBEFORE\tCHANGE\tDATED\n")
	for _, c := range changes {
		before := "-"
		switch {
		case c.IsNew:
		case c.Row.Price == c.Before:
			continue
		default:
			before = c.Before.Decimal()
		}
		display.Printf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Row.Kind, display.CleanLine(c.Row.Name), c.Row.Unit,
			c.Row.Price.Decimal(), before, word(c), c.Row.Dated.Format(time.DateOnly))
	}
	return table.Flush()
}

// tally counts what became of prices, and tells the day of the oldest that was kept.
func tally(changes []pricing.Change) (moved, same, isNew, kept int, oldest string) {
	var day time.Time
	for _, c := range changes {
		switch {
		case c.IsNew:
			isNew++
		case c.IsKept:
			kept++
			if day.IsZero() || c.Row.Dated.Before(day) {
				day = c.Row.Dated
			}
		case c.Row.Price == c.Before:
			same++
		default:
			moved++
		}
	}
	if kept > 0 {
		oldest = " (the oldest of " + day.Format(time.DateOnly) + ")"
	}
	return moved, same, isNew, kept, oldest
}

// byKind writes names, each after its kind, in one line for each kind.
func byKind(missing []string) (lines []string) {
	last := ""
	for _, text := range missing {
		kind, name, _ := strings.Cut(text, " ")
		if kind == last {
			lines[len(lines)-1] += ", " + name
			continue
		}
		last, lines = kind, append(lines, text)
	}
	return lines
}
