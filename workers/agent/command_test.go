package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

// shell is a command that runs a script.
func shell(script string) wire.Command {
	return wire.Command{Arguments: []string{"sh", "-c", script}, Grace: 200 * time.Millisecond}
}

// startWithStore runs an agent that may run commands, and keeps what they print by task and attempt.
func startWithStore(
	t *testing.T, slots int, edit func(*Options),
) (h *host, printed func(task string, attempt int) string, state string) {
	t.Helper()
	var mu sync.Mutex
	all := map[string]*printing{}
	key := func(task string, attempt int) string { return task + "#" + strconv.Itoa(attempt) }
	state = t.TempDir()
	h = start(t, slots, func(o *Options) {
		o.StateDir, o.Store, o.WorkspaceBytes = state, commandtest.NewStore(), 256*quantity.MiB
		o.Declared = func(context.Context, slot.Order) error { return nil }
		o.Output = func(source wire.LogSource) activities.Output {
			mu.Lock()
			defer mu.Unlock()
			p := &printing{source: source}
			all[key(source.Task, source.Attempt)] = p
			return p
		}
		if edit != nil {
			edit(o)
		}
	})
	return h, func(task string, attempt int) string {
		mu.Lock()
		defer mu.Unlock()
		if p := all[key(task, attempt)]; p != nil {
			return p.out.String() + p.err.String()
		}
		return ""
	}, state
}

func (h *host) command(t *testing.T, id string, c wire.Command, edit func(*wire.Task)) *slottest.Activity {
	t.Helper()
	task := wire.Task{
		Version: wire.Version, Run: "r", Pipeline: "p", Stage: stage, ID: id, MaxAttempts: 1, Declared: of(1, 64),
		PoolOnly: true, Command: true,
	}
	if edit != nil {
		edit(&task)
	}
	return h.frontend.Submit(t, stage.Queue(), task, c)
}

// A program that was refused processes says "resource temporarily unavailable", or goes on with fewer workers.
func TestAnAttemptThatIsRefusedProcessesIsToldWhy(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, printed, _ := startWithStore(t, 1, func(o *Options) { o.Processes, o.SampleEvery = 8, time.Hour })
	const fork = `for i in 1 2 3 4 5 6 7 8 9 10; do sleep 60 & done; `
	const why = "to start a process or thread for it, as it had the 8 that an attempt may have at once"
	_, err := h.command(t, "fails", shell(fork+"exit 3"), nil).Wait(t)
	record := h.records()[0]
	if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(record.Error, why) {
		t.Errorf("it failed with %v, and its Record says %q; want %q", err, record.Error, why)
	}
	// a shell that cannot fork ends; in another one it goes on
	if _, err := h.command(t, "goes on", shell("sh -c '"+fork+"' || true"), nil).Wait(t); err != nil {
		t.Errorf("it failed with %v", err)
	}
	if text := printed("goes on", 1); strings.Count(text, why) != 1 {
		t.Errorf("it printed %q, want once %q", text, why)
	}
}

func TestACommandLeavesItsOutputsReportsAndLines(t *testing.T) {
	t.Parallel()
	h, printed, state := startWithStore(t, 1, func(o *Options) { o.SampleEvery = time.Hour })
	c := shell(`echo hello; echo '{"progress": 2, "metrics": {"loss": 0.5}}' >$SPILLWAY_REPORT
		echo '{"result": {"accuracy": 0.9}}' >$SPILLWAY_REPORT; echo "$SPILLWAY_TASK $SPILLWAY_ATTEMPT" >model; sleep 0.05`)
	c.Outputs = []wire.CommandOutput{{Name: "model", Path: "model"}}
	c.Parameters = map[string]float64{"epochs": 3}
	result, err := h.command(t, "train-1", c, nil).Wait(t)
	if err != nil {
		t.Fatal(err)
	}
	var out wire.CommandResult
	if err := json.Unmarshal(result.Output, &out); err != nil {
		t.Fatal(err)
	}
	if out.Outputs["model"].Artifact.Bytes != int64(len("train-1 1\n")) || out.Values["accuracy"] != 0.9 {
		t.Errorf("result: got %+v, want the model and its accuracy", out)
	}
	if got := printed("train-1", 1); got != "hello\n" {
		t.Errorf("printed: got %q, want hello", got)
	}
	record := h.records()[0]
	if record.Outcome != predictor.Succeeded || !record.Cold || record.Features["epochs"] != 3 ||
		record.Usage.Wall < 50*time.Millisecond || record.Cost <= 0 {
		t.Errorf("Record: got %+v, want a success with its features, time and cost", record)
	}
	if record.Step != 2 || record.Metrics["loss"] != 0.5 {
		t.Errorf("Record: got step %d and %v, want the last that it reported", record.Step, record.Metrics)
	}
	if left, err := os.ReadDir(filepath.Join(state, "workspaces")); err != nil || len(left) > 0 {
		t.Errorf("workspaces: %v, %v, want none", left, err)
	}
}

