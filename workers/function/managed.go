package function

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// searchPath is the PATH of functions.
	searchPath = "/usr/local/bin:/usr/bin:/bin"
	// wrapperVariable names the program that a managed runtime is started by:
	// https://docs.aws.amazon.com/lambda/latest/dg/runtimes-modify.html#runtime-wrapper.
	wrapperVariable = "AWS_LAMBDA_EXEC_WRAPPER"
	// taskRoot is where AWS unpacks a function's zip.
	taskRoot = "/var/task/"
	// runtimeDir is where a managed runtime has its own code on AWS; there is none of it here.
	runtimeDir = "/var/runtime"
)

// isManaged reports whether the function is of a managed runtime, with a language, and brings no bootstrap.
func (c config) isManaged() bool { return !strings.HasPrefix(c.Runtime, "provided") }

// checkRuntime refuses a runtime that this host does not have. Of a managed one it has the interpreter only, that of
// this machine: the code that AWS runs with it is AWS's, and a function that does without it starts by a wrapper.
func (c config) checkRuntime() error {
	if !c.isManaged() {
		return nil
	}
	switch here, wrapper := Python(), c.Variables[wrapperVariable]; {
	case !strings.HasPrefix(c.Runtime, "python3"):
		return errInvalid("runtime %q does not run here: use provided.al2023 with a bootstrap", c.Runtime)
	case here == "":
		return errInvalid("runtime %q does not run here: there is no python3 in %s", c.Runtime,
			strings.ReplaceAll(searchPath, ":", ", "))
	case c.Runtime != here:
		return errInvalid("runtime %q does not run here: this machine has %s", c.Runtime, here)
	case !strings.HasPrefix(wrapper, taskRoot) || !filepath.IsLocal(strings.TrimPrefix(wrapper, taskRoot)):
		return errInvalid("runtime %q runs here only by a wrapper of the zip: set %s to its path, such as %sbootstrap",
			c.Runtime, wrapperVariable, taskRoot)
	}
	return nil
}

// entry returns what is executed when an environment starts whose zip is unpacked in dir: the bootstrap or, of a
// managed runtime, the wrapper with the interpreter and what that would run. OS-only runtimes know no wrapper.
func (c config) entry(dir string) (program string, arguments []string) {
	if !c.isManaged() {
		return filepath.Join(dir, "bootstrap"), nil
	}
	wrapper := filepath.FromSlash(strings.TrimPrefix(c.Variables[wrapperVariable], taskRoot))
	python, _ := interpreter()
	return filepath.Join(dir, wrapper), []string{python, runtimeDir + "/bootstrap.py"}
}

// Python returns the identifier of the one managed runtime that a host on this machine has: "python3.12" where that is
// what python3 means in the directories that functions look in; empty where there is none.
func Python() string {
	_, runtime := interpreter()
	return runtime
}

var pythonPattern = regexp.MustCompile(`^python3\.[0-9]+$`)

// interpreter finds python3 and the runtime that it is. Its version is read in what its links lead to, so that nothing
// is run to learn it.
func interpreter() (path, runtime string) {
	for _, dir := range filepath.SplitList(searchPath) {
		file := filepath.Join(dir, "python3")
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			continue
		}
		target, err := filepath.EvalSymlinks(file)
		if err != nil || !pythonPattern.MatchString(filepath.Base(target)) {
			return "", "" // it is what programs find first, and nobody knows which version it is
		}
		return filepath.Join(dir, filepath.Base(target)), filepath.Base(target)
	}
	return "", ""
}
