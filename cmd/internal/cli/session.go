package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
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

// findStack returns where the stack that runs on the state directory is, and the token to show it; it wraps errNoStack when there is none.
// A token goes only to an engine that lives: at the address that a dead one has left anybody may listen by now.
func (t *tool) findStack() (dir string, file web.StackFile, token string, err error) {
	dir, err = t.stateDir()
	if err != nil {
		return "", file, "", err
	}
	lives, err := access.EngineLives(dir)
	if err != nil {
		return "", file, "", err
	}
	file, err = web.ReadStackFile(dir)
	if !lives || errors.Is(err, fs.ErrNotExist) {
		return "", file, "", noStack(dir)
	}
	if err != nil {
		return "", file, "", err
	}
	token, err = access.ReadToken(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = &advised{
			fmt.Errorf("the stack at %s (process %d, version %s) has no credentials in %s", file.HTTP, file.PID, file.Version, filepath.Join(dir, access.TokenFile)),
			"stop it, and start it again with this version of spillway: it makes them",
		}
	}
	return dir, file, token, err
}

func noStack(dir string) error {
	return &advised{fmt.Errorf("%w on the state directory %s", errNoStack, dir), "start one with `spillway dev`, or name another directory with --state DIR"}
}

// connect finds the stack that runs on the state directory; it wraps errNoStack when there is none.
func (t *tool) connect(ctx context.Context) (*session, error) {
	dir, file, token, err := t.findStack()
	if err != nil {
		return nil, err
	}
	session := &session{client: client.New(file.HTTP, token)}
	probe, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	session.stack, err = session.client.Stack(probe)
	if err != nil && probe.Err() != nil && ctx.Err() == nil {
		session.client.Close()
		return nil, &advised{
			fmt.Errorf("the stack at %s (process %d) holds the state directory, but has not answered for %v", file.HTTP, file.PID, probeLimit),
			"wait, or look at its log: " + filepath.Join(dir, "spillway.log"),
		}
	}
	if errors.Is(err, client.ErrUnreachable) && ctx.Err() == nil {
		session.client.Close()
		return nil, noStack(dir) // it has died since
	}
	if err == nil && session.stack.StateDir != dir {
		session.client.Close()
		return nil, noStack(dir) // its port belongs to another stack by now
	}
	if refused, ok := errors.AsType[*web.Error](err); ok && refused.Status == http.StatusUnauthorized {
		session.client.Close()
		return nil, &advised{
			fmt.Errorf("the stack at %s (process %d) does not take the token in %s", file.HTTP, file.PID, filepath.Join(dir, access.TokenFile)),
			"the credentials were changed since it started: stop it and start it again",
		}
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
	if t.deps.Root && config.StageUser == nil {
		t.complain("warning: stages run as root, and can do here whatever root can; " +
			"name another user for them with --stage-user\n")
	}
	logger, log, err := openLog(dir, flags.logLevel)
	if err != nil {
		return nil, err
	}
	config.Logger, config.Starting = logger, t.sayStarting()
	engine, err := t.deps.StartEngine(ctx, config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the stack: %w", err), log.Close())
	}
	forgotten := secrecy.Forget()
	token, err := access.ReadToken(dir)
	if err = errors.Join(forgotten, err); err != nil {
		return nil, errors.Join(fmt.Errorf("talk to the stack that was just started: %w", err), engine.Close(ctx), log.Close())
	}
	session := &session{client: client.New(engine.HTTPAddress(), token), engine: engine, log: log}
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
