package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

const (
	// probeLimit bounds how long a running stack may take to answer that it is healthy.
	probeLimit = 3 * time.Second
	// progressGap is the least time between two lines about a stack that is starting.
	progressGap = 3 * time.Second
	// drainLimit bounds how long a stack of our own may take to end.
	drainLimit = 30 * time.Second
)

// session is a connection to a running stack.
type session struct {
	client *client.Client
	// stack is as it was when the session began.
	stack web.Stack
	// engine is set when the stack was started for this command.
	engine RunningEngine
	log    io.Closer
}

// close ends the session, and the stack when it is our own. It works on after ctx has ended.
func (s *session) close(ctx context.Context) error {
	return s.closeWithin(context.WithoutCancel(ctx))
}

// closeWithin does as close does, but stops at once what has not ended when ctx ends.
func (s *session) closeWithin(ctx context.Context) error {
	s.client.Close()
	if s.engine == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	return errors.Join(s.engine.Close(ctx), s.log.Close())
}

// errNoStack says that no stack runs on the state directory.
var errNoStack = errors.New("no stack runs")

// connect finds the stack that runs on the state directory; it wraps errNoStack when there is none.
func (t *tool) connect(ctx context.Context) (*session, error) {
	dir, err := t.stateDir()
	if err != nil {
		return nil, err
	}
	file, err := web.ReadStackFile(dir)
	none := &advised{fmt.Errorf("%w on the state directory %s", errNoStack, dir), "start one with `spillway dev`, or name another directory with --state DIR"}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, none
	}
	if err != nil {
		return nil, err
	}
	session := &session{client: client.New(file.HTTP)}
	probe, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	session.stack, err = session.client.Stack(probe)
	if errors.Is(err, client.ErrUnreachable) && ctx.Err() == nil {
		session.client.Close()
		return nil, none // it died without removing its file
	}
	if err == nil && session.stack.StateDir != dir {
		session.client.Close()
		return nil, none // its port belongs to another stack by now
	}
	if err != nil {
		session.client.Close()
		return nil, fmt.Errorf("ask the stack at %s (process %d): %w", file.HTTP, file.PID, err)
	}
	if err := session.client.Ready(ctx, t.sayStarting()); err != nil {
		session.client.Close()
		return nil, fmt.Errorf("wait for the stack at %s (process %d): %w", file.HTTP, file.PID, err)
	}
	if session.stack.Version != t.deps.Version {
		t.complain("note: the running stack is version %s, this binary is %s\n", session.stack.Version, t.deps.Version)
	}
	return session, nil
}

// sayStarting returns a function that tells the user what the start of a stack waits for, in a line every progressGap at most.
func (t *tool) sayStarting() func(progress string) {
	var said time.Time
	return func(progress string) {
		if now := time.Now(); now.Sub(said) >= progressGap {
			said = now
			t.complain("%s\n", progress)
		}
	}
}

// start starts a stack of our own with the apps and connects to it.
func (t *tool) start(ctx context.Context, flags *stackFlags, apps []build.App, usualPorts bool) (*session, error) {
	dir, err := t.makeStateDir()
	if err != nil {
		return nil, err
	}
	config, err := flags.config(dir, t.deps.Version, t.deps.Environment)
	if err != nil {
		return nil, err
	}
	config.Apps, config.Ports.Usual = apps, usualPorts
	logger, log, err := openLog(dir, flags.logLevel)
	if err != nil {
		return nil, err
	}
	config.Logger, config.Starting = logger, t.sayStarting()
	engine, err := t.deps.StartEngine(ctx, config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the stack: %w", err), log.Close())
	}
	session := &session{client: client.New(engine.HTTPAddress()), engine: engine, log: log}
	if session.stack, err = session.client.Stack(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ask the stack that was just started: %w", err), session.close(ctx))
	}
	return session, nil
}

// connectOrStart finds the running stack or starts one for the occasion. apps is asked for the apps to serve: of a running stack with
// its description, of a new one with nil.
func (t *tool) connectOrStart(ctx context.Context, flags *stackFlags, apps func(context.Context, *web.Stack) ([]build.App, error)) (*session, error) {
	session, err := t.connect(ctx)
	if errors.Is(err, errNoStack) {
		built, err := apps(ctx, nil)
		if err != nil {
			return nil, err
		}
		return t.start(ctx, flags, built, false)
	}
	if err != nil {
		return nil, err
	}
	if given := flags.changed(); len(given) > 0 {
		session.client.Close()
		return nil, &usage{
			problem: fmt.Sprintf("a stack runs on %s already (process %d), and %s can only be said when it starts", session.stack.StateDir, session.stack.PID, strings.Join(given, ", ")),
			hint:    "leave that out, stop the running stack, or use another with --state DIR",
		}
	}
	built, err := apps(ctx, &session.stack)
	if err != nil {
		session.client.Close()
		return nil, err
	}
	for _, app := range built {
		if _, err := session.client.Register(ctx, app.Path); err != nil {
			session.client.Close()
			return nil, fmt.Errorf("serve app %s: %w", app.Descriptor.Name, err)
		}
	}
	if len(built) > 0 {
		if session.stack, err = session.client.Stack(ctx); err != nil {
			session.client.Close()
			return nil, err
		}
	}
	return session, nil
}