func TestACommandIsSampledWithWhatItReported(t *testing.T) {
	t.Parallel()
	h, _, _ := startWithStore(t, 1, nil)
	enough := filepath.Join(t.TempDir(), "enough")
	c := shell(`echo '{"progress": 2, "metrics": {"loss": 0.5}}' >$SPILLWAY_REPORT; until [ -e "` + enough +
		`" ]; do sleep 0.01; done`)
	a := h.command(t, "train-1", c, nil)
	await[predictor.Sampled](t, h.recorder, "a sample with the step", func(s predictor.Sampled) bool {
		return s.Step == 2 && s.Metrics["loss"] == 0.5
	})
	if err := os.WriteFile(enough, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Wait(t); err != nil {
		t.Error(err)
	}
}

func TestACommandFailsWithItsCause(t *testing.T) {
	t.Parallel()
	// What takes a quarter of its limit, as a Java does, and is refused more: tail keeps a line that has no end.
	const quarter = `head -c $((SPILLWAY_MEMORY_BYTES / 4)) /dev/zero | tail -n 1 >/dev/null; echo MemoryError >&2; exit 1`
	for _, c := range []struct {
		name    string
		command wire.Command
		outcome predictor.Outcome
		cause   predictor.Cause
		message string
		tries   int // of three
	}{
		{
			"a failure that comes again", shell(`echo '{"retry": false}' >$SPILLWAY_REPORT; echo no such column; exit 2`),
			predictor.Failed, predictor.CauseExit,
			`exit code 2: no such column; it reported {"retry": false} (not tried again, although 2 of 3 attempts are left`, 1,
		},
		{
			"memory that more would not help", shell(`echo '{"retry": false}' >$SPILLWAY_REPORT; ` + quarter),
			predictor.OutOfMemory, predictor.CauseMemoryRefused, "needs 2 GiB or more", 5,
		},
		{
			"an exit code", shell("echo one; echo two >&2; exit 3"), predictor.Failed, predictor.CauseExit, "exit code 3: two",
			3,
		},
		{
			"a signal", shell("kill -SEGV $$"), predictor.Failed, predictor.CauseSignal,
			"the command was killed by SIGSEGV (segmentation fault)", 3,
		},
		{
			"a program that is not there",
			wire.Command{Arguments: []string{"no-such-program"}},
			predictor.Failed,
			predictor.CauseStart, `"no-such-program" is not in PATH`, 1,
		},
		{"a command of nothing", wire.Command{}, predictor.Failed, predictor.CauseStart, "names no program", 1},
		{
			"an output that is missing",
			wire.Command{Arguments: []string{"true"}, Outputs: []wire.CommandOutput{{Name: "m", Path: "m"}}},
			predictor.Failed, predictor.CauseError, "ended without making m", 3,
		},
		{
			"an input that is gone",
			wire.Command{Arguments: []string{"true"}, Files: []wire.CommandFile{{
				Path:     "x",
				Artifact: activities.Ref{Digest: strings.Repeat("0", 64), Bytes: 1},
			}}},
			predictor.Failed, predictor.CauseStart, "run the stage that makes it again", 1,
		},
		{
			"memory that Python was refused", shell(quarter), predictor.OutOfMemory,
			predictor.CauseMemoryRefused, "needs 2 GiB or more", 5,
		},
		{
			"memory that it reports", shell(`echo '{"out_of_memory": "device"}' >$SPILLWAY_REPORT; sleep 0.1; exit 1`),
			predictor.OutOfMemory, predictor.CauseDeviceMemory, "refused device memory", 3,
		},
		{"exit code 137 alone", shell("exit 137"), predictor.Failed, predictor.CauseExit, "exit code 137", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, _, _ := startWithStore(t, 1, nil)
			_, err := h.command(t, "train-1", c.command, func(task *wire.Task) { task.MaxAttempts = 3 }).Wait(t)
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || !strings.Contains(failed.Message(), c.message) {
				t.Errorf("got %v, want an error that says %q", err, c.message)
			}
			records := h.records()
			if len(records) != c.tries {
				t.Errorf("got %d attempts, want %d", len(records), c.tries)
			}
			for _, record := range records {
				if record.Outcome != c.outcome || record.Cause != c.cause {
					t.Errorf("Record: got %s because of %s (%s), want %s because of %s", record.Outcome, record.Cause, record.Error,
						c.outcome, c.cause)
				}
			}
			grown := records[len(records)-1].Grant.Memory > records[0].Grant.Memory
			if want := c.outcome == predictor.OutOfMemory && c.cause != predictor.CauseDeviceMemory &&
				c.tries > 1; grown != want {
				t.Errorf("memory from %s to %s: only running out of it makes the next attempt larger", records[0].Grant.Memory,
					records[len(records)-1].Grant.Memory)
			}
		})
	}
}

