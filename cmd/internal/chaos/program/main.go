// Command program runs chaos and prints a line for each promise; `make chaos` builds what it needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/chaos"
)

func main() {
	config := chaos.Config{FillDisk: true, Output: os.Stdout}
	flag.StringVar(&config.Engine, "engine", "", "the binary of the engine")
	flag.StringVar(&config.App, "app", "", "the binary of cmd/internal/chaos/app")
	flag.IntVar(&config.Kills, "kills", 200, "how many processes are killed")
	flag.Uint64Var(&config.Seed, "seed", 1, "says when, and which")
	flag.DurationVar(&config.Left, "left", time.Minute, "for how long there is work after the last kill")
	flag.DurationVar(&config.Patience, "patience", 20*time.Minute, "the longest that one thing may take")
	keep := flag.Bool("keep", false, "keep the logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, config, *keep)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 when every promise was kept, 1 when one was broken, 2 when that could not be found out.
func run(ctx context.Context, config chaos.Config, keep bool) int {
	dir, err := os.MkdirTemp("", "spillway-chaos-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	config.Dir = dir
	began := time.Now()
	checks, err := chaos.Run(ctx, config)
	code := 0
	for _, check := range checks {
		fmt.Println(check)
		if len(check.Wrong) > 0 {
			code = 1
		}
	}
	fmt.Printf("%d kills with seed %d in %s\n", config.Kills, config.Seed, time.Since(began).Round(time.Second))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 2
	}
	if keep || code != 0 {
		fmt.Println("logs:", dir)
	} else if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 2
	}
	return code
}
