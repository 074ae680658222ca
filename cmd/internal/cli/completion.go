package cli

import (
	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

func completionCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the script that completes commands in a shell",
		Long: `Print a script that makes the tab key of a shell complete commands, flags, and the names of runs,
pipelines and stages, which the running stack is asked for. Where none runs, or it does not answer
within half a second, there are none to choose from, and nothing is said.

bash needs the package bash-completion; zsh needs "autoload -U compinit; compinit" in ~/.zshrc.`,
		Example: `  spillway completion bash > ~/.local/share/bash-completion/completions/spillway
  spillway completion zsh > "${fpath[1]}/_spillway"
  spillway completion fish > ~/.config/fish/completions/spillway.fish`,
		Args:              flag.Positional("the name of a shell: bash, zsh or fish"),
		ValidArgsFunction: flag.Fixed("bash", "zsh", "fish"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(t.Out, true)
			case "zsh":
				return root.GenZshCompletion(t.Out)
			case "fish":
				return root.GenFishCompletion(t.Out, true)
			default:
				return &fault.UsageError{Problem: "there is no completion for " + args[0], Hint: "give bash, zsh or fish"}
			}
		},
	}
}
