package runs

import (
	"context"
	"fmt"
	"html"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

func openCommand(t *tool.Tool) *cobra.Command {
	var noBrowser bool
	command := &cobra.Command{
		Use:   "open [RUN] [FLAGS]",
		Short: "Open the page in a browser, logged in",
		Long: `Print a link to the page of the running stack, or to that of a run on it, and open it where this
machine has a browser. The link logs one browser in, once, within ten minutes; the browser then
stays logged in, to Temporal's web UI too, until it has not been used for a week.

Where the stack has a port for other machines (--listen), a second link is for a browser there,
which has to be told to trust the certificate unless it is one that you gave. Otherwise forward the
port under its own number, as "ssh -L 7474:127.0.0.1:7474 HOST" does, and open the first link there.`,
		Example: `  spillway open
  spillway open digits-7f3a9c
  spillway open --no-browser`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return flag.Positional("the name of a run")(cmd, args)
		},
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return open(cmd.Context(), t, strings.Join(args, ""), noBrowser)
		},
	}
	command.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the link")
	return command
}

func open(ctx context.Context, t *tool.Tool, run string, noBrowser bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	path := "/"
	if run != "" {
		if _, err := s.Client.Run(ctx, run); err != nil {
			return session.WithNearRuns(ctx, s, err, run)
		}
		path = "/runs/" + url.PathEscape(run)
	}
	link, err := s.Link(ctx, path)
	if err != nil {
		return err
	}
	t.Say("%s\n", link)
	if s.Server != "" {
		return nil
	}
	elsewhere, err := s.LinkElsewhere(ctx, path)
	if err != nil {
		return err
	}
	if elsewhere != "" {
		t.Say("%s (from another machine)\n", elsewhere)
	}
	if noBrowser || t.Deps.OpenBrowser == nil {
		return nil
	}
	// All users of a machine see the arguments of its programs: the browser is shown a file that only its owner can read.
	state, address := s.Stack.StateDir, html.EscapeString(link)
	page := fmt.Sprintf("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=%s\"><a href=\"%s\">Spillway</a>",
		address, address)
	if err := access.Write(state, access.PointerFile, page); err != nil {
		return fault.Advise(fmt.Errorf("open a browser: %w", err), "open the link yourself")
	}
	shown, err := t.Deps.OpenBrowser(ctx, filepath.Join(state, access.PointerFile))
	switch {
	case err != nil:
		t.Complain("no browser was opened (%v): open the link yourself\n", err)
	case shown: // but one in a sandbox may not read the file
		t.Complain("if the browser shows no page, open the link yourself\n")
	}
	return nil
}
