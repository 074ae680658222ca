// Package hosts has the commands about the machines that run stages: which there are, and what lets others join.
package hosts

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command { return []*cobra.Command{hostsCommand(t)} }

func hostsCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "hosts [FLAGS]",
		Short: "List the machines that run stages, drain and remove them, and let others join",
		Long: `List the machines that run stages: this one, unless "spillway server" started the stack, and those
that joined it with "spillway agent". Each is "up" until 15 seconds after it last said so, and then
"lost"; one whose agent was told to end is "stopped", and is forgotten after 30 days. One that is
drained takes no new work. USED is what running attempts have of its CAPACITY, SEEN when it was
heard of last.
Of several servers a second list says which there are, which of them leads, since when and in which
term, and when one that is there no more was seen last, for an hour.

The exit code is 0, also when there are none, and 1 when no stack runs.`,
		Example: `  spillway hosts
  spillway hosts token              what another machine joins with
  spillway hosts drain gpu-1        before it is shut down
  spillway hosts --json | jq -r '.[] | select(.state == "lost") | .name'`,
		Args:              flag.UnknownVerb,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), t, asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the hosts as JSON")
	command.AddCommand(tokenCommand(t), drainCommand(t), undrainCommand(t), removeCommand(t))
	return command
}

func list(ctx context.Context, t *tool.Tool, asJSON bool) error {
	const none = "no hosts: `spillway hosts token` prints what one joins with"
	return session.With(ctx, t, func(s *session.Session) error {
		found, err := s.Client.Hosts(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return t.WriteJSON(append([]web.Host{}, found...))
		}
		style, _ := t.StyleOf(t.Out)
		lines, now := []string{none}, time.Now()
		if len(found) > 0 {
			lines = display.Hosts(found, now, style)
		}
		if len(s.Stack.Servers) > 1 {
			lines = append(append(lines, ""), display.ServerTable(s.Stack.Servers, now, style)...)
		}
		for _, line := range lines {
			t.Say("%s\n", display.Own(line))
		}
		return nil
	})
}

func tokenCommand(t *tool.Tool) *cobra.Command {
	var renew, server bool
	command := &cobra.Command{
		Use:   "token [FLAGS]",
		Short: "Print what another machine joins with",
		Long: `Print the token that "spillway agent --join" takes on another machine: the digest of this stack's
certificate, by which that machine knows that it talks to this one, and a secret, by which this one
knows that it may join. Whoever has the token can add a machine, which is given tasks with their
input: keep it as you keep passwords, in a file that only its owner reads.

With --new another secret is made, and the one before lets nobody join any more. Machines that have
joined go on: each has a token of its own, which counts until "spillway hosts remove".

With --server it is what "spillway server --join" takes on a machine that is to be one more server
of this stack, which is given the keys of all that the stack knows. Whoever has it has everything:
carry it over, start the other server, and make another one with --new.

The exit code is 0, 1 when no stack runs, and 2 when it listens for no other machine (--listen) or
can have no other server.`,
		Example: `  spillway hosts token > token
  spillway hosts token --new > token
  (umask 077; spillway hosts token --server > server-token)`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				token, err := s.Client.JoinToken(cmd.Context(), server, renew)
				if err != nil {
					return err
				}
				display.Printf(t.Out, "%s\n", token)
				return nil
			})
		},
	}
	command.Flags().BoolVar(&server, "server", false, "print what another server of the stack joins with")
	command.Flags().BoolVar(&renew, "new", false, "make another one, and have the one before count no more")
	return command
}

func drainCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "drain HOST",
		Short: "Have a machine take no new work",
		Long: `Have a machine take no new work from the next second on. What runs there goes on to its end;
"spillway hosts" shows under USED how much that still is. It stays drained when it, or the stack,
starts anew, until "spillway hosts undrain".

The exit code is 0, 1 when no stack runs, and 2 when there is no such machine.`,
		Example:           "  spillway hosts drain gpu-1",
		Args:              flag.Positional("the name of a host"),
		ValidArgsFunction: session.Complete(t, session.HostNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				if err := s.Client.DrainHost(cmd.Context(), args[0], true); err != nil {
					return err
				}
				t.Say("host %s takes no new work; what runs there goes on (`spillway hosts`)\n", args[0])
				return nil
			})
		},
	}
}

func undrainCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "undrain HOST",
		Short: "Have a machine that was drained take work again",
		Long: `Have a machine that was drained take work again.

The exit code is 0, also when it was not drained, 1 when no stack runs, and 2 when there is no such
machine.`,
		Example:           "  spillway hosts undrain gpu-1",
		Args:              flag.Positional("the name of a host"),
		ValidArgsFunction: session.Complete(t, session.HostNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				if err := s.Client.DrainHost(cmd.Context(), args[0], false); err != nil {
					return err
				}
				t.Say("host %s takes work\n", args[0])
				return nil
			})
		},
	}
}

func removeCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "remove HOST",
		Short: "Forget a machine that has joined",
		Long: `Forget a machine that has joined: what it was given to show does not count any more, so that it can
read and tell nothing from now on. Attempts that it runs are lost and run elsewhere; drain it first
where they are to end there. It can join again with a token of "spillway hosts token".

The exit code is 0, 1 when no stack runs or the machine is the stack's own, and 2 when there is no
such machine.`,
		Example:           "  spillway hosts drain gpu-1 && spillway hosts remove gpu-1",
		Args:              flag.Positional("the name of a host"),
		ValidArgsFunction: session.Complete(t, session.HostNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return session.With(cmd.Context(), t, func(s *session.Session) error {
				if err := s.Client.RemoveHost(cmd.Context(), args[0]); err != nil {
					return err
				}
				t.Say("host %s is removed\n", args[0])
				return nil
			})
		},
	}
}
