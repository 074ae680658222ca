package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// TestManyAttemptsLeaveNothing runs attempts of every kind, most of which end badly, and looks for what they might have
// left: processes (start looks for those), groups, file descriptors and files. It tells what starting one takes.
func TestManyAttemptsLeaveNothing(t *testing.T) { // not parallel: it counts this process's file descriptors
	attempts := 120
	if os.Getenv("SPILLWAY_MEASURE") != "" {
		attempts = 1000
	}
	h, _, state := startWithStore(t, 2, nil)
	h.done(t, order{Do: "report"})
	before := descriptors(t)
	kinds := []func(id string) error{
		func(id string) error {
			_, err := h.submit(t, order{Do: "report"}, func(task *wire.Task) { task.ID = id }).Wait(t)
			return err
		},
		func(id string) error {
			_, err := h.submit(t, order{Do: "exit"}, func(task *wire.Task) { task.ID, task.MaxAttempts = id, 1 }).Wait(t)
			return expected(err)
		},
		func(id string) error {
			_, err := h.command(t, id, shell(`echo x >file; mkdir -p a/b; echo done`), nil).Wait(t)
			return err
		},
		func(id string) error {
			_, err := h.command(t, id, shell(`sleep 60 & setsid sleep 60 & exit 4`), nil).Wait(t)
			return expected(err)
		},
	}
	for i := range attempts {
		if err := kinds[i%len(kinds)]("task-" + strconv.Itoa(i)); err != nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
	}
	var cold, reused, commands []time.Duration
	for _, record := range h.records() {
		switch {
		case strings.HasPrefix(record.Error, "the command") || record.PoolOnly:
			commands = append(commands, record.Start)
		case record.Cold:
			cold = append(cold, record.Start)
		default:
			reused = append(reused, record.Start)
		}
	}
	if after := descriptors(t); after > before+8 { // connections to the frontend come and go
		t.Errorf("%d file descriptors are open, %d were before %d attempts", after, before, attempts)
	}
	groups := owned(t, state)
	if h.agent.enforcer.Mode() != enforce.None && len(groups) == 0 {
		t.Error("the agent has no groups, so this proves nothing about them")
	}
	if err := h.stop(); err != nil {
		t.Error(err)
	}
	var left []string
	err := filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && entry.Name() != "cgroups.lock" {
			left = append(left, path)
		}
		return err
	})
	if err != nil || len(left) > 0 {
		t.Errorf("files: %v, %v, want none", left, err)
	}
	for _, group := range groups {
		if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the group %s is left", group)
		}
	}
	t.Logf("%d attempts; start of a cold child p50 %s, of a reused one %s, of a command with its workspace %s", attempts,
		middle(cold), middle(reused), middle(commands))
}

// owned lists the directories of the agent's groups, as it wrote them down for whoever comes after a crash.
func owned(t *testing.T, state string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(state, "cgroups.lock"))
	if err != nil {
		t.Fatal(err)
	}
	var record struct {
		Directories []string `json:"directories"`
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &record); err != nil {
			t.Fatal(err)
		}
	}
	return record.Directories
}

// expected turns an error that must come into none.
func expected(err error) error {
	if err == nil {
		return errors.New("it succeeded")
	}
	return nil
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc to count file descriptors")
	}
	return len(entries)
}

func middle(values []time.Duration) time.Duration {
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[len(values)/2].Round(10 * time.Microsecond)
}
