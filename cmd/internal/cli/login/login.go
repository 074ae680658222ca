// Package login has the commands that let a person in at a server of another machine: login, logout, whoami and
// sessions.
package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/logins"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{loginCommand(t), logoutCommand(t), whoamiCommand(t), sessionsCommand(t)}
}

func loginCommand(t *tool.Tool) *cobra.Command {
	var authorities string
	command := &cobra.Command{
		Use:   "login --server URL [FLAGS]",
		Short: "Sign in at a server of another machine",
		Long: `Sign in at a server of another machine with its identity provider (--oidc-issuer there). The command
prints a link to open in any browser, on this machine or another, and a code. Sign in there, compare
the code, and let the command line in; the command waits for that for ten minutes.

What the server lets it in with is kept in ~/.config/spillway/logins.json ($XDG_CONFIG_HOME), which
only this user can read. Commands show it when they are given the same --server, or
SPILLWAY_SERVER; it is renewed by the server as long as the identity provider stands for it, and
ends after the time that the server sets (12 hours unless --oidc-session says otherwise).

The exit code is 0, 1 when nobody was let in, and 2 when the server is no URL or has no identity
provider.`,
		Example: `  spillway login --server https://train.example.com:7475
  spillway runs --server https://train.example.com:7475
  SPILLWAY_SERVER=https://train.example.com:7475 spillway top`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return login(cmd.Context(), t, authorities)
		},
	}
	command.Flags().StringVar(&authorities, "tls-ca", "",
		"`FILE` of the certificates, in PEM, of who has signed the server's (default $SPILLWAY_TLS_CA, else those that "+
			"this machine trusts)")
	return command
}

// needServer is the URL that --server names, which has to be given.
func needServer(t *tool.Tool) (string, error) {
	server, err := session.Server(t)
	if err == nil && server == "" {
		err = &fault.UsageError{
			Problem: "no server is named", Hint: "name one with --server URL, such as https://train.example.com:7475",
		}
	}
	return server, err
}

func login(ctx context.Context, t *tool.Tool, caFile string) error {
	server, err := needServer(t)
	if err != nil {
		return err
	}
	file, err := session.Logins(t)
	if err != nil {
		return err
	}
	authorities, err := authoritiesOf(t, caFile)
	if err != nil {
		return err
	}
	calls, err := client.NewElsewhere(server, "", authorities)
	if err != nil {
		return &fault.UsageError{Problem: "--tls-ca " + caFile + ": " + err.Error()}
	}
	defer calls.Close()
	device, err := calls.NewDevice(ctx)
	if err != nil {
		return fmt.Errorf("sign in at %s: %w", server, err)
	}
	t.Complain("Open this link in a browser, sign in, and let the command line in that shows the code %s:\n  %s\n",
		display.CleanLine(device.UserCode), display.CleanLine(device.VerificationURIComplete))
	made, err := await(ctx, calls.AwaitDevice, device)
	if err != nil {
		return fmt.Errorf("sign in at %s: %w", server, err)
	}
	kept := logins.Login{Token: made.Token, Name: made.Name, CA: authorities}
	if made.Until != nil {
		kept.Until = *made.Until
	}
	if err := file.Put(server, kept); err != nil {
		return err
	}
	t.Say("signed in at %s as %s, %s, until %s\n", server, display.CleanLine(made.Name), roleOf(made.Role, made.Team),
		kept.Until.Local().Format(time.DateTime))
	return nil
}

// authoritiesOf reads the file of --tls-ca, or the one of the environment; empty for none.
func authoritiesOf(t *tool.Tool, file string) (string, error) {
	if file != "" {
		return session.Authorities("--tls-ca", file)
	}
	return session.AuthoritiesOfEnvironment(t)
}

// longestPause is how long it is waited at most between two questions while the server does not answer.
const longestPause = 15 * time.Second

// await asks until somebody has let this command line in (RFC 8628, section 3.4), or its code has ended. A server that
// does not answer meanwhile is asked again, less often.
func await(
	ctx context.Context, ask func(ctx context.Context, code string) (web.MadeSession, error), device web.DeviceCode,
) (made web.MadeSession, err error) {
	interval := max(time.Second, time.Duration(device.Interval)*time.Second)
	end := time.Now().Add(cmp.Or(time.Duration(device.ExpiresIn)*time.Second, access.DeviceLife))
	for pause := interval; ; {
		if !wait.For(ctx, pause) {
			return made, ctx.Err()
		}
		made, err = ask(ctx, device.DeviceCode)
		switch {
		case err == nil && made.Pending:
			pause = interval
		case isSilent(err) && ctx.Err() == nil && time.Now().Before(end):
			pause = min(2*pause, longestPause)
		default:
			return made, err
		}
	}
}

// isSilent says that a server does not answer, or can do nothing, for now.
func isSilent(err error) bool {
	refused, is := errors.AsType[*web.Error](err)
	return errors.Is(err, client.ErrUnreachable) ||
		is && (refused.Status >= http.StatusInternalServerError || refused.Status == http.StatusTooManyRequests)
}

