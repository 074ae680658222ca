package stack

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

func versionCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "version [FLAGS]",
		Short: "Print the version of this binary",
		Long:  `Print the version of this binary, the Go version that built it, and the platform.`,
		Example: `  spillway version
  spillway version --json | jq -r .version`,
		Args: flag.Positional(),
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return t.WriteJSON(versions{
					Version: t.Deps.Version, Go: runtime.Version(),
					Platform: runtime.GOOS + "/" + runtime.GOARCH, Experiments: ownExperiments(),
				})
			}
			t.Say("spillway %s %s %s/%s GOEXPERIMENT=%s\n", t.Deps.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
				display.OrDash(ownExperiments()))
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print them as JSON")
	return command
}

// versions is the JSON of `version`.
type versions struct {
	Version     string `json:"version"`
	Go          string `json:"go"`
	Platform    string `json:"platform"`
	Experiments string `json:"goexperiment"`
}

// ownExperiments is the GOEXPERIMENT that this binary was built with.
func ownExperiments() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return experiments(info)
}

func experiments(info *debug.BuildInfo) string {
	for _, setting := range info.Settings {
		if setting.Key == "GOEXPERIMENT" {
			return setting.Value
		}
	}
	return ""
}
