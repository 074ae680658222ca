package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Config says what is tried. Every field but Environment and Left is required.
type Config struct {
	// Engine is the binary of the engine, App that of package app.
	Engine, App string
	// Environment is added to the engine's, as NAME=value.
	Environment []string
	// Dir is an empty directory for the states and the logs of the engines.
	Dir string
	// Kills is how many processes are killed, at least 1; Seed says when, and which.
	Kills int
	Seed  uint64
	// FillDisk gives the state directory a file system of its own, where root may mount one, and fills it now and then.
	FillDisk bool
	// Left is for how long there is work after the last kill. It is timed, and timed again undisturbed; 0 leaves that out,
	// and little work.
	Left time.Duration
	// Patience is the longest that one thing may take that happens at all, such as a start, or all that is left after the
	// last kill.
	Patience time.Duration
	// Output is told what happens.
	Output io.Writer
}

// Check is one promise and what was found about it.
type Check struct {
	Name string
	// Found says what was counted or measured, Wrong all that breaks the promise. Skipped says why nothing could be found
	// out.
	Found   string
	Wrong   []string
	Skipped string
}

// The backlog after the last kill may take this much longer than the same tasks undisturbed.
const (
	slower = 1.25
	later  = 5 * time.Second
)

// trial is one run of chaos.
type trial struct {
	config Config
	engine *engine
	sender *sender
	disk   disk
	noDisk error // why the disk cannot be filled
	groups map[string]bool
	full   []span // when the disk was full
	done   map[kind]int
	missed map[kind]int
	checks []Check
}

// Run tries it and returns what was found. The error says why it could not be found out.
func Run(ctx context.Context, config Config) (checks []Check, err error) {
	t := &trial{config: config, groups: map[string]bool{}, done: map[kind]int{}, missed: map[kind]int{}}
	state := filepath.Join(config.Dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	t.noDisk = errors.New("it is not asked for")
	if config.FillDisk {
		t.disk, t.noDisk = mount(state)
		defer func() { err = errors.Join(err, t.disk.unmount()) }()
	}
	if t.noDisk != nil {
		t.say("the disk is not filled: %v", t.noDisk)
	}
	if t.engine, err = newEngine(config, state, filepath.Join(config.Dir, "logs")); err != nil {
		return nil, err
	}
	if err := t.engine.start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.engine.kill()) }() // of one that has been stopped nothing is left
	if err := t.engine.ready(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	left, last, err := t.disturb(ctx)
	if err != nil {
		return t.checks, err
	}
	t.say("%d actions in %s", len(schedule(config.Seed, config.Kills)), time.Since(began).Round(time.Second))
	if err := t.settle(ctx, left, last); err != nil {
		return t.checks, err
	}
	return t.checks, nil
}

// say tells what happens.
func (t *trial) say(format string, values ...any) {
	_, _ = fmt.Fprintf(t.config.Output, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, values...)...)
}

// disturb sends events and does all that is scheduled meanwhile. It returns which runs with how much of their work were
// left at the last kill, and when that was.
func (t *trial) disturb(ctx context.Context) (left []event, last time.Time, err error) {
	hurry, flush := context.WithCancel(ctx)
	defer flush()
	t.sender = newSender(hurry, t.engine)
	if err := t.sender.serveChain(ctx); err != nil {
		return nil, last, err
	}
	flowing, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan int, 1)
	go func() { sent <- t.sender.flow(flowing, t.config.Seed) }()
	actions := schedule(t.config.Seed, t.config.Kills)
	for i, a := range actions[:len(actions)-1] {
		if err := t.act(ctx, i, a); err != nil {
			return nil, last, err
		}
	}
	if err := t.engine.ready(ctx); err != nil {
		return nil, last, err
	}
	stop()
	first := <-sent
	for _, e := range wave(t.config.Seed, first, runtime.NumCPU(), max(t.config.Left*13/10, 4*time.Second)) {
		if err := t.sender.send(ctx, t.config.Seed, e); err != nil {
			return nil, last, err
		}
	}
	flush()
	t.sender.working.Wait()
	time.Sleep(actions[len(actions)-1].pause)
	views, err := t.sender.views(ctx)
	if err != nil {
		return nil, last, err
	}
	t.note()
	last = time.Now()
	t.done[killEngine]++
	if err := errors.Join(t.engine.kill(), t.engine.start()); err != nil {
		return nil, last, err
	}
	return t.sender.remaining(views), last, t.engine.ready(ctx)
}

