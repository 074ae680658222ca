package cli

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
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

func (t *tool) devCommand() *cobra.Command {
	flags := &stackFlags{}
	command := &cobra.Command{
		Use:   "dev [FLAGS]",
		Short: "Start the whole stack on this machine and follow its runs",
		Long: `Start Temporal, NATS, the pool, local functions and the autoscaler in one process, listening on the
loopback interface only; print the addresses when a run could be started; and print a line for what
happens until Ctrl-C. The state directory keeps everything: runs that were going on resume at the
next start.

Apps given with --app are built, served, and built again when their sources change. A build that
fails prints what the compiler said, and the build before it stays in service. Runs go on with the
build they started with. Without --app the apps that were served before are served again.

An alert is raised when the goal of a run is going to be missed, and another one when that is over:
it is shown here and on the page, published on NATS, and posted to each --alert-webhook as JSON,
again and again for ten minutes while the receiver is away.

Traces, one per run, go to a collector when the environment says so as OpenTelemetry has it:
OTEL_EXPORTER_OTLP_ENDPOINT (such as http://127.0.0.1:4318) or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME; OTEL_SDK_DISABLED=true turns them off.

The exit code is 0 after Ctrl-C, 1 when the stack does not start or ends by itself, and 2 when a
flag, a variable or an app is wrong.`,
		Example: `  spillway dev --app ./myapp
  spillway dev --app ./myapp --function-price-factor 10 --value-of-time 0.5
  spillway dev --app ./myapp --no-burst --state ./try
  spillway dev --app ./myapp --alert-webhook https://hooks.example.com/alerts
  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 spillway dev --app ./myapp`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.dev(cmd.Context(), flags) },
	}
	command.Flags().StringArrayVar(&flags.apps, "app", nil, "`DIR` of a Go main package, or a binary, to serve; may be given several times")
	flags.add(command.Flags())
	return command
}

func (t *tool) dev(ctx context.Context, flags *stackFlags) (err error) {
	if running, err := t.connect(ctx); err == nil {
		running.client.Close()
		return &advised{
			fmt.Errorf("a stack runs on %s already: %s, process %d", running.stack.StateDir, running.stack.Addresses.HTTP, running.stack.PID),
			"stop it first, or use another state directory with --state DIR",
		}
	} else if !errors.Is(err, errNoStack) {
		return err
	}
	apps, err := t.devApps(ctx, flags.apps)
	if err != nil {
		return err
	}
	session, err := t.start(ctx, flags, apps, true)
	if err != nil {
		return err
	}
	page := session.stack.Addresses.HTTP + " (`spillway open` logs a browser in)"
	if isTerminal(t.out) { // a file or a journal may be read by others while the link is good
		link, err := session.link(ctx, "/")
		if err != nil {
			return errors.Join(err, session.close(ctx))
		}
		page = link + " (logs one browser in, within 10 minutes; `spillway open` prints another)"
	}
	t.sayAddresses(session.stack, page)

	following, stop := context.WithCancel(ctx)
	var working sync.WaitGroup
	output := &lines{tool: t}
	working.Go(func() { t.followAll(following, session.client, output, session.stack.StartedAt) })
	for i, source := range flags.apps {
		working.Go(func() { t.reloadOnChange(following, session.client, output, source, apps[i].Digest) })
	}
	select {
	case <-ctx.Done():
		output.printf("stopping; running attempts are told to end (Ctrl-C again stops at once)\n")
	case <-session.engine.Done():
		err = session.engine.Err()
		if err == nil {
			err = errors.New("the stack ended")
		}
	}
	stop()
	working.Wait()
	return errors.Join(err, t.closeForcibly(ctx, session))
}

// devApps builds the sources; without any it takes the newest stored build of every app.
func (t *tool) devApps(ctx context.Context, sources []string) ([]build.App, error) {
	if len(sources) > 0 {
		return t.buildApps(ctx, sources)
	}
	dir, err := t.makeStateDir()
	if err != nil {
		return nil, err
	}
	return build.NewStore(dir, nil).Newest()
}

// closeForcibly ends the session; an interrupt while it drains ends it at once.
func (t *tool) closeForcibly(ctx context.Context, session *session) error {
	draining, force := context.WithCancel(context.WithoutCancel(ctx))
	defer force()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-t.deps.Interrupted:
			force()
		case <-draining.Done():
		}
	})
	err := session.closeWithin(draining)
	force()
	waiting.Wait()
	return err
}

func (t *tool) sayAddresses(stack web.Stack, page string) {
	t.say("spillway %s is ready\n", stack.Version)
	t.say("  page          %s\n", page)
	t.say("  API           %s (header: %s)\n", stack.Addresses.HTTP, filepath.Join(stack.StateDir, access.HeaderFile))
	if stack.Addresses.TemporalUI != "" {
		t.say("  Temporal UI   %s\n", stack.Addresses.TemporalUI)
	}
	t.say("  Temporal      %s\n", stack.Addresses.Temporal)
	t.say("  NATS          %s\n", stack.Addresses.NATS)
	t.say("  state         %s (log: %s)\n", stack.StateDir, filepath.Join(stack.StateDir, "spillway.log"))
	pool := fmt.Sprintf("CPUs %s at %s per hour", formatCPUs(stack.PoolCPUs), stack.HostPricePerHour())
	t.say("  pool          %s\n", pool)
	if stack.Functions.Enabled {
		t.say("  functions     CPUs %s\n", formatCPUs(stack.FunctionCPUs))
	} else {
		t.say("  functions     off\n")
	}
	for _, app := range stack.Apps {
		if app.Current {
			for _, pipeline := range app.Pipelines {
				t.say("  pipeline      %s (app %s, build %s): spillway trigger %s\n", pipeline.Name, app.Name, app.Build, pipeline.Name)
			}
		}
	}
	if len(stack.Pipelines()) == 0 {
		t.say("  no app is served: give one with --app DIR, or try `spillway run digits`\n")
	}
}

// lines writes whole lines from several goroutines.
type lines struct {
	mutex sync.Mutex
	tool  *tool // its output is guarded by mutex
}

func (l *lines) printf(format string, args ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.tool.say(format, args...)
}

// followAll prints a line for each start and end of a run that has not ended before since, and for each decision, until ctx ends.
func (t *tool) followAll(ctx context.Context, calls *client.Client, output *lines, since time.Time) {
	log := display.NewLog(since)
	err := calls.Follow(ctx, "", func(message client.Message) error {
		switch {
		case message.Run != nil:
			for _, line := range log.Run(*message.Run) {
				output.printf("%s\n", own(line))
			}
		case message.Decision != nil:
			output.printf("%s\n", own(log.Decision(*message.Decision)))
		case message.Alert != nil:
			output.printf("%s\n", own(log.Alert(*message.Alert)))
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		output.printf("runs are no longer followed: %v\n", err)
	}
}

// reloadOnChange builds source again when it changed and hands the new build to the stack.
func (t *tool) reloadOnChange(ctx context.Context, calls *client.Client, output *lines, source, digest string) {
	watchSources(ctx, source, watchEvery, func(ctx context.Context) {
		app, err := t.buildApp(ctx, source)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			output.printf("%s\nbuild %s of %s stays in service\n", cleanLines(err.Error()), digest, source)
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
