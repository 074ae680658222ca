package stack

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/config"
)

func serverCommand(t *tool.Tool) *cobra.Command {
	flags, entering := &flag.Stack{NoPool: true}, &serverEntry{}
	command := &cobra.Command{
		Use:   "server [FLAGS]",
		Short: "Start the stack without a pool: other machines join it and run the stages",
		Long: `Start what "spillway dev" starts, but for the pool of this machine: Temporal, NATS, the autoscaler,
triggers, the API and the page. Stages run on the machines that join with "spillway agent", and as
functions. Apps given with --app are built and served; without it those that were served before are
served again. None is built again when its sources change.

Other machines reach it at --listen, one port that speaks TLS and carries everything: what agents
need, the API, and the page for browsers that "spillway open" has logged in. Its certificate is one
of the stack's own authority, made at the first start and renewed by itself, which agents know by
the token that they join with; or the one that --tls-certificate names. Everything else listens on
the loopback interface only.

With Temporal, NATS, artifacts and ledger of one's own, a stack may have several servers: each is
started with the same configuration. With --join another one is given the keys of the stack, once,
over TLS, and keeps them in its state directory; "spillway hosts token --server" prints what it
shows for that. A --join in a configuration file is for agents.

The exit code is 0 after Ctrl-C, 1 when the stack does not start or ends by itself, and 2 when a
flag, a variable or an app is wrong.`,
		Example: `  spillway server --listen 0.0.0.0:7475 --advertise train.example.com
  spillway hosts token
  spillway server --listen :7475 --tls-certificate tls.crt --tls-key tls.key
  spillway server --config spillway.yaml --join https://10.0.0.7:7475 --token-file server-token`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := refusePool(cmd.Flags()); err != nil {
				return err
			}
			if err := entering.enter(cmd.Context(), t, flags); err != nil {
				return err
			}
			return serve(cmd.Context(), t, flags)
		},
	}
	command.Flags().StringArrayVar(&flags.Apps, "app", nil,
		"`DIR` of a Go main package, or a binary, to serve; may be given several times")
	flags.Add(command.Flags())
	entering.add(command.Flags())
	for _, name := range ofPool {
		_ = command.Flags().MarkHidden(name) // each is there
	}
	return command
}

// ofPool are the flags that are about the pool of this machine.
var ofPool = []string{"pool-cpus", "pool-memory", "host-price", "training-address"}

// refusePool refuses flags about a pool that there is not. A configuration file may be that of agents as well.
func refusePool(flags *pflag.FlagSet) error {
	for _, name := range ofPool {
		if flags.Changed(name) && config.OriginOf(flags.Lookup(name)).Source == config.CommandLine {
			return &fault.UsageError{
				Problem: "--" + name + ": a server has no pool of its own",
				Hint:    "give it to `spillway agent` on the machines that run stages, or start `spillway dev`",
			}
		}
	}
	return nil
}