// act does one action and waits until a run could be started again, unless the next action shall not wait.
func (t *trial) act(ctx context.Context, n int, a action) error {
	if !a.early {
		if err := t.engine.ready(ctx); err != nil {
			return err
		}
	}
	time.Sleep(a.pause)
	t.note()
	did := a.kind
	switch a.kind {
	case killEngine:
		if err := errors.Join(t.engine.kill(), t.engine.start()); err != nil {
			return err
		}
	case killChild, killFunction:
		if !t.engine.killOne(a.kind == killFunction, a.pick, longestPause) {
			t.missed[a.kind]++
			t.say("%3d %s: there was none", n, a.kind)
			did = killEngine // so that there are as many kills as asked for
			if err := errors.Join(t.engine.kill(), t.engine.start()); err != nil {
				return err
			}
		}
	case skewClocks:
		text := fmt.Sprintf("engine %s\nhost %s\n", a.engine, a.host)
		if err := os.WriteFile(t.engine.clocks(), []byte(text), 0o600); err != nil {
			return fmt.Errorf("skew the clocks: %w", err)
		}
	case fillDisk:
		if t.noDisk != nil {
			t.missed[a.kind]++
			return nil //nolint:nilerr // told in the summary
		}
		free, err := t.disk.fill()
		if err != nil {
			return fmt.Errorf("fill the disk: %w", err)
		}
		began := time.Now()
		time.Sleep(longestPause)
		if err := free(); err != nil {
			return fmt.Errorf("free the disk: %w", err)
		}
		t.full = append(t.full, span{began, time.Now()})
	}
	t.done[did]++
	t.say("%3d %s; %d events sent", n, a.kind, len(t.sender.expected()))
	return nil
}

// note remembers which cgroups the engine has.
func (t *trial) note() {
	for _, group := range t.engine.groups() {
		t.groups[group] = true
	}
}

// remaining returns the work that is left of all runs: of a Map the shards that are not done, of another run all of it.
func (s *sender) remaining(views map[string]ledger.RunView) (left []event) {
	for run, e := range s.expected() {
		view, seen := views[run]
		if seen && view.State != predictor.RunRunning {
			continue
		}
		for _, stage := range view.Stages {
			if stage.Name == "work" || stage.Name == "trip" {
				e.Input.Shards -= min(stage.Done, e.Input.Shards-1)
			}
			if stage.Name == "count" {
				e.Input.Shards -= min(stage.Step, e.Input.Shards-1)
			}
		}
		e.Goal, e.Input.Salt = nil, e.Input.Salt+" again"
		left = append(left, e)
	}
	slices.SortFunc(left, func(a, b event) int { return len(a.ID) - len(b.ID) })
	return left
}

// settle waits until all is done and checks everything.
func (t *trial) settle(ctx context.Context, left []event, last time.Time) error {
	drained, views, err := t.sender.drained(ctx)
	if err != nil {
		t.checks = append(t.checks, Check{
			Name:  "every run ends",
			Wrong: append([]string{err.Error()}, t.unfinished(views)...),
		})
		return nil
	}
	t.say("all runs have ended %s after the last kill", drained.Sub(last).Round(100*time.Millisecond))
	if err := t.checkRuns(ctx, views); err != nil {
		return err
	}
	balance, stopped, err := t.checkLedger(ctx, views)
	if err != nil {
		return err
	}
	t.checks = append(t.checks, balance, stopped)
	if t.config.Left > 0 {
		check, err := t.compareDrain(ctx, left, drained.Sub(last))
		if err != nil {
			return err
		}
		t.checks = append(t.checks, check)
	}
	t.checks = append(t.checks, t.kills())
	return nil
}

