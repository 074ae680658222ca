package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/space"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func gcCommand(t *tool.Tool) *cobra.Command {
	var dry, asJSON bool
	command := &cobra.Command{
		Use:   "gc [FLAGS]",
		Short: "Remove the artifacts that nothing needs any more",
		Long: `Remove the artifacts that nothing needs any more, and say what went and why. The stack does so by
itself once an hour, when half of the room that the last time left is used up, and when newer
checkpoints of a training have replaced older ones.

Kept is whatever a run reaches that goes on or ended less than --keep-for ago (of dev and run; 30
days), an event that waits, a stored chain or a binding, a dead letter or something that was sent
to the stack less than --keep-for ago, what was just written, and what was written while an attempt
went on that has not ended yet. Where all of that takes more than --keep-bytes (60% of the disk;
no bound in S3),
what ended or was sent first goes before its time, but nothing of the last day unless --keep-bytes
was given; "spillway show RUN" then says so. Nothing that a run reaches which goes on is ever
removed, and nothing at all where something that may name artifacts cannot be read. A clock that
was turned ahead ages things by at most a day an hour.

With --dry-run nothing is removed. The exit code is 0 when that was done, and 1 when no stack runs
or it did not work; what was not removed then stays for the next time.`,
		Example: `  spillway gc --dry-run
  spillway gc
  spillway gc --dry-run --json | jq -r '.removed[] | [.bytes, .digest, .reason] | @tsv'`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return gc(cmd.Context(), t, dry, asJSON) },
	}
	command.Flags().BoolVar(&dry, "dry-run", false, "remove nothing and say what would go")
	command.Flags().BoolVar(&asJSON, "json", false, "print what goes as JSON, the largest 1,000 artifacts one by one")
	return command
}

func gc(ctx context.Context, t *tool.Tool, dry, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	collection, err := s.Client.Collect(ctx, dry)
	if err != nil {
		return err
	}
	if asJSON {
		return t.WriteJSON(collection)
	}
	return showCollection(t, collection)
}

// runsShown is how many runs that give something back are shown one by one.
const runsShown = 20

// showCollection prints what a collection did, or would do.
func showCollection(t *tool.Tool, c retention.Collection) error {
	policy := policyText(c.Policy)
	verb := "removed"
	if c.DryRun {
		verb = "would go"
	}
	if c.Freed.Artifacts == 0 {
		t.Say("nothing %s: %s is kept (%s)\n", map[bool]string{true: "would go", false: "went"}[c.DryRun], sumText(c.Kept),
			policy)
		saySpecial(t, c)
		return nil
	}
	table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	display.Printf(table, "ARTIFACTS\tSIZE\t  %s\n", "WHY")
	for _, one := range c.Reasons {
		display.Printf(table, "%d\t%s\t  %s\n", one.Artifacts, one.Bytes, display.CleanLine(one.Reason))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, run := range c.Runs {
		if i == runsShown {
			t.Say("and %d more runs give something back\n", len(c.Runs)-i)
			break
		}
		t.Say("run %s gives back what only it reaches: %s\n", display.CleanLine(run.Run), display.CleanLine(run.Reason))
	}
	t.Say("%s: %s; kept: %s (%s)\n", verb, sumText(c.Freed), sumText(c.Kept), policy)
	saySpecial(t, c)
	return nil
}

// leastAhead is from when on it is said that the clock is ahead.
const leastAhead = time.Hour

// saySpecial says why more is kept than there should be, where it is.
func saySpecial(t *tool.Tool, c retention.Collection) {
	if c.Over > 0 {
		t.Say("%s more is kept than --keep-bytes says: runs that go on or ended of late, or what was just written, hold it\n",
			c.Over)
	}
	if c.Ahead >= leastAhead {
		t.Say("ages are %s behind the clock, which was turned ahead, or no stack ran: they catch up by a day an hour\n",
			c.Ahead.Round(time.Hour))
	}
}

// sumText is a sum for people.
func sumText(sum retention.Sum) string {
	if sum.Artifacts == 1 {
		return fmt.Sprintf("1 artifact, %s", sum.Bytes)
	}
	return fmt.Sprintf("%d artifacts, %s", sum.Artifacts, sum.Bytes)
}

// policyText says for how long, and within how much room, artifacts are kept.
func policyText(policy retention.Policy) string {
	text := fmt.Sprintf("kept for %s after a run", spanText(policy.KeepFor))
	if policy.KeepBytes != engine.Boundless {
		text += fmt.Sprintf(", within %s", policy.KeepBytes)
	}
	return text
}

// spanText writes whole days as such.
func spanText(span time.Duration) string {
	const day = 24 * time.Hour
	if span >= day && span%day == 0 {
		return fmt.Sprintf("%d days", span/day)
	}
	return span.String()
}

// examineRetention says what artifacts are kept, and what they take. The policy is that of the running stack, where one
// runs, else the usual one.
func examineRetention(ctx context.Context, stateDir, nearest string, running *retention.Policy) finding {
	const check = "artifacts"
	location, err := engine.ArtifactsOf(stateDir)
	if err != nil {
		return finding{check, problem, err.Error(), "put the file back, or choose another state directory with --state DIR"}
	}
	if location != engine.InFiles { // what they take there only the engine's credentials can tell
		policy := engine.KeepPolicy(0, 0, engine.Boundless)
		if running != nil {
			policy = *running
		}
		return finding{check, fine, "in " + location + "; " + policyText(policy), ""}
	}
	disk, err := space.DiskOf(nearest)
	if err != nil {
		return finding{check, problem, err.Error(), "choose another state directory with --state DIR"}
	}
	policy := engine.KeepPolicy(0, 0, disk.Size)
	if running != nil {
		policy = *running
	}
	used, err := artifactsUse(ctx, filepath.Join(stateDir, "artifacts"))
	if err != nil {
		return finding{check, problem, err.Error(), "make the state directory readable, or choose another with --state DIR"}
	}
	return retentionFinding(check, used, disk, policy)
}

// retentionFinding says what artifacts take and may take. A bound that the disk has no room for is never reached: what
// is kept then depends on when the disk is scarce.
func retentionFinding(check string, used quantity.Bytes, disk space.Disk, policy retention.Policy) finding {
	found := finding{check, fine, fmt.Sprintf("%s; %s (--keep-for, --keep-bytes)", used, policyText(policy)), ""}
	if fits := used + disk.Free; fits < policy.KeepBytes {
		found.Found += fmt.Sprintf(", of which the disk has room for %s", fits)
	}
	switch {
	case disk.Scarce(false):
		found.Severity = problem
		found.Do = fmt.Sprintf("new artifacts are refused with %s free: make room, or keep less; spillway gc --dry-run "+
			"says what would go", disk.Free)
	case used > policy.KeepBytes:
		found.Severity, found.Do = notice, "runs that go on may hold it; spillway gc --dry-run says what would go"
	}
	return found
}

// artifactsUse is what the artifacts in dir take; nothing where there is no such directory.
func artifactsUse(ctx context.Context, dir string) (quantity.Bytes, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	store, err := artifact.Open(dir)
	if err != nil {
		return 0, err
	}
	used, err := store.Usage(ctx)
	return quantity.Bytes(used), err
}