func roleOf(role, team string) string {
	text := display.CleanLine(role)
	if team != "" {
		text += " of team " + display.CleanLine(team)
	}
	return text
}

func logoutCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "logout --server URL",
		Short: "Sign out at a server of another machine",
		Long: `End the session that "spillway login" has begun at a server, and forget what it was shown.

The exit code is 0, also when there was none any more, 1 when the server cannot be told, in which
case the session is forgotten here and ends there by itself, and 2 when no server is named.`,
		Example:           "  spillway logout --server https://train.example.com:7475",
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return logout(cmd.Context(), t) },
	}
}

func logout(ctx context.Context, t *tool.Tool) error {
	server, err := needServer(t)
	if err != nil {
		return err
	}
	file, err := session.Logins(t)
	if err != nil {
		return err
	}
	kept, known, err := file.Get(server)
	if err != nil {
		return err
	}
	if !known {
		t.Say("nobody is signed in at %s\n", server)
		return nil
	}
	calls, err := client.NewElsewhere(server, kept.Token, kept.CA)
	if err != nil {
		return err
	}
	defer calls.Close()
	told := calls.SignOut(ctx)
	if refused, is := errors.AsType[*web.Error](told); is && refused.Status < 500 {
		told = nil // it has ended before
	}
	if err := file.Remove(server); err != nil {
		return err
	}
	if told != nil {
		return fmt.Errorf("sign out at %s, where the session ends at %s: %w", server,
			kept.Until.Local().Format(time.DateTime), told)
	}
	t.Say("signed out at %s\n", server)
	return nil
}

func whoamiCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "whoami [FLAGS]",
		Short: "Say as whom commands ask, and until when",
		Long: `Say as whom commands ask the stack, or the server that --server names: name, role, team, and until
when the session lasts.

The exit code is 0, and 1 when no stack runs or the server has not let you in.`,
		Example: `  spillway whoami
  spillway whoami --server https://train.example.com:7475 --json`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				who, err := s.Client.Session(cmd.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return t.WriteJSON(who)
				}
				t.Say("%s, %s\n", display.CleanLine(who.Name), roleOf(who.Role, who.Team))
				if who.Subject != "" {
					t.Say("subject %s of %s\n", display.CleanLine(who.Subject), display.CleanLine(who.Issuer))
				}
				if who.Until != nil {
					t.Say("until %s\n", who.Until.Local().Format(time.DateTime))
				}
				return nil
			})
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return command
}

func sessionsCommand(t *tool.Tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "sessions COMMAND",
		Short: "List who is signed in, and end sessions",
		Long: `List who is signed in with the identity provider, or has shown a token in a browser, and end
sessions. The session of the owner's own browser, which "spillway open" has logged in, is none of
them.`,
		Example: `  spillway sessions list
  spillway sessions end ada@example.com`,
		Args: flag.UnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(listCommand(t), endCommand(t))
	return command
}

func listCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "list [FLAGS]",
		Short: "List who is signed in",
		Long: `List who is signed in, with their roles, for what, and until when at the latest.

The exit code is 0, also when there is nobody, and 1 when no stack runs.`,
		Example:           "  spillway sessions list",
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return session.List(ctx, t, asJSON, "nobody is signed in",
				func(s *session.Session) ([]web.SignedIn, error) { return s.Client.Sessions(ctx) },
				func(_ *session.Session, found []web.SignedIn) error {
					table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
					display.Printf(table, "NAME\tROLE\tTEAM\tFOR\tSINCE\tUNTIL\n")
					for _, one := range found {
						display.Printf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", display.CleanLine(one.Name), display.CleanLine(one.Role),
							display.CleanLine(predictor.TeamName(one.Team)), display.CleanLine(one.Way),
							one.MadeAt.Local().Format(time.DateTime), one.Until.Local().Format(time.DateTime))
					}
					return table.Flush()
				})
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print them as JSON")
	return command
}

func endCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "end NAME",
		Short: "End all sessions of somebody",
		Long: `End all sessions of somebody, by name or by subject, at all servers. Who is still let in by the
identity provider may sign in again: take them out of its groups first.

The exit code is 0, 1 when no stack runs, and 2 when nobody of that name is signed in.`,
		Example:           "  spillway sessions end ada@example.com",
		Args:              flag.Positional("the name of who is signed in"),
		ValidArgsFunction: session.Complete(t, names),
		RunE: func(cmd *cobra.Command, args []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				ended, err := s.Client.EndSessions(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				t.Say("%s of %s ended\n", display.Count(ended, "session"), display.CleanLine(args[0]))
				return nil
			})
		},
	}
}

// names are those of who is signed in.
func names(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	all, err := calls.Sessions(ctx)
	for _, one := range all {
		found = append(found, cobra.CompletionWithDesc(one.Name, one.Way))
	}
	return found, err
}
