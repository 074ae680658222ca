// Package session connects commands to the stack that runs on the state directory, or starts one for the occasion.
package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// probeLimit bounds how long a running stack may take to answer that it is healthy.
	probeLimit = 3 * time.Second
	// progressGap is the least time between two lines about a stack that is starting.
	progressGap = 3 * time.Second
	// drainLimit bounds how long a stack of our own may take to end.
	drainLimit = 30 * time.Second
)

// Session is a connection to a running stack.
type Session struct {
	Client *client.Client
	// Stack is as it was when the session began.
	Stack web.Stack
	// Server is the URL of the server that was asked for with --server; empty of the stack of the state directory.
	Server string
	// Engine is set when the stack was started for this command.
	Engine tool.RunningEngine
	log    io.Closer
}

// Close ends the session, and the stack when it is our own. It works on after ctx has ended.
func (s *Session) Close(ctx context.Context) error {
	return s.closeWithin(context.WithoutCancel(ctx))
}

// closeWithin does as close does, but stops at once what has not ended when ctx ends.
func (s *Session) closeWithin(ctx context.Context) error {
	s.Client.Close()
	if s.Engine == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	return errors.Join(s.Engine.Close(ctx), s.log.Close())
}

// ErrNoStack says that no stack runs on the state directory.
var ErrNoStack = errors.New("no stack runs")

// findStack returns where the stack that runs on the state directory is, and the token to show it; it wraps ErrNoStack
// when there is none. A token goes only to an engine that lives: at the address that a dead one has left anybody may
// listen by now.
func findStack(t *tool.Tool) (dir string, file web.StackFile, token string, err error) {
	dir, err = t.StateDir()
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
		err = fault.Advise(
			fmt.Errorf("the stack at %s (process %d, version %s) has no credentials in %s", file.HTTP, file.PID, file.Version,
				filepath.Join(dir, access.TokenFile)),
			"stop it, and start it again with this version of spillway: it makes them",
		)
	}
	return dir, file, token, err
}

func noStack(dir string) error {
	return fault.Advise(fmt.Errorf("%w on the state directory %s", ErrNoStack, dir),
		"start one with `spillway dev`, or name another directory with --state DIR")
}

// locate returns a function that finds the stack again, which may listen elsewhere once it was started anew.
func locate(t *tool.Tool) func() (client.Place, error) {
	return func() (client.Place, error) {
		_, file, token, err := findStack(t)
		return client.Place{Base: file.HTTP, Token: token}, err
	}
}

// Connect connects to the server that --server names, or to the stack that runs on the state directory; its error wraps
// ErrNoStack when there is none.
func Connect(ctx context.Context, t *tool.Tool) (*Session, error) {
	server, err := Server(t)
	switch {
	case err != nil:
		return nil, err
	case server != "":
		return connectElsewhere(ctx, t, server)
	}
	return ConnectHere(ctx, t)
}

// ConnectHere connects to the stack that runs on the state directory, whatever --server names.
func ConnectHere(ctx context.Context, t *tool.Tool) (*Session, error) {
	dir, file, token, err := findStack(t)
	if err != nil {
		return nil, err
	}
	session := &Session{Client: client.Relocating(client.Place{Base: file.HTTP, Token: token}, locate(t))}
	probe, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	session.Stack, err = session.Client.Stack(probe)
	if err != nil && probe.Err() != nil && ctx.Err() == nil {
		session.Client.Close()
		return nil, fault.Advise(
			fmt.Errorf("the stack at %s (process %d) holds the state directory, but has not answered for %v", file.HTTP,
				file.PID, probeLimit),
			"wait, or look at its log: "+filepath.Join(dir, "spillway.log"),
		)
	}
	if errors.Is(err, client.ErrUnreachable) && ctx.Err() == nil {
		session.Client.Close()
		return nil, noStack(dir) // it has died since
	}
	if err == nil && session.Stack.StateDir != dir {
		session.Client.Close()
		return nil, noStack(dir) // its port belongs to another stack by now
	}
	if refused, ok := errors.AsType[*web.Error](err); ok && refused.Status == http.StatusUnauthorized {
		session.Client.Close()
		return nil, fault.Advise(
			fmt.Errorf("the stack at %s (process %d) does not take the token in %s", file.HTTP, file.PID,
				filepath.Join(dir, access.TokenFile)),
			"the credentials were changed since it started: stop it and start it again",
		)
	}
	if err != nil {
		session.Client.Close()
		return nil, fmt.Errorf("ask the stack at %s (process %d): %w", file.HTTP, file.PID, err)
	}
	if err := session.Client.Ready(ctx, sayStarting(t)); err != nil {
		session.Client.Close()
		return nil, fmt.Errorf("wait for the stack at %s (process %d): %w", file.HTTP, file.PID, err)
	}
	if session.Stack.Version != t.Deps.Version {
		t.Complain("note: the running stack is version %s, this binary is %s\n", session.Stack.Version, t.Deps.Version)
	}
	return session, nil
}

// sayStarting returns a function that tells the user what the start of a stack waits for, in a line every progressGap
// at most.
func sayStarting(t *tool.Tool) func(progress string) {
	var said time.Time
	return func(progress string) {
		if now := time.Now(); now.Sub(said) >= progressGap {
			said = now
			t.Complain("%s\n", progress)
		}
	}
}