func (t *trial) unfinished(views map[string]ledger.RunView) (wrong []string) {
	for run := range t.sender.expected() {
		if view := views[run]; view.State == predictor.RunRunning || view.State == "" {
			wrong = append(wrong, fmt.Sprintf("run %s goes on: %+v", run, view))
		}
	}
	return wrong
}

// checkRuns checks how runs ended, that there is one for each event, and that budgets were kept.
func (t *trial) checkRuns(ctx context.Context, views map[string]ledger.RunView) error {
	ends, budgets := Check{Name: "every run ends as it should, each shard once"}, Check{Name: "budgets are kept"}
	expected := t.sender.expected()
	most, limited := 0.0, 0
	for run, e := range expected {
		view := views[run]
		var full []byte
		if view.State == predictor.RunSucceeded {
			result, err := t.engine.client.Result(ctx, run)
			if err != nil {
				return fmt.Errorf("result of run %s: %w", run, err)
			}
			full = result
		}
		if wrong := difference(e, view, full); wrong != "" {
			ends.Wrong = append(ends.Wrong, fmt.Sprintf("run %s: %s", run, wrong))
		}
		if e.Goal == nil || e.Goal.Budget == 0 {
			continue
		}
		limited++
		most = max(most, float64(view.Totals.Cost)/float64(e.Goal.Budget))
		if over := view.Totals.Cost - e.Goal.Budget; over > overshoot {
			budgets.Wrong = append(budgets.Wrong, fmt.Sprintf("run %s: it cost %s, its budget was %s", run, view.Totals.Cost,
				e.Goal.Budget))
		}
	}
	ends.Found = fmt.Sprintf("%d runs", len(views))
	budgets.Found = fmt.Sprintf("%d runs, at most %.0f%% spent", limited, 100*most)
	once := Check{Name: "one run for each event", Found: fmt.Sprintf("%d events sent %d times each", len(expected), sends)}
	for run := range views {
		if _, sent := expected[run]; !sent {
			once.Wrong = append(once.Wrong, "run "+run+" is of no event")
		}
	}
	if t.sender.err != nil {
		once.Wrong = append(once.Wrong, t.sender.err.Error())
	}
	t.checks = append(t.checks, ends, once, budgets)
	return nil
}

// overshoot is what may be spent beyond a budget: what all cores cost in a sample period.
const overshoot = 25 * quantity.Money(1_000_000)

// checkLedger compares the accounts, stops the engine, and looks for what it leaves.
func (t *trial) checkLedger(
	ctx context.Context, views map[string]ledger.RunView,
) (ledgerCheck, leftovers Check, err error) {
	ledgerCheck, leftovers = Check{Name: "the ledger equals the hosts' own account"}, Check{Name: "nothing is left behind"}
	stack, err := t.engine.client.Stack(ctx)
	if err != nil {
		return ledgerCheck, leftovers, fmt.Errorf("describe the stack: %w", err)
	}
	t.note()
	bill, err := t.engine.client.Cost(ctx, ledger.BillQuery{By: ledger.ByVenue})
	if err != nil {
		return ledgerCheck, leftovers, fmt.Errorf("ask what it cost: %w", err)
	}
	listed, err := t.engine.attempts(ctx, views)
	if err != nil {
		return ledgerCheck, leftovers, err
	}
	if err := t.engine.stop(); err != nil {
		leftovers.Wrong = append(leftovers.Wrong, err.Error())
	}
	lives, _ := t.engine.history()
	own, err := readLogs(lives, t.full, stack.Hosts[0], stack.Functions)
	if err != nil {
		return ledgerCheck, leftovers, err
	}
	b := compare(listed, views, own)
	if sum := bill.Pool + bill.Function; sum != b.sum {
		b.find("the bill has %d picodollars, the attempts %d", sum, b.sum)
	}
	ledgerCheck.Found = fmt.Sprintf("%d attempts, %d of them lost, %d were not recorded any more before a kill, %d "+
		"invokes of functions",
		b.attempts, b.lost, b.unrecorded, own.count)
	ledgerCheck.Wrong = b.wrong
	var groups []string
	for group := range t.groups {
		groups = append(groups, group)
	}
	leftovers.Found = fmt.Sprintf("processes, %d cgroups, %d ports, workspaces, temporary files", len(groups),
		len(t.engine.ports))
	leftovers.Wrong = append(leftovers.Wrong, t.engine.leftovers(groups)...)
	return ledgerCheck, leftovers, nil
}