func TestACommandThatIgnoresSIGTERMIsKilledWithAllThatItStarted(t *testing.T) {
	t.Parallel()
	h, printed, _ := startWithStore(t, 1, nil)
	// A child in a session of its own, and one that ignores the signal as well.
	c := shell(`trap '' TERM; setsid sleep 300 & echo $!; sleep 300 & echo $!; echo started; while :; do sleep 0.1; done`)
	a := h.command(t, "train-1", c, func(task *wire.Task) { task.Timeout = 500 * time.Millisecond })
	_, err := a.Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || failed.Type() != wire.TimeoutError ||
		!strings.Contains(failed.Message(), "did not end within 200ms of SIGTERM and was killed") {
		t.Errorf("got %v, want a timeout that says that it had to be killed", err)
	}
	lines := strings.Fields(printed("train-1", 1))
	if len(lines) != 3 {
		t.Fatalf("printed %q, want two process numbers", lines)
	}
	for _, line := range lines[:2] {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) && !zombie(pid) {
			t.Errorf("process %d: got %v, want it gone", pid, err)
		}
	}
}

// zombie reports whether the process has ended and only waits to be collected, by whoever adopted it.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestACommandOnTermMayEndInItsOwnWay(t *testing.T) {
	t.Parallel()
	h, printed, _ := startWithStore(t, 1, nil)
	c := shell(`trap 'echo goodbye; exit 0' TERM; echo started; while :; do sleep 0.02; done`)
	c.Grace = time.Minute
	a := h.command(t, "train-1", c, nil)
	await[predictor.Sampled](t, h.recorder, "a sample", func(predictor.Sampled) bool {
		return strings.Contains(printedNow(printed), "started")
	})
	a.Cancel()
	if _, err := a.Wait(t); err == nil {
		t.Error("got no error, want a cancellation")
	}
	if got := printed("train-1", 1); !strings.Contains(got, "goodbye") {
		t.Errorf("printed %q, want its last words", got)
	}
	if record := h.records()[0]; record.Outcome != predictor.Cancelled {
		t.Errorf("Record: got %s, want cancelled", record.Outcome)
	}
}

func printedNow(printed func(string, int) string) string { return printed("train-1", 1) }

func TestAMemoryHogIsKilledAtItsLimitAndItsNeighbourLives(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 2, nil)
	neighbour := h.command(t, "calm-1",
		shell(`for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done; echo '{"result": {"lived": true}}' >$SPILLWAY_REPORT`), nil)
	hog := h.command(t, "hog-1", shell(`head -c 3000000000 /dev/zero | tail -c 3000000000 >/dev/null`), nil)
	_, err := hog.Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || failed.Type() != wire.MemoryError ||
		!strings.Contains(failed.Message(), "needs 2 GiB or more") {
		t.Errorf("the hog: got %v, want a %s", err, wire.MemoryError)
	}
	if _, err := neighbour.Wait(t); err != nil {
		t.Errorf("its neighbour: %v", err)
	}
	var grants []quantity.Bytes
	for _, record := range h.records() {
		if record.Task == "hog-1" {
			grants = append(grants, record.Grant.Memory)
			if record.Cause != predictor.CauseMemoryLimit {
				t.Errorf("cause: got %s, want %s", record.Cause, predictor.CauseMemoryLimit)
			}
		}
	}
	if len(grants) < 2 || grants[1] < 2*grants[0] || grants[len(grants)-1] != 1024*quantity.MiB {
		t.Errorf("grants: got %v, want each at least twice the one before, up to all that the host has", grants)
	}
}

