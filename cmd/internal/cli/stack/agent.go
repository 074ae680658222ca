package stack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// tokenVariable is the environment variable with the token to join with.
const tokenVariable = "SPILLWAY_JOIN_TOKEN"

// agentDir is the directory of the state directory that a host has: a stack of this machine has the rest.
const agentDir = "agent"

// agentFlags are the flags of `agent`.
type agentFlags struct {
	flag.Host

	all *pflag.FlagSet // of the command

	server, token, tokenFile, name string
	cache                          quantity.Bytes
	drain                          time.Duration
}

func agentCommand(t *tool.Tool) *cobra.Command {
	flags := &agentFlags{}
	command := &cobra.Command{
		Use:   "agent --join URL [FLAGS]",
		Short: "Make this machine a host of the pool of a server elsewhere",
		Long: `Join the server at a URL, run the tasks that it gives to this machine, and print a line for what
happens until Ctrl-C. Nothing else has to be installed or shared: builds, artifacts and files come
from the server, over the one port that it listens on, and are kept here for the next task.

The token says which server that is and lets this machine in; "spillway hosts token" on the server
prints it. It is needed once: what the server answers is kept in the state directory, and later
starts show that. Give it in a file or in the variable SPILLWAY_JOIN_TOKEN; other users of this
machine can read what --token says.

While the server is away the agent tries to reach it, for as long as it takes. An agent that cannot
tell the server for 12 seconds that it is there kills what it runs, because the server gives it to
another host three seconds later.

After Ctrl-C, or SIGTERM, no task is taken any more, what runs may go on for the time of --drain,
and the rest is done again elsewhere. A second Ctrl-C ends it at once. While the server is away
there is nobody to tell what has ended: the agent ends within 3 seconds then.

The exit code is 0 after Ctrl-C, 1 when the server is not reached at the first start, does not let
this machine in, or the agent ends by itself, and 2 when a flag, a variable or the token is wrong.`,
		Example: `  spillway agent --join https://server.example.com:7475 --token-file ./token
  SPILLWAY_JOIN_TOKEN=$(cat ./token) spillway agent --join https://10.0.0.7:7475 --name gpu-1
  spillway agent --join https://10.0.0.7:7475 --pool-cpus 0 --pool-memory 4GiB`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runAgent(cmd.Context(), t, flags) },
	}
	set := command.Flags()
	flags.all = set
	set.StringVar(&flags.server, "join", "",
		"`URL` of the server, as `spillway server` prints it (default the one that was joined last)")
	set.StringVar(&flags.tokenFile, "token-file", "",
		"`FILE` with the token that lets this machine in, at the first start")
	set.StringVar(&flags.token, "token", "", "that `TOKEN` itself: other users of this machine can read it meanwhile")
	config.MarkSecret(set.Lookup("token"))
	config.MarkVariable(set.Lookup("token"), tokenVariable)
	set.StringVar(&flags.name, "name", "", "`NAME` of this host in the pool (default the machine's)")
	set.Var(flag.Memory{Value: &flags.cache}, "artifact-cache",
		fmt.Sprintf("what artifacts that are kept here may take of the disk, such as 100GiB (default %s)", host.UsualCache))
	flags.drain = 10 * time.Second
	set.Var(flag.Span{Value: &flags.drain}, "drain", "how long running attempts may go on when the agent is told to end")
	flags.Add(set)
	return command
}

// joinToken reads the token that lets the machine in; nil where none is given.
func (f *agentFlags) joinToken() (*join.Token, error) {
	text, source := f.token, config.Told(f.all.Lookup("token"))
	switch {
	case f.tokenFile != "":
		read, err := flag.ReadFile(f.tokenFile, 64<<10)
		if err != nil {
			return nil, &fault.UsageError{
				Problem: "--token-file: " + err.Error(),
				Hint:    "write what `spillway hosts token` prints on the server into that file",
			}
		}
		text, source = string(read), "--token-file"
	case f.token == "":
		return nil, nil //nolint:nilnil // a machine that has joined needs none
	}
	token, err := join.ParseToken(text)
	if err != nil {
		return nil, &fault.UsageError{Problem: source + ": " + err.Error()}
	}
	return &token, nil
}

