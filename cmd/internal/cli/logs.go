package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
)

// logFlags are the flags of `logs`.
type logFlags struct {
	query                    logs.Query
	since                    time.Duration
	noFollow, times, encoded bool
}

func (t *tool) logsCommand() *cobra.Command {
	var flags logFlags
	command := &cobra.Command{
		Use:   "logs RUN [STAGE] [FLAGS]",
		Short: "Show what the attempts of a run print",
		Long: `Show what the attempts of a run have printed to standard output and standard error, and what they
print until the run has ended. Each line begins with its stage, task and attempt, then "|" for
standard output, "!" for standard error, or "*" where spillway says something about the output
itself. Interrupting it ends the display only. Nothing is redacted: what a program prints is kept
for a week. With --json each line is one JSON object, on a line of its own.`,
		Example: `  spillway logs digits-7f3a9c
  spillway logs digits-7f3a9c train --tail 20
  spillway logs digits-7f3a9c --task train-2 --no-follow --json | jq -r .text`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return positional("the name of a run")(cmd, args)
		},
		ValidArgsFunction: t.complete(runNames, stageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.query.Run = args[0]
			if len(args) == 2 {
				flags.query.Stage = args[1]
			}
			return t.logs(cmd.Context(), flags)
		},
	}
	set := command.Flags()
	set.StringVar(&flags.query.Task, "task", "", "keep only lines of this `TASK`")
	set.Var(count{&flags.query.Attempt, 1}, "attempt", "keep only lines of attempts with this number")
	set.Var(count{&flags.query.Tail, 1}, "tail", "begin with the last so many lines")
	set.Var(span{value: &flags.since}, "since", "begin with the lines of the last so much time")
	set.BoolVar(&flags.noFollow, "no-follow", false, "do not wait for more lines")
	set.BoolVar(&flags.times, "timestamps", false, "begin each line with its time")
	set.BoolVar(&flags.encoded, "json", false, "print each line as a JSON object, as it was printed")
	return command
}

func (t *tool) logs(ctx context.Context, flags logFlags) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	if flags.since > 0 {
		flags.query.Since = time.Now().Add(-flags.since)
	}
	style, _ := t.styleOf(t.out)
	printer := &linePrinter{out: t.out, style: style, times: flags.times}
	show := printer.show
	if flags.encoded {
		encoder := json.NewEncoder(cleanWriter{t.out})
		encoder.SetEscapeHTML(false)
		show = func(line logs.Line) error { return encoder.Encode(line) }
	}
	shown := 0
	err = session.client.Logs(ctx, flags.query, !flags.noFollow, func(line logs.Line) error {
		shown++
		return show(line)
	})
	if err != nil && errors.Is(ctx.Err(), context.Canceled) && !flags.noFollow {
		return nil // whoever follows ends it that way; the run goes on
	}
	if err != nil {
		return t.withNearRuns(ctx, session, err, flags.query.Run)
	}
	if shown == 0 {
		t.complain("no lines\n")
	}
	return nil
}

// linePrinter writes lines for people.
type linePrinter struct {
	out   io.Writer
	style display.Style
	times bool
	width int // of the widest name so far, in characters: names are padded to it
}

// SGR codes of ECMA-48. Tasks are told apart by colours that are readable on light and dark grounds; red and yellow are left for what
// stands out.
const (
	sgrErr  = "31"
	sgrNote = "33"
)

func taskColours() []string { return []string{"32", "34", "35", "36", "92", "94", "95", "96"} }

// show writes one line.
func (p *linePrinter) show(line logs.Line) error {
	name := display.CleanLine(fmt.Sprintf("%s %s#%d", line.Stage, line.Task, line.Attempt))
	p.width = max(p.width, utf8.RuneCountInString(name))
	mark, colour := "|", ""
	switch line.Origin {
	case wire.LogErr:
		mark, colour = "!", sgrErr
	case wire.LogNote:
		mark, colour = "*", sgrNote
	case wire.LogOut:
	}
	text := display.CleanLine(line.Text)
	if line.Cut {
		text += " (cut)"
	}
	if line.Origin == wire.LogNote {
		text = p.paint(colour, text)
	}
	when := ""
	if p.times {
		when = line.At.Local().Format("2006-01-02T15:04:05.000Z07:00") + " "
	}
	pad := strings.Repeat(" ", p.width-utf8.RuneCountInString(name))
	shown := when + p.paint(taskColour(line.LogSource), name) + pad + " " + p.paint(colour, mark) + " " + text
	return tryPrintf(p.out, "%s\n", own(shown))
}

func (p *linePrinter) paint(code, text string) string {
	if !p.style.Color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// taskColour is the same for a task wherever it is shown.
func taskColour(source wire.LogSource) string {
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, source.Stage+"\x00"+source.Task) // never fails
	all := taskColours()
	return all[hash.Sum32()%uint32(len(all))]
}
