package runs

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// sizesFlags are those of `show --sizes`.
type sizesFlags struct {
	on, picture bool
	out         string
	sharedOut   bool
}

func (f *sizesFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.on, "sizes", false, "set what was predicted of the attempts beside what came")
	set.BoolVar(&f.picture, "svg", false, "with --sizes: as a picture (SVG)")
	set.Var(flag.Destination{Value: &f.out}, "out", "with --svg: write the picture to this `FILE`")
	flag.AddSharedOut(set, &f.sharedOut, "--out")
}

// check refuses flags that say nothing without each other.
func (f *sizesFlags) check(asJSON bool) error {
	switch {
	case f.picture && !f.on:
		return &fault.UsageError{Problem: "--svg draws what --sizes tells", Hint: "add --sizes"}
	case f.out != "" && !f.picture:
		return &fault.UsageError{Problem: "--out is where the picture goes", Hint: "add --sizes --svg"}
	default:
		return flag.Exclusive([]string{"--svg", "--json"}, f.picture, asJSON)
	}
}

// comparedPoints is how many attempts of each stage the tables of --sizes rest on; the engine counts over all.
const comparedPoints = 2000

// showSizes sets what was predicted of the attempts of a run beside what came.
func showSizes(ctx context.Context, t *tool.Tool, run string, asJSON bool, flags sizesFlags) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	if flags.picture {
		picture, err := s.Client.SizesPicture(ctx, run)
		if err != nil {
			return session.WithNearRuns(ctx, s, err, run)
		}
		if flags.out == "" {
			t.Say("%s", display.Own(string(picture)))
			return nil
		}
		if err := safefile.WriteFile(flags.out, picture, 0o644, flags.sharedOut); err != nil {
			return flag.RefusedOut("--out", flags.out, err)
		}
		return nil
	}
	stages, err := s.Client.Hindsight(ctx, run, comparedPoints)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	if asJSON {
		return t.WriteJSON(map[string]any{"run": run, "stages": stages})
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range display.Sizes(run, stages, style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}