// Start starts a stack of our own with the apps and connects to it.
func Start(ctx context.Context, t *tool.Tool, flags *flag.Stack, apps []build.App, usualPorts bool) (*Session, error) {
	dir, err := t.MakeStateDir()
	if err != nil {
		return nil, err
	}
	config, err := flags.Config(dir, t.Deps.Version, t.Deps.Environment)
	if err != nil {
		return nil, err
	}
	config.Apps, config.Ports.Usual = apps, usualPorts
	if t.Deps.Root && config.StageUser == nil {
		t.Complain("warning: stages run as root, and can do here whatever root can; " +
			"name another user for them with --stage-user\n")
	}
	logger, log, err := OpenLog(dir, flags.LogLevel)
	if err != nil {
		return nil, err
	}
	config.Logger, config.Starting = logger, sayStarting(t)
	engine, err := t.Deps.StartEngine(ctx, config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the stack: %w", err), log.Close())
	}
	forgotten := secrecy.Forget()
	token, err := access.ReadToken(dir)
	if err = errors.Join(forgotten, err); err != nil {
		return nil, errors.Join(fmt.Errorf("talk to the stack that was just started: %w", err), engine.Close(ctx),
			log.Close())
	}
	session := &Session{Client: client.New(engine.HTTPAddress(), token), Engine: engine, log: log}
	if session.Stack, err = session.Client.Stack(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ask the stack that was just started: %w", err), session.Close(ctx))
	}
	session.sayResumed(ctx, t)
	return session, nil
}

// sayResumed tells of runs that an engine before this one had begun and that go on now: they take a part of the pool,
// and nobody who starts something else would know why. Where they cannot be asked for, whoever looks for them is told.
func (s *Session) sayResumed(ctx context.Context, t *tool.Tool) {
	going, err := s.Client.Runs(ctx, web.RunQuery{State: predictor.RunRunning})
	if err != nil {
		return
	}
	if line := display.Resumed(going, s.Stack.StartedAt); line != "" {
		t.Complain("%s\n", line)
	}
}

// ConnectOrStart finds the running stack or starts one for the occasion. apps is asked for the apps to serve: of a
// running stack with its description, of a new one with nil.
func ConnectOrStart(
	ctx context.Context, t *tool.Tool, flags *flag.Stack, apps func(context.Context, *web.Stack) ([]build.App, error),
) (*Session, error) {
	session, err := Connect(ctx, t)
	if errors.Is(err, ErrNoStack) {
		built, err := apps(ctx, nil)
		if err != nil {
			return nil, err
		}
		if len(built) == 0 {
			flags.ServeNoApp()
		}
		return Start(ctx, t, flags, built, false)
	}
	if err != nil {
		return nil, err
	}
	if given := flags.Changed(); len(given) > 0 && session.Server != "" {
		session.Client.Close()
		return nil, &fault.UsageError{
			Problem: fmt.Sprintf("%s can only be said where the server %s starts", strings.Join(given, ", "), session.Server),
			Hint:    "leave that out, or leave out --server for a stack of this machine",
		}
	}
	if given := flags.Changed(); len(given) > 0 {
		session.Client.Close()
		return nil, &fault.UsageError{
			Problem: fmt.Sprintf("a stack runs on %s already (process %d), and %s can only be said when it starts",
				session.Stack.StateDir, session.Stack.PID, strings.Join(given, ", ")),
			Hint: "leave that out, stop the running stack, or use another with --state DIR",
		}
	}
	built, err := apps(ctx, &session.Stack)
	if err != nil {
		session.Client.Close()
		return nil, err
	}
	if len(built) > 0 && session.Server != "" {
		session.Client.Close()
		return nil, &fault.UsageError{
			Problem: fmt.Sprintf("the server %s does not serve app %s, and builds are handed over on its own machine only",
				session.Server, built[0].Descriptor.Name),
			Hint: "give the app to it with --app where it starts, or leave out --server for a stack of this machine",
		}
	}
	for _, app := range built {
		if _, err := session.Client.Register(ctx, app.Path); err != nil {
			session.Client.Close()
			return nil, fmt.Errorf("serve app %s: %w", app.Descriptor.Name, err)
		}
	}
	if len(built) > 0 {
		if session.Stack, err = session.Client.Stack(ctx); err != nil {
			session.Client.Close()
			return nil, err
		}
	}
	return session, nil
}

// Link returns the address of a view of the page with a code behind it that logs one browser in.
func (s *Session) Link(ctx context.Context, path string) (string, error) {
	code, err := s.Client.NewLogin(ctx)
	if err != nil {
		return "", err
	}
	if s.Server != "" {
		return s.Server + path + "#login=" + code, nil
	}
	return s.Stack.Addresses.HTTP + path + "#login=" + code, nil
}

// LinkElsewhere is Link for a browser of another machine; empty where none reaches the stack.
func (s *Session) LinkElsewhere(ctx context.Context, path string) (string, error) {
	if s.Stack.Addresses.TLS == "" {
		return "", nil
	}
	code, err := s.Client.NewLogin(ctx)
	if err != nil {
		return "", err
	}
	return s.Stack.Addresses.TLS + path + "#login=" + code, nil
}

// CloseForcibly ends the session; an interrupt while it drains ends it at once. It works on after ctx has ended.
func (s *Session) CloseForcibly(ctx context.Context, interrupted <-chan struct{}) error {
	draining, force := context.WithCancel(context.WithoutCancel(ctx))
	defer force()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-interrupted:
			force()
		case <-draining.Done():
		}
	})
	err := s.closeWithin(draining)
	force()
	waiting.Wait()
	return err
}

// NoApps is for stacks that need no app of ours.
func NoApps(context.Context, *web.Stack) ([]build.App, error) { return nil, nil }