// guess is a sizing that nobody has declared or measured.
func guess(memory quantity.Bytes) predictor.Sizing {
	return predictor.Sizing{Stage: stage, Base: quantity.Size{CPU: quantity.Core, Memory: memory}, Guess: true}
}

// memoryHog allocates this many bytes as fast as it can: tail keeps all that it may have to print.
func memoryHog(bytes quantity.Bytes) wire.Command {
	return shell(fmt.Sprintf(`head -c %d /dev/zero | tail -c %d >/dev/null`, bytes, bytes))
}

func TestAnAttemptOfUnknownNeedGrowsAsFastAsItAllocates(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 2, func(o *Options) { o.SampleEvery = time.Second })
	h.obeyed(placement(2, guess(16*quantity.MiB)))
	const need = 700 * quantity.MiB
	if _, err := h.command(t, "hog-1", memoryHog(need), nil).Wait(t); err != nil {
		t.Errorf("it needs %s, and the host has 1 GiB: %v", need, err)
	}
	records := h.records()
	if len(records) != 1 || records[0].Grant.Memory < need || records[0].Usage.PeakMemory < need ||
		records[0].Grant.Memory > 1024*quantity.MiB {
		t.Errorf("Records: got %+v, want one with a grant of all that it took", records)
	}
	await[predictor.Host](t, h.recorder, "an inventory with all room free", func(host predictor.Host) bool {
		return host.Free == host.Capacity
	})
}

func TestAnAttemptThatOutgrowsTheHostIsKilledAtAllThatItHad(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 1, nil)
	h.obeyed(placement(1, guess(16*quantity.MiB)))
	_, err := h.command(t, "hog-1", memoryHog(3*quantity.GiB), nil).Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || failed.Type() != wire.MemoryError {
		t.Errorf("the hog: got %v, want a %s", err, wire.MemoryError)
	}
	for _, record := range h.records() {
		if record.Outcome != predictor.OutOfMemory || record.Grant.Memory < record.Usage.PeakMemory ||
			record.Grant.Memory < 512*quantity.MiB {
			t.Errorf("Record: got %s with a grant of %s and a peak of %s, want it killed at the limit that it had",
				record.Outcome, record.Grant.Memory, record.Usage.PeakMemory)
		}
	}
}

// Two attempts of unknown need grow side by side, and one of them takes all that the host has: the other keeps what it
// has taken.
func TestAnAttemptThatOutgrowsTheHostKillsNoNeighbour(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 2, nil)
	h.obeyed(placement(2, guess(16*quantity.MiB)))
	neighbour := h.command(t, "calm-1", shell(`block=$(head -c 60000000 /dev/zero | tr '\0' x)
		while :; do sleep 0.05; done; echo ${#block}`), nil)
	await[predictor.Sampled](t, h.recorder, "the neighbour has taken what it needs", func(s predictor.Sampled) bool {
		return s.Task == "calm-1" && s.Grant.Memory >= 60*quantity.MiB
	})
	hog := h.command(t, "hog-1", memoryHog(3*quantity.GiB), nil)
	await[predictor.Record](t, h.recorder, "the hog is killed", func(r predictor.Record) bool {
		return r.Task == "hog-1" && r.Outcome == predictor.OutOfMemory
	})
	neighbour.Cancel() // its next attempt waits for all that the host has
	if _, err := hog.Wait(t); err == nil {
		t.Error("the hog takes 3 GiB, and the host has 1 GiB: got no error")
	}
	_, _ = neighbour.Wait(t)
	for _, record := range h.records() {
		if record.Task == "calm-1" && (record.Outcome != predictor.Cancelled || record.Grant.Memory > 256*quantity.MiB) {
			t.Errorf("the neighbour: got %s with %s, want it to run until it is cancelled", record.Outcome, record.Grant.Memory)
		}
	}
}

