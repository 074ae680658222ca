package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one that the engine has started, directly or not.
type process struct {
	pid      int
	name     string
	function bool // it is an environment of a function
}

// processes lists those whose program or working directory is below dir.
func processes(dir string) (found []process) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil || pid == os.Getpid() {
			continue
		}
		program, _ := os.Readlink(filepath.Join(entry, "exe")) // empty for one that has just ended
		at, _ := os.Readlink(filepath.Join(entry, "cwd"))
		if !below(program, dir) && !below(at, dir) {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join(entry, "environ")) // the same
		found = append(found, process{
			pid: pid, name: program,
			function: bytes.Contains(environment, []byte("AWS_LAMBDA_RUNTIME_API=")),
		})
	}
	return found
}

func below(path, dir string) bool { return strings.HasPrefix(path, dir+string(filepath.Separator)) }

// killOne kills one of the engine's processes, and says whether there was one within the limit.
func (e *engine) killOne(function bool, pick float64, limit time.Duration) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(poll) {
		candidates := slices.DeleteFunc(processes(e.state), func(p process) bool { return p.function != function })
		if len(candidates) == 0 {
			continue
		}
		chosen := candidates[int(pick*float64(len(candidates)))]
		if syscall.Kill(chosen.pid, syscall.SIGKILL) == nil {
			return true
		}
	}
	return false
}

// groups returns the cgroups that the engine has made, by its own records: of its pool, and of its functions.
func (e *engine) groups() (groups []string) {
	for _, owner := range []string{e.state, filepath.Join(e.state, "functions")} {
		text, err := os.ReadFile(filepath.Join(owner, "cgroups.lock"))
		if err != nil || len(text) == 0 {
			continue
		}
		var record struct{ Directories []string }
		_ = json.NewDecoder(bytes.NewReader(text)).Decode(&record) // an engine that is being killed may be writing it
		groups = append(groups, record.Directories...)
	}
	return groups
}

// leftovers lists what an engine that has ended should have taken along. Groups are those that it has ever had.
func (e *engine) leftovers(groups []string) (left []string) {
	for end := time.Now().Add(e.config.Patience); len(processes(e.state)) > 0 && time.Now().Before(end); {
		time.Sleep(poll)
	}
	for _, p := range processes(e.state) {
		left = append(left, fmt.Sprintf("process %d (%s)", p.pid, p.name))
	}
	for _, group := range groups {
		if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
			left = append(left, "cgroup "+group)
		}
	}
	for _, port := range e.ports {
		//nolint:noctx // it is closed at once
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			left = append(left, fmt.Sprintf("port %d", port))
			continue
		}
		_ = listener.Close() // it was free
	}
	for _, dir := range []string{filepath.Join(e.state, "workspaces"), filepath.Join(e.logs, "tmp")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = append(left, err.Error())
		}
		for _, entry := range entries {
			left = append(left, filepath.Join(dir, entry.Name()))
		}
	}
	return left
}
