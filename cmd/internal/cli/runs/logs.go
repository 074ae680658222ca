package runs

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
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// logFlags are the flags of `logs`.
type logFlags struct {
	query                    logs.Query
	since                    time.Duration
	noFollow, times, encoded bool
}

func logsCommand(t *tool.Tool) *cobra.Command {
	var flags logFlags
	command := &cobra.Command{
		Use:   "logs RUN [STAGE] [FLAGS]",
		Short: "Show what the attempts of a run print",
		Long: `Show what the attempts of a run have printed to standard output and standard error, and what they
print until the run has ended. Each line begins with its stage, task and attempt, then "|" for
standard output, "!" for standard error, or "*" where spillway says something about the output
itself. A run whose event was just taken is waited for, a minute at most. Interrupting it ends the
display only. Nothing is redacted: what a program prints is kept for a week. With --json each line
is one JSON object, on a line of its own.`,
		Example: `  spillway logs digits-7f3a9c
  spillway logs digits-7f3a9c train --tail 20
  spillway logs digits-7f3a9c --task train-2 --no-follow --json | jq -r .text`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return flag.Positional("the name of a run", "the name of a stage")(cmd, args)
			}
			return flag.Positional("the name of a run")(cmd, args)
		},
		ValidArgsFunction: session.Complete(t, session.RunNames, session.StageNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.query.Run = args[0]
			if len(args) == 2 {
				flags.query.Stage = args[1]
			}
			return showLogs(cmd.Context(), t, flags)
		},
	}
	set := command.Flags()
	set.StringVar(&flags.query.Task, "task", "", "keep only lines of this `TASK`")
	set.Var(flag.Count{Value: &flags.query.Attempt, Least: 1}, "attempt", "keep only lines of attempts with this number")
	set.Var(flag.Count{Value: &flags.query.Tail, Least: 1}, "tail", "begin with the last so many lines")
	set.Var(flag.Span{Value: &flags.since}, "since", "begin with the lines of the last so much time")
	set.BoolVar(&flags.noFollow, "no-follow", false, "do not wait for more lines")
	set.BoolVar(&flags.times, "timestamps", false, "begin each line with its time")
	set.BoolVar(&flags.encoded, "json", false, "print each line as a JSON object, as it was printed")
	return command
}

func showLogs(ctx context.Context, t *tool.Tool, flags logFlags) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	if flags.since > 0 {
		flags.query.Since = time.Now().Add(-flags.since)
	}
	style, _ := t.StyleOf(t.Out)
	printer := &linePrinter{out: t.Out, style: style, times: flags.times}
	show := printer.show
	if flags.encoded {
		encoder := json.NewEncoder(display.CleanWriter{To: t.Out})
		encoder.SetEscapeHTML(false)
		show = func(line logs.Line) error { return encoder.Encode(line) }
	}
	shown := 0
	ctx, stop := t.WhileRead(ctx)
	defer stop()
	if !flags.noFollow {
		if err := s.AwaitRun(ctx, t, flags.query.Run); err != nil {
			return session.WithNearRuns(ctx, s, err, flags.query.Run)
		}
	}
	err = s.Client.Logs(ctx, flags.query, !flags.noFollow, func(line logs.Line) error {
		shown++
		return show(line)
	})
	if err != nil && errors.Is(ctx.Err(), context.Canceled) && !flags.noFollow {
		return nil // whoever follows ends it that way; the run goes on
	}
	if err != nil {
		return session.WithNearRuns(ctx, s, err, flags.query.Run)
	}
	if shown == 0 {
		t.Complain("no lines\n")
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

// SGR codes of ECMA-48. Tasks are told apart by colours that are readable on light and dark grounds; red and yellow are
// left for what stands out.
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
	return display.TryPrintf(p.out, "%s\n", display.Own(shown))
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
