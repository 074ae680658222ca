package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (t *tool) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Long:    `Print the version of this binary, the Go version that built it, and the platform.`,
		Example: `  spillway version`,
		Args:    positional(),
		RunE: func(*cobra.Command, []string) error {
			t.say("spillway %s %s %s/%s GOEXPERIMENT=%s\n", t.deps.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, orDash(ownExperiments()))
			return nil
		},
	}
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
