package command

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// maxRequirements bounds a file of requirements; a lock file with hashes of a large project is a tenth of it.
	maxRequirements = 8 << 20
	// pipLines is how many of pip's last lines an error shows: its message is at the end, after what it collected.
	pipLines = 12
	// pipBytes bounds what is kept of its output for that.
	pipBytes = 32 << 10
	// pipGrace is how long pip's own children may hold its output after its end.
	pipGrace = 5 * time.Second
)

// interpreterScript tells all that an environment depends on besides its requirements.
const interpreterScript = `import platform, sys; print(sys.executable, sys.version, platform.platform(), sep="\n")`

// environmentFor returns the Python environment with these requirements. It is made once for the same requirements,
// interpreter and host.
func (w *Workspace) environmentFor(ctx context.Context, requirements activities.Ref) (*cached, error) {
	if requirements.Bytes > maxRequirements {
		return nil, fmt.Errorf("%w: the requirements are of %d bytes; is it the right file?", ErrInvalid, requirements.Bytes)
	}
	content, err := activities.ReadAll(ctx, w.store, requirements.Digest)
	if err := fetching("requirements", requirements, err); err != nil {
		return nil, err
	}
	python, err := w.interpreter()
	if err != nil {
		return nil, err
	}
	described, err := w.python3(ctx, "ask it for its version", python, "-I", "-c", interpreterScript)
	if err != nil {
		return nil, err
	}
	key := fmt.Sprintf("%s\n%s", requirements.Digest, described)
	if user := w.options.User; user != nil { // who can change it
		key += fmt.Sprintf("\nuser %d", user.UID)
	}
	sum := sha256.Sum256([]byte(key))
	return w.options.cache().use(ctx, "python-"+hex.EncodeToString(sum[:]), func(ctx context.Context, dir string) error {
		if err := errors.Join(w.options.User.Give(dir), w.options.User.Admit(0o710, w.options.Cache)); err != nil {
			return err
		}
		return w.makeEnvironment(ctx, python, content, dir)
	})
}

// wheels is the directory in which pip keeps what it has fetched and built, which is its user's.
func (w *Workspace) wheels() string {
	dir := filepath.Join(w.options.Cache, "pip")
	if w.options.User != nil {
		dir += "-" + strconv.Itoa(w.options.User.UID)
	}
	return dir
}

// interpreter finds the Python of which environments are made.
func (w *Workspace) interpreter() (string, error) {
	name := w.options.Python
	if name == "" {
		name = "python3"
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	paths, _ := w.options.lookup()("PATH")
	found, err := inPath(name, paths)
	if err != nil {
		return "", fmt.Errorf("%w: %w; install Python 3 or name an interpreter", ErrRequirements, err)
	}
	return found, nil
}

// makeEnvironment fills dir with an environment. Without any requirement pip is left out, which takes most of the time.
func (w *Workspace) makeEnvironment(ctx context.Context, python string, requirements []byte, dir string) error {
	if !hasRequirements(requirements) {
		_, err := w.python3(ctx, "make an environment", python, "-I", "-m", "venv", "--without-pip", dir)
		return err
	}
	if _, err := w.python3(ctx, "make an environment (Debian and Ubuntu have it in the package python3-venv)", python,
		"-I", "-m", "venv", dir); err != nil {
		return err
	}
	file := filepath.Join(w.dir, "requirements.txt") // where programs cannot put a link
	err := errors.Join(os.WriteFile(file, requirements, 0o600), w.options.User.Admit(0o640, file))
	if err != nil {
		return fmt.Errorf("write the requirements: %w", err)
	}
	if err := os.Mkdir(w.wheels(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the cache of pip: %w", err)
	}
	if err := w.options.User.Give(w.wheels()); err != nil {
		return err
	}
	_, err = w.python3(ctx, "pip install", filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--no-input",
		"--disable-pip-version-check",
		"--no-color", "--progress-bar=off", "-r", file)
	return errors.Join(err, os.Remove(file))
}

// hasRequirements reports whether a file of requirements has more than comments.
func hasRequirements(content []byte) bool {
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, maxRequirements)
	for lines.Scan() {
		if line := bytes.TrimSpace(lines.Bytes()); len(line) > 0 && line[0] != '#' {
			return true
		}
	}
	return lines.Err() != nil
}

// python3 runs Python and returns its standard output. What it starts ends with ctx, compilers and all, and Python with
// this process.
func (w *Workspace) python3(ctx context.Context, what string, arguments ...string) ([]byte, error) {
	//nolint:gosec // the interpreter is the operator's choice
	cmd := exec.CommandContext(ctx, arguments[0], arguments[1:]...)
	cmd.Env = w.pipEnvironment()
	cmd.Dir = w.temporary()
	var out bytes.Buffer
	all := spawn.NewLastBytes(pipBytes)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, all), all
	cmd.WaitDelay = pipGrace
	run := w.options.Assist
	if run == nil {
		run = spawn.Run
	}
	if err := run(cmd); ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	} else if err != nil {
		if full := diskFull(all.Text()); full != nil {
			err = fmt.Errorf("%w: %w", err, full)
		}
		return nil, fmt.Errorf("%w: %s: %w\n%s", ErrRequirements, what, err, lastLines(all.Text(), pipLines))
	}
	return out.Bytes(), nil
}

// diskFull is what Python met when it says that there was no room left on the disk; nil when it does not.
func diskFull(output string) error {
	for _, met := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(output, fmt.Sprintf("[Errno %d]", int(met))) {
			return met
		}
	}
	return nil
}

// pipEnvironment returns what pip may know of the host: where packages come from, how to get there, and no more.
// Packages may run code when they are built. HOME is the workspace's; the cache of wheels is shared by all.
func (w *Workspace) pipEnvironment() []string {
	lookup := w.options.lookup()
	values := map[string]string{
		"HOME": w.home(), "TMPDIR": w.temporary(), "PIP_CACHE_DIR": w.wheels(),
	}
	maps.Copy(values, spawn.Variables(lookup,
		"PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
		"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_FIND_LINKS",
		"PIP_NO_INDEX",
		"PIP_CONFIG_FILE", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_CONSTRAINT", "PYENV_ROOT", "PYENV_VERSION",
	))
	if home, set := lookup("HOME"); set && values["PIP_CONFIG_FILE"] == "" {
		if config := filepath.Join(home, ".config", "pip", "pip.conf"); isFile(config) {
			values["PIP_CONFIG_FILE"] = config
		}
	}
	return spawn.Environment(values)
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// lastLines returns the last lines of a text, at most most.
func lastLines(text string, most int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
