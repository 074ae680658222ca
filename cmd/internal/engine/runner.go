package engine

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// runnerName is the name of the program that runs commands as functions, RunnerVariable names its path where that is
// not beside this program.
const (
	runnerName     = "spillway-runner"
	RunnerVariable = "SPILLWAY_RUNNER"
)

// runner is that program, ready to be deployed.
type runner struct{ path, digest string }

// errNoRunner says that there is none.
var errNoRunner = errors.New("functions run no commands")

// findRunner finds the runner: at the path given, or beside this program. It has to be a program of this processor that
// needs no library, as functions have none of this machine.
func findRunner(path string) (runner, error) {
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return runner{}, fmt.Errorf("%w: %w", errNoRunner, err)
		}
		if resolved, err := filepath.EvalSymlinks(own); err == nil {
			own = resolved
		}
		path = filepath.Join(filepath.Dir(own), runnerName)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return runner{}, fmt.Errorf("%w, as there is no %s: make build puts it beside spillway, and so does `CGO_ENABLED=0 "+
			"go install` of its package", errNoRunner, path)
	}
	if err != nil {
		return runner{}, fmt.Errorf("%w: %w", errNoRunner, err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	if _, err := awslambda.CheckProgram(path, runtime.GOARCH); err != nil {
		return runner{}, fmt.Errorf("%w: %w", errNoRunner, err)
	}
	if err := isStatic(file); err != nil {
		return runner{}, fmt.Errorf("%w: %s %w", errNoRunner, path, err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return runner{}, fmt.Errorf("%w: read %s: %w", errNoRunner, path, err)
	}
	return runner{path: path, digest: hex.EncodeToString(sum.Sum(nil))}, nil
}

// isStatic refuses what a function could not start.
func isStatic(file *os.File) error {
	binary, err := elf.NewFile(file)
	if err != nil {
		return fmt.Errorf("is no program of Linux, where functions run: %w", err)
	}
	for _, segment := range binary.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("needs libraries, which functions do not have: build it with CGO_ENABLED=0")
		}
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

// isPython reports whether a program is Python 3, which a function has where its runtime is Python's.
func isPython(program string) bool {
	minor, is := strings.CutPrefix(program, "python3")
	return program == "python" || is && strings.Trim(minor, ".0123456789") == ""
}

// The versions of Python 3 that AWS has managed runtimes of (checked on 2026-11-27), and the one where nobody knows
// better.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtimes.html
const oldestPython, newestPython, usualPython = 11, 14, 13

// pythonRuntime is the runtime of functions whose commands are in Python: of the version that the pool has, or the
// nearest that there is.
func (v *venues) pythonRuntime() string {
	if v.local != nil {
		if found := function.Python(); found != "" {
			return found
		}
	}
	return pythonRuntimeOf(minorOfPython(v.config.StageUser))
}

// pythonRuntimeOf is the runtime of AWS that is nearest to Python 3.minor; 0 is one that nobody knows.
func pythonRuntimeOf(minor int) string {
	if minor == 0 {
		minor = usualPython
	}
	return "python3." + strconv.Itoa(min(max(minor, oldestPython), newestPython))
}

// askPython bounds how long an interpreter may take to say its version.
const askPython = 10 * time.Second

// minorOfPython asks the pool's python3 which version it is; 0 where it does not say.
func minorOfPython(user *spawn.User) int {
	lookup := user.Lookup(os.LookupEnv)
	ctx, cancel := context.WithTimeout(context.Background(), askPython)
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "-I", "-c", "import sys; print(sys.version_info[1])")
	cmd.Env = spawn.Environment(spawn.Variables(lookup, "PATH", "HOME"))
	var out strings.Builder
	cmd.Stdout = &out
	spawner, err := spawn.New(spawn.Options{User: user})
	if err != nil {
		return 0
	}
	defer spawner.Close()
	if err := spawner.Run(ctx, cmd); err != nil {
		return 0
	}
	minor, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil || minor < 0 {
		return 0
	}
	return minor
}