// entry is where this machine joins, as what, and how it is let in.
type entry struct {
	dir    string // of the host
	server string
	token  *join.Token // nil where none is given
	joined bool        // this machine has joined a server before
	offer  host.Offer
}

// entry checks what the flags say, against what this machine has joined before.
func (f *agentFlags) entry(t *tool.Tool) (e entry, err error) {
	if e.token, err = f.joinToken(); err != nil {
		return e, err
	}
	dir, err := t.MakeStateDir()
	if err != nil {
		return e, err
	}
	e.dir = filepath.Join(dir, agentDir)
	before, err := host.ReadMembership(e.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, err
	}
	e.joined = err == nil
	if e.server = cmp.Or(f.server, before.Server); e.server == "" {
		return e, &fault.UsageError{
			Problem: "this machine has joined no server yet, and --join does not say which",
			Hint:    "give the URL that `spillway server --listen` prints, and a token: --join URL --token-file FILE",
		}
	}
	if e.server, err = host.CheckServer(e.server); err != nil {
		return e, &fault.UsageError{Problem: fmt.Sprintf("--join %s: %v", flag.Shown(f.server), err)}
	}
	if e.token == nil && !e.joined {
		return e, &fault.UsageError{
			Problem: "this machine has not joined " + e.server + " yet, and there is no token",
			Hint: "run `spillway hosts token` on the server, and give what it prints in a file: --token-file FILE, or in " +
				tokenVariable,
		}
	}
	if e.offer, err = f.Offer(t.Deps.Environment); err != nil {
		return e, err
	}
	e.offer.Name = cmp.Or(f.name, before.Answer.Host, host.Name())
	if err := join.CheckName(e.offer.Name); err != nil {
		return e, &fault.UsageError{Problem: err.Error(), Hint: "give another with --name"}
	}
	e.offer.StateDir, e.offer.Instance, e.offer.Drain = e.dir, rand.Text(), f.drain
	return e, nil
}

func runAgent(ctx context.Context, t *tool.Tool, flags *agentFlags) (err error) {
	e, err := flags.entry(t)
	if err != nil {
		return err
	}
	unlock, err := devserver.Lock(e.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	logger, log, err := session.OpenLog(e.dir, flags.LogLevel)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if t.Deps.Root && e.offer.StageUser == nil {
		t.Complain("warning: stages run as root, and can do here whatever root can; " +
			"name another user for them with --stage-user\n")
	}
	if e.offer.StageUser != nil {
		if err := errors.Join(host.Admit(e.offer.StageUser, filepath.Dir(e.dir)),
			host.Admit(e.offer.StageUser, e.dir)); err != nil {
			return err
		}
	}
	way := &contact{output: &lines{tool: t}}
	joined, membership, err := connect(ctx, t, e, flags.cache, way, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, way.close(ctx, cutLimit, joined.Close)) }()
	return runHost(ctx, t, e, membership, joined, way, logger)
}

const (
	// closeLimit bounds each of what an agent does at its end besides to drain.
	closeLimit = 5 * time.Second
	// cutLimit bounds all that one does that is told to end while it reaches no server, so that its process has ended
	// within three seconds. Of that cutRuns is for what runs to end in; until cutLease it tries to give its lease back.
	cutLimit = 2 * time.Second
	cutRuns  = time.Second
	cutLease = 1250 * time.Millisecond
	// answerWait is how long the server may take to answer an agent that is told to end, and runs nothing.
	answerWait = time.Second
)

// contact is how an agent stands with its servers. Its methods may be called concurrently.
type contact struct {
	output *lines

	mu   sync.Mutex
	lost bool      // no server is reached now; guarded by mu
	cut  time.Time // when the agent was told to end while that was so; else zero; guarded by mu
}