func TestAnAttemptThatGrewHoldsWhatItTakesWhateverAPlanSays(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, printed, _ := startWithStore(t, 1, nil)
	h.obeyed(placement(1, guess(16*quantity.MiB)))
	attempt := h.command(t, "train-1", shell(`block=$(head -c 60000000 /dev/zero | tr '\0' x)
		echo done; while :; do sleep 0.05; done; echo ${#block}`), nil)
	await[predictor.Sampled](t, h.recorder, "it holds what it has taken", func(s predictor.Sampled) bool {
		return strings.Contains(printed("train-1", 1), "done") && s.Grant.Memory >= 60_000_000
	})
	learned := guess(20 * quantity.MiB)
	learned.Guess, learned.Learned, learned.Attempts = false, true, 5
	for range 20 {
		learned.Base.Memory += quantity.MiB
		h.obeyed(placement(1, learned))
		h.agent.mu.Lock()
		running := slices.Collect(maps.Keys(h.agent.running))
		h.agent.mu.Unlock()
		for _, r := range running {
			if held := r.held(); held.Memory < 60_000_000 {
				t.Errorf("after a plan it holds %s, want the 57 MiB that it takes", held.Memory)
			}
		}
	}
	attempt.Cancel()
	if _, err := attempt.Wait(t); err == nil {
		t.Error("got no error, want its cancellation")
	}
}

// theOne is the attempt that runs.
func (h *host) theOne(t *testing.T) *running {
	t.Helper()
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()
	for r := range h.agent.running {
		return r
	}
	t.Fatal("no attempt runs")
	return nil
}

// An attempt is to give up what it takes: the kernel refuses, and the books go on to have all that it may take.
func TestWhatTheKernelDoesNotTakeBackIsHeld(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, printed, _ := startWithStore(t, 1, func(o *Options) { o.SampleEvery = time.Hour })
	h.obeyed(placement(1, guess(200*quantity.MiB)))
	attempt := h.command(t, "train-1", shell(`block=$(head -c 60000000 /dev/zero | tr '\0' x)
		echo done; while :; do sleep 0.05; done; echo ${#block}`), nil)
	awaitTrue(t, func() bool { return strings.Contains(printed("train-1", 1), "done") })
	r := h.theOne(t)
	r.mu.Lock()
	r.hold(0)
	r.lent = r.room.borrow(r.lent)
	r.mu.Unlock()
	all := h.agent.base
	all.CPU, all.Memory = quantity.Core, all.Memory-r.held().Memory
	room, err := h.agent.admission.reserve(t.Context(), all) // nothing is left to lend
	if err != nil {
		t.Fatal(err)
	}
	defer room.release()
	r.change(time.Now(), func(held, _ quantity.Size) quantity.Size {
		held.Memory = 16 * quantity.MiB
		return held
	})
	r.mu.Lock()
	booked := r.limit()
	held, err := r.live.group.Resize(booked)
	r.mu.Unlock()
	if err != nil || booked.Memory < 60_000_000 || booked.Memory >= 200*quantity.MiB || held.Memory != booked.Memory {
		t.Errorf("it takes 57 MiB: the books have %s and the kernel %s (%v), want the same, and less than 200 MiB",
			booked.Memory, held.Memory, err)
	}
	attempt.Cancel()
	if _, err := attempt.Wait(t); err == nil {
		t.Error("got no error, want its cancellation")
	}
}

// An attempt that says that it was refused memory is tried again with more than all that it might take.
func TestWhatWasRefusedIsTheLimitThatFailed(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 1, nil)
	h.obeyed(placement(1, guess(16*quantity.MiB)))
	_, err := h.command(t, "train-1", shell(`echo '{"out_of_memory": "host"}' >$SPILLWAY_REPORT; sleep 0.2; exit 1`),
		nil).Wait(t)
	if err == nil {
		t.Fatal("got no error")
	}
	record := h.records()[0]
	if record.Outcome != predictor.OutOfMemory || record.Grant.Memory < 512*quantity.MiB {
		t.Errorf("Record: got %s with a grant of %s, want that it ran out of memory with half of the host's 1 GiB",
			record.Outcome, record.Grant.Memory)
	}
}

