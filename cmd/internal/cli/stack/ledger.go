package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

func ledgerCommand(t *tool.Tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "ledger COMMAND",
		Short: "Take the ledger of costs to another database",
		Long: `Who spent what, and what each run did altogether, is in the ledger: SQLite in the state directory,
or PostgreSQL where --ledger-url-file of dev and run names a file with its URL.`,
		Example: `  spillway ledger copy --ledger-url-file ~/.spillway-ledger`,
		Args:    flag.UnknownVerb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(copyCommand(t))
	return command
}

// copyFlags are the flags of `ledger copy`.
type copyFlags struct {
	file         string
	back, asJSON bool
}

func copyCommand(t *tool.Tool) *cobra.Command {
	flags := &copyFlags{}
	command := &cobra.Command{
		Use:   "copy --ledger-url-file FILE [FLAGS]",
		Short: "Copy the ledger of the state directory to PostgreSQL, or back",
		Long: `Copy all that the ledger in the state directory has to an empty database of PostgreSQL (13 or
later), and compare rows, amounts and texts of every table. All of it is one transaction: after an
error or a kill nothing is there, and the same command begins again. A copy that is there already
is only compared. The original stays as it is.

FILE has mode 0600 and holds postgres://USER:PASSWORD@HOST:PORT/DATABASE, with sslmode=verify-full
where the host is another. End the stack before, and start it with the same --ledger-url-file after:
it goes on where the copy ends. With --back the database is copied into a state directory that has
no ledger.

The exit code is 0 when the copy is there and the same, 1 when it did not work, and 2 when the
request was wrong.`,
		Example: `  spillway ledger copy --ledger-url-file ~/.spillway-ledger
  spillway dev --ledger-url-file ~/.spillway-ledger
  spillway ledger copy --back --ledger-url-file ~/.spillway-ledger --state ./elsewhere`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return copyLedger(cmd.Context(), t, flags) },
	}
	set := command.Flags()
	flag.AddLedger(set, &flags.file)
	set.BoolVar(&flags.back, "back", false, "copy from the database to the state directory")
	set.BoolVar(&flags.asJSON, "json", false, "print what was copied as JSON; the units are in the names")
	return command
}

func copyLedger(ctx context.Context, t *tool.Tool, flags *copyFlags) (err error) {
	file, err := flag.LedgerFile(flags.file)
	if err != nil {
		return err
	}
	if file == "" {
		return &fault.UsageError{
			Problem: "which database?", Hint: "name the file with its URL with --ledger-url-file FILE",
		}
	}
	dir, err := t.StateDir()
	if err != nil {
		return err
	}
	if flags.back {
		if dir, err = t.MakeStateDir(); err != nil {
			return err
		}
	}
	if err := ready(dir, flags.back); err != nil {
		return err
	}
	server, err := ledgerstore.OpenPostgres(ctx, func() (string, error) { return engine.LedgerURL(file) }, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	here, err := ledgerstore.Open(ctx, ledgerstore.Path(dir), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, here.Close()) }()
	from, to := here, server
	if flags.back {
		from, to = server, here
	}
	begun, told := time.Now(), time.Now()
	copied, err := ledgerstore.Copy(ctx, from, to, func(table string, rows int64) {
		if time.Since(told) >= time.Second {
			told = time.Now()
			t.Note("table %s: %d rows", table, rows)
		}
	})
	if errors.Is(err, ledgerstore.ErrNotEmpty) {
		return &fault.UsageError{Problem: err.Error(), Hint: "nothing was changed"}
	}
	if err != nil {
		return err
	}
	if flags.asJSON {
		return t.WriteJSON(copied)
	}
	return showCopied(t, copied, time.Since(begun))
}

// ready refuses a state directory that cannot be copied from, or with back copied to.
func ready(dir string, back bool) error {
	lives, err := access.EngineLives(dir)
	if err != nil {
		return err
	}
	if lives {
		return fault.Advise(fmt.Errorf("a stack runs on %s, and goes on writing its ledger", dir),
			"end it (Ctrl-C), copy, and start it with --ledger-url-file")
	}
	_, err = os.Stat(ledgerstore.Path(dir))
	if !back && errors.Is(err, fs.ErrNotExist) {
		return &fault.UsageError{
			Problem: "there is no ledger in " + dir,
			Hint:    "name another state directory with --state DIR; a new stack needs no copy, only --ledger-url-file",
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// showCopied prints what a copy has.
func showCopied(t *tool.Tool, copied ledgerstore.Copied, took time.Duration) error {
	table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	display.Printf(table, "ROWS\t  %s\n", "TABLE")
	for _, one := range copied.Tables {
		display.Printf(table, "%d\t  %s\n", one.Rows, one.Name)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	verb := fmt.Sprintf("copied from %s within %s", copied.From, took.Round(10*time.Millisecond))
	if copied.Already {
		verb = "was there before, with all that is in " + copied.From
	}
	t.Say("the ledger %s %s: %s in all, %d attempts one by one, up to message %d; every row, amount and text is the "+
		"same\n", copied.Place, verb, copied.Spent, copied.Attempts, copied.Sequence)
	return nil
}
