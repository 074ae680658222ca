package stack

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
)

// serverEntry is how a machine becomes one more server of a stack.
type serverEntry struct {
	all               *pflag.FlagSet // of the command
	server, tokenFile string
}

func (s *serverEntry) add(flags *pflag.FlagSet) {
	s.all = flags
	flags.StringVar(&s.server, "join", "",
		"`URL` of a server of the stack that this one is to be one more of, at its first start")
	flags.StringVar(&s.tokenFile, "token-file", "", "`FILE` with the token that lets this server in, at its first start")
}

// enter has the state directory have the keys of the stack, unless it has some already: then it is a server of it, or
// of another, which what all share tells.
func (s *serverEntry) enter(ctx context.Context, t *tool.Tool, stack *flag.Stack) error {
	if s.server == "" || config.OriginOf(s.all.Lookup("join")).Source == config.File {
		return nil
	}
	dir, err := t.MakeStateDir()
	if err != nil {
		return err
	}
	if has, err := access.HasKeys(dir); err != nil || has {
		return err
	}
	if because := stack.AloneBecause(); because != "" { // else it would be given the keys, and start another stack
		return &fault.UsageError{
			Problem: "--join: this machine cannot be one more server of a stack, because it would have " + because,
			Hint:    "servers of one stack share what they work with: give this one the configuration of the first",
		}
	}
	server, err := host.CheckServer(s.server)
	if err != nil {
		return &fault.UsageError{Problem: fmt.Sprintf("--join %s: %v", flag.Shown(s.server), err)}
	}
	const hint = "write what `spillway hosts token --server` prints on a server of the stack into a file that its " +
		"owner alone reads: (umask 077; spillway hosts token --server > FILE)"
	if s.tokenFile == "" {
		return &fault.UsageError{
			Problem: "this machine is no server of the stack of " + server + " yet, and there is no --token-file", Hint: hint,
		}
	}
	text, err := secrecy.ReadFile(s.tokenFile, 64<<10)
	if err != nil {
		return &fault.UsageError{Problem: "--token-file: " + err.Error(), Hint: hint}
	}
	token, err := join.ParseToken(string(text))
	if err != nil {
		return &fault.UsageError{Problem: "--token-file: " + err.Error(), Hint: hint}
	}
	err = host.EnterStack(ctx, dir, server, token, join.ServerRequest{
		Server: host.Name(), Version: t.Deps.Version, At: time.Now(),
	})
	if err != nil {
		return err
	}
	t.Say("this machine has the keys of the stack of %s; it needs neither --join nor the token any more\n", server)
	return nil
}