// What is lent is taken back, so a command is told of what it holds. Go is told of no limit that may be raised.
func TestACommandIsToldOfWhatItHolds(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, printed, _ := startWithStore(t, 1, nil)
	script := `echo $SPILLWAY_MEMORY_BYTES ${GOMEMLIMIT-none}`
	memory := 64 * quantity.MiB
	for id, c := range map[string]struct {
		sizing predictor.Sizing
		want   string
	}{
		"guessed-1":  {guess(memory), fmt.Sprintf("%d none\n", memory)},
		"declared-1": {predictor.Sizing{Stage: stage, Base: of(1, 64)}, fmt.Sprintf("%d %d\n", memory, memory*9/10)},
	} {
		h.obeyed(placement(1, c.sizing))
		if _, err := h.command(t, id, shell(script), nil).Wait(t); err != nil {
			t.Fatal(err)
		}
		if got := printed(id, 1); got != c.want {
			t.Errorf("%s: it was told of %q, want %q", id, got, c.want)
		}
	}
}

// A container is held to what its engine was told at the start, so it borrows nothing.
func TestAContainerBorrowsNothing(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	bin := t.TempDir()
	engine := `#!/bin/sh
case $1 in run) for argument; do case $argument in --memory=*) echo $argument;; esac; done; esac
`
	if err := os.WriteFile(filepath.Join(bin, "podman"), []byte(engine), 0o700); err != nil {
		t.Fatal(err)
	}
	h, printed, _ := startWithStore(t, 1, nil)
	h.agent.commands.Lookup = func(name string) (string, bool) {
		if name == "PATH" {
			return bin + ":" + os.Getenv("PATH"), true
		}
		return os.LookupEnv(name)
	}
	h.obeyed(placement(1, guess(64*quantity.MiB)))
	c := shell(`true`)
	c.Image = "registry.example/fit"
	if _, err := h.command(t, "train-1", c, nil).Wait(t); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("--memory=%d\n", 64*quantity.MiB)
	if got := printed("train-1", 1); got != want {
		t.Errorf("the engine was told %q, want %q", got, want)
	}
}

