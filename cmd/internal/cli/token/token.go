// Package token has the command token, which makes tokens with roles for others than the owner of a stack.
package token

import (
	"context"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	command := &cobra.Command{
		Use:   "token COMMAND",
		Short: "Make tokens with roles for others, list and revoke them",
		Long: `Make tokens for people and programs that ask the API of this stack, here or at the port for other
machines (--listen). Each has a role: a viewer reads all; an operator starts and steers runs as
well, commands among them; an admin may do everything. A token of a team starts and steers only what
is that team's. The log has a line for each change that somebody asked for, with the name of the
token.`,
		Example: `  spillway token create --name grafana --role viewer
  spillway token list
  spillway token revoke grafana`,
		Args: flag.UnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(createCommand(t), listCommand(t), revokeCommand(t))
	return []*cobra.Command{command}
}

func createCommand(t *tool.Tool) *cobra.Command {
	wanted := web.NewToken{Role: access.Roles()[0]}
	command := &cobra.Command{
		Use:   "create --name NAME [FLAGS]",
		Short: "Make a token for somebody and print it",
		Long: `Make a token for a person or a program and print it, once: the stack keeps its digest only. Send it
as "Authorization: Bearer TOKEN".

The exit code is 0, 1 when no stack runs or there is a token of that name, and 2 when there can be
none.`,
		Example: `  spillway token create --name grafana --role viewer > grafana.token
  spillway token create --name ci --role operator --team vision`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wanted.Name == "" {
				return &fault.UsageError{Problem: "a token needs a name", Hint: "say with --name for whom it is"}
			}
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				token, err := s.Client.MakeToken(cmd.Context(), wanted)
				if err != nil {
					return err
				}
				display.Printf(t.Out, "%s\n", token)
				return nil
			})
		},
	}
	command.Flags().StringVar(&wanted.Name, "name", "", "`NAME` of who, or what, it is for")
	command.Flags().Var(flag.Choice{Value: &wanted.Role, Of: access.Roles()}, "role", "what it may be used for")
	command.Flags().StringVar(&wanted.Team, "team", "", "`TEAM` whose it is, \"\" for the default team")
	return command
}

func listCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "list [FLAGS]",
		Short: "List for whom tokens were made",
		Long: `List for whom tokens were made, with their roles and who has made them. The tokens themselves nobody
can read again. Tokens that an admin has made count after the admin has left: revoke them then.

The exit code is 0, also when there are none, and 1 when no stack runs.`,
		Example:           "  spillway token list",
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), t, asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print them as JSON")
	return command
}

func list(ctx context.Context, t *tool.Tool, asJSON bool) error {
	return session.List(ctx, t, asJSON, "no tokens but the owner's",
		func(s *session.Session) ([]web.IssuedToken, error) { return s.Client.Tokens(ctx) },
		func(_ *session.Session, found []web.IssuedToken) error {
			table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
			display.Printf(table, "NAME\tROLE\tTEAM\tMADE\tBY\n")
			for _, one := range found {
				by := ""
				if one.MadeBy != nil {
					by = one.MadeBy.Name
				}
				display.Printf(table, "%s\t%s\t%s\t%s\t%s\n", display.CleanLine(one.Name), display.CleanLine(one.Role),
					display.CleanLine(predictor.TeamName(one.Team)), one.MadeAt.Local().Format(time.DateTime),
					display.CleanLine(by))
			}
			return table.Flush()
		})
}

func revokeCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke NAME",
		Short: "Have a token count no more",
		Long: `Have a token count no more, from the next request on.

The exit code is 0, 1 when no stack runs, and 2 when there is no token of that name.`,
		Example:           "  spillway token revoke grafana",
		Args:              flag.Positional("the name of a token"),
		ValidArgsFunction: session.Complete(t, session.TokenNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				if err := s.Client.RevokeToken(cmd.Context(), args[0]); err != nil {
					return err
				}
				t.Say("the token of %s counts no more\n", args[0])
				return nil
			})
		},
	}
}