// changed tells that the server is lost, and why, or found again, with nil.
func (c *contact) changed(lost error) {
	c.mu.Lock()
	c.lost = lost != nil
	c.mu.Unlock()
	if lost != nil {
		c.output.printf("%s the server is not reached any more (%s); trying again\n", clockTime(),
			display.Clean(lost.Error()))
		return
	}
	c.output.printf("%s the server is reached again\n", clockTime())
}

// isCut reports whether the agent reaches no server, of which it has just been told to end: what is not done within
// cutLimit from now on is left. Where nothing runs, answers asks whether one is there that was not missed yet; where
// one was missed, whether it is back, as after a moment's reconnect: what runs is not to be killed for that.
func (c *contact) isCut(running int, answers func() bool) bool {
	silent := (running == 0 || c.isLost()) && !answers()
	c.mu.Lock()
	defer c.mu.Unlock()
	if silent {
		c.cut = time.Now()
	}
	return !c.cut.IsZero()
}

func (c *contact) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// close ends something, within closeLimit. An agent that is cut off leaves what has not ended within a time since it
// was told to end: it ends with the process, and what it had to say was said to be lost.
func (c *contact) close(ctx context.Context, within time.Duration, end func(context.Context) error) error {
	c.mu.Lock()
	cut := c.cut
	c.mu.Unlock()
	limit := closeLimit
	if !cut.IsZero() {
		limit = max(time.Until(cut.Add(within)), 0)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if cut.IsZero() {
		return end(ctx)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = end(ctx) // there is nobody to tell
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}

const (
	// joinPause and longestJoinPause space the tries to reach a server that was joined before, and refusedFor is how long
	// a name is waited for that is taken: as long as the lease of a former self lasts, and some more.
	joinPause        = 500 * time.Millisecond
	longestJoinPause = 15 * time.Second
	refusedFor       = 30 * time.Second
)

// connect joins the server and connects to what it says. A server that was joined before is waited for, for ever.
func connect(
	ctx context.Context, t *tool.Tool, e entry, cache quantity.Bytes, way *contact, logger *slog.Logger,
) (joined *host.Joined, membership host.Membership, err error) {
	began, told, output := time.Now(), false, way.output
	for pause := joinPause; ; pause = min(2*pause, longestJoinPause) {
		request := join.Request{
			Proves: true,
			Host:   e.offer.Name, Instance: e.offer.Instance, Version: t.Deps.Version, Platform: host.Platform,
			Capacity: quantity.Size{
				CPU: quantity.Milli(len(e.offer.CPUs)) * quantity.Core, Memory: e.offer.Memory,
			}, At: e.offer.Now(),
		}
		membership, err = host.Enter(ctx, e.dir, e.server, e.token, request)
		if err == nil {
			e.joined = true
			joined, err = host.Connect(ctx, host.JoinedOptions{
				Answer: membership.Answer, StateDir: e.dir, Cache: cache, Logger: logger, Contact: way.changed,
				Servers: func(all []string) {
					if err := membership.Told(e.dir, all); err != nil {
						logger.WarnContext(ctx, "which servers there are is not kept", "error", err)
					}
				},
			})
		}
		if err == nil {
			if told {
				output.printf("%s the server answers\n", clockTime())
			}
			return joined, membership, secrecy.Forget()
		}
		if ctx.Err() != nil {
			return nil, membership, ctx.Err()
		}
		refused, isRefusal := errors.AsType[*host.RefusedError](err)
		later := isRefusal && refused.Later && time.Since(began) < refusedFor
		if !later && (isRefusal || !e.joined) {
			return nil, membership, err
		}
		logger.WarnContext(ctx, "the server is not reached; trying again", "wait", pause, "error", err)
		if !told {
			told = true
			output.printf("%s %s; trying again until it lets this machine in\n", clockTime(), display.Clean(err.Error()))
		}
		if !wait.For(ctx, pause) {
			return nil, membership, ctx.Err()
		}
	}
}

func clockTime() string { return time.Now().Format(time.TimeOnly) }

// telling is a recorder that prints a line for each attempt that has ended.
type telling struct {
	host.Recorder

	output *lines
}

// Record tells of an attempt once its Record is durable.
func (t telling) Record(ctx context.Context, record predictor.Record) error {
	err := t.Recorder.Record(ctx, record)
	if err == nil {
		took := record.Usage.Wall.Round(time.Millisecond)
		line := fmt.Sprintf("%s %s, task %s, attempt %d: %s after %s", record.Run, record.Stage.Name, record.Task,
			record.Attempt, record.Outcome, took)
		if record.Error != "" {
			line += ": " + record.Error
		}
		t.output.printf("%s %s\n", clockTime(), display.Clean(line))
	}
	return err
}

// runHost runs what the server gives to this machine until ctx ends.
func runHost(
	ctx context.Context, t *tool.Tool, e entry, membership host.Membership, joined *host.Joined, way *contact,
	logger *slog.Logger,
) (err error) {
	ports, output := joined.Ports, way.output
	ports.Recorder = telling{ports.Recorder, output}
	ports.Fenced = func(fenced bool) {
		if fenced {
			output.printf("%s the server was not reached for too long: what ran here was killed, and is done again elsewhere\n",
				clockTime())
			return
		}
		output.printf("%s tasks are taken again\n", clockTime())
	}
	pool, err := host.New(e.offer, ports, logger) //nolint:contextcheck // it lives until it is closed
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, way.close(ctx, cutLease, pool.Close)) }()
	sayJoined(output, t, e, membership, pool.Describe())
	ended := make(chan error, 1)
	go func() { ended <- pool.Run(ctx) }()
	select {
	case err := <-ended:
		if err == nil && ctx.Err() == nil {
			err = errors.New("the agent ended")
		}
		return err
	case <-ctx.Done():
	}
	running := pool.Running()
	if way.isCut(running, func() bool { return joined.Answers(context.WithoutCancel(ctx), answerWait) }) {
		return leave(ended, running, membership.Answer.Lease, output)
	}
	if running > 0 {
		output.printf("stopping; %s may go on for %s (Ctrl-C again stops at once)\n", words.Count(running, "attempt"),
			e.offer.Drain)
	} else {
		output.printf("stopping\n")
	}
	select {
	case err := <-ended:
		return err
	case <-t.Deps.Interrupted: // what still runs ends with this process
		return nil
	}
}

