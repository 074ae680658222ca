// Package stack has the commands about the stack and the machine under it: dev, agent, doctor, version.
package stack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/apps"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		devCommand(t), serverCommand(t), agentCommand(t), gcCommand(t), ledgerCommand(t), doctorCommand(t),
		configCommand(t), pythonCommand(t), versionCommand(t),
	}
}

func devCommand(t *tool.Tool) *cobra.Command {
	flags := &flag.Stack{}
	command := &cobra.Command{
		Use:   "dev [FLAGS]",
		Short: "Start the whole stack on this machine and follow its runs",
		Long: `Start Temporal, NATS, the pool, local functions and the autoscaler in one process, listening on the
loopback interface only unless --listen says otherwise; print the addresses when a run could be
started; and print a line for what happens until Ctrl-C. The state directory keeps everything: runs
that were going on resume at the next start.

Apps given with --app are built, served, and built again when their sources change. A build that
fails prints what the compiler said, and the build before it stays in service. Runs go on with the
build they started with. Without --app the apps that were served before are served again.

An alert is raised when the goal of a run is going to be missed, and another one when that is over:
it is shown here and on the page, published on NATS, and posted to each --alert-webhook as JSON,
again and again for ten minutes while the receiver is away.

With --artifacts s3://... artifacts are kept in a bucket. Credentials are those of AWS's own tools
(AWS_ACCESS_KEY_ID, AWS_PROFILE, ~/.aws, a role), and so is a region that the location leaves out.

Traces, one per run, go to a collector when the environment says so as OpenTelemetry has it:
OTEL_EXPORTER_OTLP_ENDPOINT (such as http://127.0.0.1:4318) or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME; OTEL_SDK_DISABLED=true turns them off.

The exit code is 0 after Ctrl-C, 1 when the stack does not start or ends by itself, and 2 when a
flag, a variable or an app is wrong.`,
		Example: `  spillway dev --app ./myapp
  spillway dev --app ./myapp --function-price-factor 10 --value-of-time 0.5
  spillway dev --app ./myapp --no-burst --state ./try
  spillway dev --app ./myapp --artifacts 's3://my-bucket/spillway?region=eu-west-1'
  spillway dev --app ./myapp --alert-webhook https://hooks.example.com/alerts
  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 spillway dev --app ./myapp`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), t, flags) },
	}
	command.Flags().StringArrayVar(&flags.Apps, "app", nil,
		"`DIR` of a Go main package, or a binary, to serve; may be given several times")
	flags.Add(command.Flags())
	return command
}

// serve starts a stack and tells what happens until it ends.
func serve(ctx context.Context, t *tool.Tool, flags *flag.Stack) (err error) {
	if running, err := session.ConnectHere(ctx, t); err == nil {
		running.Client.Close()
		return fault.Advise(
			fmt.Errorf("a stack runs on %s already: %s, process %d", running.Stack.StateDir, running.Stack.Addresses.HTTP,
				running.Stack.PID),
			"stop it first, or use another state directory with --state DIR",
		)
	} else if !errors.Is(err, session.ErrNoStack) {
		return err
	}
	served, err := devApps(ctx, t, flags.Apps)
	if err != nil {
		return err
	}
	flags.AppsAsBefore = len(flags.Apps) == 0
	s, err := session.Start(ctx, t, flags, served, true)
	if err != nil {
		return err
	}
	page := s.Stack.Addresses.HTTP + " (`spillway open` logs a browser in)"
	if tool.IsTerminal(t.Out) { // a file or a journal may be read by others while the link is good
		link, err := s.Link(ctx, "/")
		if err != nil {
			return errors.Join(err, s.Close(ctx))
		}
		page = link + " (logs one browser in, within 10 minutes; `spillway open` prints another)"
	}
	sayAddresses(t, s.Stack, page)

	following, stop := context.WithCancel(ctx)
	var working sync.WaitGroup
	output := &lines{tool: t}
	working.Go(func() { followAll(following, s.Client, output, s.Stack.StartedAt) })
	for i, source := range flags.Apps {
		if flags.NoPool { // a server changes only when it is told to
			break
		}
		working.Go(func() { reloadOnChange(following, t, s.Client, output, source, served[i].Digest) })
	}
	select {
	case <-ctx.Done():
		output.printf("stopping; running attempts are told to end (Ctrl-C again stops at once)\n")
	case <-s.Engine.Done():
		err = s.Engine.Err()
		if err == nil {
			err = errors.New("the stack ended")
		}
	}
	stop()
	working.Wait()
	return errors.Join(err, s.CloseForcibly(ctx, t.Deps.Interrupted))
}

// devApps builds the sources; without any it takes the newest stored build of every app.
func devApps(ctx context.Context, t *tool.Tool, sources []string) ([]build.App, error) {
	if len(sources) > 0 {
		return apps.BuildAll(ctx, t, sources)
	}
	dir, err := t.MakeStateDir()
	if err != nil {
		return nil, err
	}
	return build.NewStore(dir, nil).Newest()
}

