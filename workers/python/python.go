// Package python has the Python module by which scripts tell how an attempt goes: progress, results, checkpoints.
//
// The module lies in spillway beside this file, needs no other and Python 3.8, and writes the lines of
// [github.com/spillway-ml/spillway/activities/wire.ReportEnvironment]. Who starts attempts writes it where they find
// it, by [Write]; `spillway python` does so for programs that run elsewhere.
package python

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

//go:embed pyproject.toml spillway/*.py spillway/py.typed
var files embed.FS

// Module is the name under which scripts import it.
const Module = "spillway"

// Variable is the environment variable of the directories in which Python looks for modules before its own:
// https://docs.python.org/3/using/cmdline.html#envvar-PYTHONPATH
const Variable = "PYTHONPATH"

// Write writes the module into dir, which is made where it is not there. Whoever has dir on the path of Python can
// import it, and pip can install it from there.
func Write(dir string) error {
	if err := os.CopyFS(dir, files); err != nil {
		return fmt.Errorf("write the Python module %s: %w", Module, err)
	}
	return nil
}

// Seal lets everybody read what Write has written to dir and nobody write there: not by mistake, and a user other than
// this process's not at all.
func Seal(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, name)
			return nil
		}
		return os.Chmod(name, 0o444) //nolint:gosec // everybody may read it
	})
	for _, name := range dirs {
		if err == nil {
			err = os.Chmod(name, 0o555) //nolint:gosec // see above
		}
	}
	if err != nil {
		return fmt.Errorf("seal the Python module %s: %w", Module, err)
	}
	return nil
}

// Path is the list of directories with dir at its end, so that what a user has there comes first.
func Path(list, dir string) string {
	if list == "" {
		return dir
	}
	return list + string(os.PathListSeparator) + dir
}

// Digest tells versions of the module apart: 16 hexadecimal digits.
var Digest = sync.OnceValue(func() string {
	sum := sha256.New()
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", name, len(content), content)
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("read files of this binary: %v", err))
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
})
