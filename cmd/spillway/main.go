// Command spillway is the engine and its command line.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
)

func main() {
	os.Exit(run())
}

func run() int {
	runtime.MemProfileRate = 0                // nobody can ask for a profile, and what is noted for one takes 6 MiB
	if err := secrecy.Conceal(); err != nil { // before anything is read from the environment
		fmt.Fprintln(os.Stderr, "warning: other programs of this user may read this one's secrets:", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 1)
	cli.Catch(signals)
	interrupted := cli.Interrupts(signals, stop, func() { os.Exit(1) })
	return cli.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr, cli.Deps{
		StartEngine: cli.Embedded,
		Version:     version(),
		Stdin:       os.Stdin,
		Environment: os.LookupEnv,
		Environ:     os.Environ,
		Interrupted: interrupted,
		OpenBrowser: cli.OpenBrowser,
		ProbeModel:  engine.ProbeModel,
		Executor:    engine.Executor,
		Root:        os.Geteuid() == 0,
	})
}

// version is that of the module that this binary was built from; "(devel)" from a source tree without a tag.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