// A container is in no group of ours: that the kernel killed it at its limit, its engine alone knows.
func TestAContainerThatTheKernelKilledIsTriedAgainWithMore(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	engine := `#!/bin/sh
case $1 in
run) for argument; do case $argument in --memory=*) memory=${argument#--memory=};; esac; done
	[ "$memory" -ge 268435456 ] || { : >` + bin + `/killed; exit 137; };;
inspect) [ -e ` + bin + `/killed ] && echo true || echo false;;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "podman"), []byte(engine), 0o700); err != nil {
		t.Fatal(err)
	}
	h, _, _ := startWithStore(t, 1, nil)
	h.agent.commands.Lookup = func(name string) (string, bool) {
		if name == "PATH" {
			return bin + ":" + os.Getenv("PATH"), true
		}
		return os.LookupEnv(name)
	}
	c := shell(`true`)
	c.Image = "registry.example/fit"
	if _, err := h.command(t, "train-1", c, nil).Wait(t); err != nil {
		t.Fatal(err)
	}
	records := h.records()
	if len(records) != 3 || records[0].Outcome != predictor.OutOfMemory ||
		records[0].Cause != predictor.CauseMemoryLimit || records[2].Outcome != predictor.Succeeded ||
		records[2].Grant.Memory < 256*quantity.MiB {
		t.Errorf("%+v", records)
	}
	const want = "the kernel killed its container at the memory limit of 64 MiB"
	if got := records[0].Error; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhatIsLentKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 2, func(o *Options) { o.SampleEvery = time.Hour })
	h.obeyed(placement(2, guess(16*quantity.MiB)))
	first := h.command(t, "calm-1", shell(`while :; do sleep 0.05; done`), nil)
	await[predictor.AttemptStarted](t, h.recorder, "the start of the first", func(predictor.AttemptStarted) bool {
		return true
	})
	h.obeyed(placement(2, predictor.Sizing{}))
	second := h.command(t, "large-1", shell(`true`), func(task *wire.Task) { task.Declared = of(1, 900) })
	if _, err := second.Wait(t); err != nil {
		t.Errorf("an attempt that fits beside what is held: %v", err)
	}
	first.Cancel()
	if _, err := first.Wait(t); err == nil {
		t.Error("the first: got no error, want its cancellation")
	}
}

func TestAForkBombIsContainedAndFullyKilled(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, printed, _ := startWithStore(t, 2, nil)
	bomb := h.command(t, "bomb-1", shell(`echo $$; bomb() { bomb | bomb & }; bomb; sleep 300`), func(task *wire.Task) {
		task.Timeout, task.Declared = 700*time.Millisecond, of(1, 64)
	})
	neighbour := h.command(t, "calm-1", shell(`sleep 0.5; echo calm`), nil)
	if _, err := neighbour.Wait(t); err != nil {
		t.Errorf("its neighbour: %v", err)
	}
	if _, err := bomb.Wait(t); err == nil {
		t.Error("the bomb: got no error, want one")
	}
	if len(printed("bomb-1", 1)) == 0 {
		t.Error("the bomb printed nothing, so it did not run")
	}
}

func TestADiskFillerIsStopped(t *testing.T) {
	t.Parallel()
	h, _, state := startWithStore(t, 1, func(o *Options) { o.WorkspaceBytes = 20 * quantity.MiB })
	_, err := h.command(t, "fill-1", shell(`while :; do head -c 1000000 /dev/zero >>big; sleep 0.002; done`),
		func(task *wire.Task) {
			task.Declared = of(1, 256)
		}).Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || !strings.Contains(failed.Message(), "may be 20 MiB") {
		t.Errorf("got %v, want an error that says how much it may take", err)
	}
	if record := h.records()[0]; record.Outcome != predictor.Failed || record.Cause != predictor.CauseDisk {
		t.Errorf("Record: got %s because of %s, want %s", record.Outcome, record.Cause, predictor.CauseDisk)
	}
	if left, err := os.ReadDir(filepath.Join(state, "workspaces")); err != nil || len(left) > 0 {
		t.Errorf("workspaces: %v, %v, want none", left, err)
	}
}

func TestACheckpointOfACommandIsWhereTheNextAttemptStarts(t *testing.T) {
	t.Parallel()
	h, _, _ := startWithStore(t, 1, nil)
	c := shell(`if [ -n "$SPILLWAY_RESUME" ]; then
			echo "{\"result\": {\"from\": $(cat "$SPILLWAY_RESUME")}}" >$SPILLWAY_REPORT
			sleep 0.1; exit 0
		fi
		echo 7 >state; echo '{"checkpoint": "state"}' >$SPILLWAY_REPORT; sleep 0.3; exit 1`)
	result, err := h.command(t, "train-1", c, func(task *wire.Task) { task.MaxAttempts = 2 }).Wait(t)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(result.Output), `"from":7`) {
		t.Errorf("got %s, want the second attempt to have resumed from 7", result.Output)
	}
}

// TestAttackACommandThatNobodyDeclaredDoesNotRun puts commands on the queue of a stage, as whoever reaches Temporal
// may.
func TestAttackACommandThatNobodyDeclaredDoesNotRun(t *testing.T) {
	t.Parallel()
	for name, declared := range map[string]slot.Declared{
		"nobody is asked": nil,
		"it is not declared": func(_ context.Context, order slot.Order) error {
			return fmt.Errorf("stage %s: %w", order.Task.Stage, slot.ErrUndeclared)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, _, _ := startWithStore(t, 1, func(o *Options) { o.Declared = declared })
			owned := filepath.Join(t.TempDir(), "owned")
			_, err := h.command(t, "train-1", shell("touch "+owned), nil).Wait(t)
			if failed, is := errors.AsType[*temporal.ApplicationError](err); !is || !failed.NonRetryable() ||
				failed.Type() != slot.MalformedError {
				t.Errorf("got %v, want a final refusal", err)
			}
			if _, err := os.Stat(owned); err == nil {
				t.Error("the command ran")
			}
			if records := h.records(); len(records) > 0 {
				t.Errorf("the forged task is accounted for: %+v", records)
			}
		})
	}
}

func TestACommandOfWhichItIsNotKnownWhetherItIsDeclaredIsTriedAgain(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	orders := make(chan slot.Order, 2)
	h, printed, _ := startWithStore(t, 1, func(o *Options) {
		o.Declared = func(_ context.Context, order slot.Order) error {
			orders <- order
			if asked.Add(1) == 1 {
				return errors.New("the disk does not answer")
			}
			return nil
		}
	})
	if _, err := h.command(t, "train-1", shell("echo ran"), nil).Wait(t); err != nil {
		t.Fatal(err)
	}
	if order := <-orders; order.Workflow != "r" || order.Task.ID != "train-1" || order.Command.Arguments[2] != "echo ran" {
		t.Errorf("asked about %+v, want the command and the workflow that scheduled it", order)
	}
	if got := printed("train-1", 2); got != "ran\n" {
		t.Errorf("printed %q, want that the second attempt ran", got)
	}
}
