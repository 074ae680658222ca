package cli

import (
	"context"
	"fmt"
	"html"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access"
)

func (t *tool) openCommand() *cobra.Command {
	var noBrowser bool
	command := &cobra.Command{
		Use:   "open [RUN] [FLAGS]",
		Short: "Open the page in a browser, logged in",
		Long: `Print a link to the page of the running stack, or to that of a run on it, and open it where this
machine has a browser. The link logs one browser in, once, within ten minutes; the browser then
stays logged in, to Temporal's web UI too, until it has not been used for a week.

On another machine, forward the port under its own number, as "ssh -L 7474:127.0.0.1:7474 HOST"
does, and open the link there.`,
		Example: `  spillway open
  spillway open digits-7f3a9c
  spillway open --no-browser`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return positional("the name of a run")(cmd, args)
		},
		ValidArgsFunction: t.complete(runNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.open(cmd.Context(), strings.Join(args, ""), noBrowser)
		},
	}
	command.Flags().BoolVar(&noBrowser, "no-browser", false, "only print the link")
	return command
}

func (t *tool) open(ctx context.Context, run string, noBrowser bool) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	path := "/"
	if run != "" {
		if _, err := session.client.Run(ctx, run); err != nil {
			return t.withNearRuns(ctx, session, err, run)
		}
		path = "/runs/" + url.PathEscape(run)
	}
	link, err := session.link(ctx, path)
	if err != nil {
		return err
	}
	t.say("%s\n", link)
	if noBrowser || t.deps.OpenBrowser == nil {
		return nil
	}
	// All users of a machine see the arguments of its programs: the browser is shown a file that only its owner can read.
	state, address := session.stack.StateDir, html.EscapeString(link)
	page := fmt.Sprintf("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=%s\"><a href=\"%s\">Spillway</a>", address, address)
	if err := access.Write(state, access.PointerFile, page); err != nil {
		return &advised{fmt.Errorf("open a browser: %w", err), "open the link yourself"}
	}
	shown, err := t.deps.OpenBrowser(ctx, filepath.Join(state, access.PointerFile))
	switch {
	case err != nil:
		t.complain("no browser was opened (%v): open the link yourself\n", err)
	case shown: // but one in a sandbox may not read the file
		t.complain("if the browser shows no page, open the link yourself\n")
	}
	return nil
}

// link returns the address of a view of the page with a code behind it that logs one browser in.
func (s *session) link(ctx context.Context, path string) (string, error) {
	code, err := s.client.NewLogin(ctx)
	if err != nil {
		return "", err
	}
	return s.stack.Addresses.HTTP + path + "#login=" + code, nil
}

// OpenBrowser shows a file in the browser of whoever sits before this machine, and says whether there is one; it is what Deps has outside
// tests.
func OpenBrowser(ctx context.Context, file string) (shown bool, err error) {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return false, nil // nobody sits here
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return false, nil //nolint:nilerr // then there is none, and the link was printed
	}
	return true, exec.CommandContext(ctx, path, file).Run()
}