// leave ends an agent that is cut off: what runs has a moment to be stopped, and ends with this process else.
func leave(ended <-chan error, running int, lease time.Duration, output *lines) error {
	said := ""
	if running > 0 {
		said = fmt.Sprintf(", and has %s that ran here done again; how they ended and what they printed last is told to "+
			"nobody", words.Count(running, "attempt"))
	}
	output.printf("%s stopping without a word to the server, which is not reached: it counts this host as lost after "+
		"%s%s\n", clockTime(), cmp.Or(lease, join.UsualLease), said)
	select {
	case <-ended: //nolint:errcheck // it ends cut off, whatever it has to say
	case <-time.After(cutRuns):
	}
	return nil
}

func sayJoined(output *lines, t *tool.Tool, e entry, membership host.Membership, own predictor.Host) {
	output.printf("spillway %s has joined %s as %s\n", t.Deps.Version, membership.Server, e.offer.Name)
	output.printf("  pool          CPUs %s and %s of memory at %s per hour\n", flag.FormatCPUs(own.CPUs),
		own.Capacity.Memory, own.PricePerHour)
	output.printf("  state         %s (log: %s)\n", e.dir, filepath.Join(e.dir, "spillway.log"))
	if at := membership.Answer.Version; at != t.Deps.Version {
		output.printf("  note          the server is version %s, this binary is %s\n", at, t.Deps.Version)
	}
}