func sayAddresses(t *tool.Tool, stack web.Stack, page string) {
	t.Say("spillway %s is ready\n", stack.Version)
	t.Say("  page          %s\n", page)
	t.Say("  API           %s (header: %s)\n", stack.Addresses.HTTP, filepath.Join(stack.StateDir, access.HeaderFile))
	if stack.Addresses.TemporalUI != "" {
		t.Say("  Temporal UI   %s\n", stack.Addresses.TemporalUI)
	}
	t.Say("  Temporal      %s\n", stack.Addresses.Temporal)
	t.Say("  NATS          %s\n", stack.Addresses.NATS)
	if stack.Addresses.TLS != "" {
		t.Say("  other hosts   %s (`spillway hosts token` prints what they join with, and with --server what servers do)\n",
			stack.Addresses.TLS)
	}
	if len(stack.Servers) > 1 {
		t.Say("  servers       %s\n", display.Servers(stack.Servers))
	}
	t.Say("  state         %s (log: %s)\n", stack.StateDir, filepath.Join(stack.StateDir, "spillway.log"))
	if stack.Artifacts != "" && stack.Artifacts != engine.InFiles {
		t.Say("  artifacts     %s\n", stack.Artifacts)
	}
	for _, note := range stack.ArtifactsNotes {
		t.Complain("note: %s\n", note)
	}
	pool := "none here: hosts that join run stages"
	if len(stack.PoolCPUs) > 0 {
		pool = fmt.Sprintf("CPUs %s at %s per hour", flag.FormatCPUs(stack.PoolCPUs), stack.HostPricePerHour())
	}
	t.Say("  pool          %s\n", pool)
	if stack.Functions.Enabled {
		more := ""
		if len(stack.PoolCPUs) > 0 {
			more = " (--no-burst gives them to the pool)"
		}
		t.Say("  functions     CPUs %s%s\n", flag.FormatCPUs(stack.FunctionCPUs), more)
	} else {
		t.Say("  functions     off\n")
	}
	for _, app := range stack.Apps {
		if app.Current {
			for _, pipeline := range app.Pipelines {
				t.Say("  pipeline      %s (app %s, build %s): spillway trigger %s\n", pipeline.Name, app.Name, app.Build,
					pipeline.Name)
			}
		}
	}
	if len(stack.Pipelines()) == 0 {
		t.Say("  no app is served: give one with --app DIR, or try `spillway run digits`\n")
	}
}

// lines writes whole lines from several goroutines.
type lines struct {
	mutex sync.Mutex
	tool  *tool.Tool // its output is guarded by mutex
}

func (l *lines) printf(format string, args ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.tool.Say(format, args...)
}

// followAll prints a line for each start and end of a run that has not ended before since, and for each decision, until
// ctx ends.
func followAll(ctx context.Context, calls *client.Client, output *lines, since time.Time) {
	log, told := display.NewLog(since), recently{}
	err := calls.Follow(ctx, "", func(message client.Message) error {
		switch {
		case message.Run != nil:
			for _, line := range log.Run(*message.Run) {
				output.printf("%s\n", display.Own(line))
			}
		case message.Decision != nil:
			if told.first(message.Decision.ID) {
				output.printf("%s\n", display.Own(log.Decision(*message.Decision)))
			}
		case message.Alert != nil:
			for _, line := range log.Alert(*message.Alert) {
				output.printf("%s\n", display.Own(line))
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		output.printf("runs are no longer followed: %v\n", err)
	}
}

// mostTold is how many decisions are remembered as told, at least.
const mostTold = 10_000

// recently remembers what was told: a stream that begins anew, because it was behind or the connection was lost, tells
// the whole state again, with decisions that have been printed. The zero value remembers nothing.
type recently struct{ newer, older map[string]bool }

// first reports whether an ID is told for the first time, and remembers it.
func (r *recently) first(id string) bool {
	if r.newer[id] || r.older[id] {
		return false
	}
	if r.newer == nil || len(r.newer) >= mostTold {
		r.older, r.newer = r.newer, map[string]bool{}
	}
	r.newer[id] = true
	return true
}

// reloadOnChange builds source again when it changed and hands the new build to the stack.
func reloadOnChange(ctx context.Context, t *tool.Tool, calls *client.Client, output *lines, source, digest string) {
	apps.Watch(ctx, source, apps.WatchEvery, func(ctx context.Context) {
		app, err := apps.Build(ctx, t, source)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			output.printf("%s\nbuild %s of %s stays in service\n", display.CleanLines(err.Error()), digest, source)
			return
		}
		if app.Digest == digest {
			return
		}
		if _, err := calls.Register(ctx, app.Path); err != nil {
			output.printf("serve the new build of %s: %v\nbuild %s stays in service\n", source, err, digest)
			return
		}
		digest = app.Digest
		output.printf("app %s is served from build %s\n", app.Descriptor.Name, app.Digest)
	})
}