// kills tells what was done, and what could not be.
func (t *trial) kills() Check {
	lives, byself := t.engine.history()
	c := Check{Name: "disturbances", Found: fmt.Sprintf(
		"%d kills of the engine, %d of children, %d of functions, %d full disks, %d skewed clocks; %d lives, %d of which "+
			"ended by themselves",
		t.done[killEngine], t.done[killChild], t.done[killFunction], t.done[fillDisk], t.done[skewClocks], len(lives),
		byself)}
	for what, times := range t.missed {
		c.Skipped += fmt.Sprintf("%s: not possible %d times; ", what, times)
	}
	return c
}

// compareDrain times what was left at the last kill on another engine that nobody disturbs.
func (t *trial) compareDrain(ctx context.Context, left []event, took time.Duration) (c Check, err error) {
	c.Name = "after the last kill the backlog drains as fast as undisturbed"
	alone, err := t.undisturbed(ctx, left)
	if err != nil {
		return c, err
	}
	limit := time.Duration(slower*float64(alone)) + later
	c.Found = fmt.Sprintf("%d runs: %s after the kill, %s undisturbed, at most %s", len(left),
		took.Round(100*time.Millisecond),
		alone.Round(100*time.Millisecond), limit.Round(100*time.Millisecond))
	if took > limit {
		c.Wrong = append(c.Wrong, fmt.Sprintf("it took %.2f times as long", float64(took)/float64(alone)))
	}
	if alone < t.config.Left {
		c.Wrong = append(c.Wrong, fmt.Sprintf("only %s of work was left, want %s", alone.Round(time.Second), t.config.Left))
	}
	return c, nil
}

// undisturbed runs the events on a new engine, which has seen as much of each pipeline as it takes to predict it, and
// returns how long they take.
func (t *trial) undisturbed(ctx context.Context, left []event) (took time.Duration, err error) {
	state := filepath.Join(t.config.Dir, "undisturbed")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return 0, fmt.Errorf("make a state directory: %w", err)
	}
	e, err := newEngine(t.config, state, filepath.Join(t.config.Dir, "undisturbed-logs"))
	if err != nil {
		return 0, err
	}
	if err := e.start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.stop()) }()
	if err := e.ready(ctx); err != nil {
		return 0, err
	}
	s := newSender(ctx, e)
	if err := s.serveChain(ctx); err != nil {
		return 0, err
	}
	for n := range 10 {
		if err := s.once(ctx, load(t.config.Seed+1, n)); err != nil {
			return 0, err
		}
	}
	if _, _, err := s.drained(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	for _, one := range left {
		if err := s.once(ctx, one); err != nil {
			return 0, err
		}
	}
	ended, _, err := s.drained(ctx)
	return ended.Sub(began), err
}

// mostTold is how much of what is wrong is told of one check.
const mostTold = 12

// String is one line, and one more for each thing that is wrong.
func (c Check) String() string {
	word := "ok    "
	if len(c.Wrong) > 0 {
		word = "BROKEN"
	}
	text := word + "  " + c.Name + ": " + c.Found
	if c.Skipped != "" {
		text += " (" + c.Skipped + ")"
	}
	lines := append([]string{text}, c.Wrong[:min(len(c.Wrong), mostTold)]...)
	if more := len(c.Wrong) - mostTold; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n          ")
}
