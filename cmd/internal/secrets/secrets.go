// Package secrets reads the secrets that stages name, each a file in a directory that the operator names: as volumes of
// secrets, systemd's credentials and /run/secrets of containers have them. Nothing else of Spillway keeps them. They
// are read when an attempt begins, so a file may be replaced at any time.
package secrets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
)

// most bounds a secret, in bytes: it is a variable of a program, of which Linux takes 128 KiB.
const most = 64 << 10

// ErrUnusable says that a secret is not there, or cannot be used. Errors name it, and repeat nothing of it.
var ErrUnusable = errors.New("a secret cannot be used")

// Directory has a file for each secret, whose name is that of the secret. One that lies in a directory with the name of
// an app or a chain is for the stages of that alone, and counts before one of the same name for all. The empty
// Directory has none.
type Directory string

// Check refuses secrets of an app that are not there, or cannot be read. Errors wrap ErrUnusable.
func (d Directory) Check(app string, names []string) error {
	_, err := d.Read(app, names)
	return err
}

// Read returns the secrets of an app, by their names. A newline at the end of a file is none of the secret. Errors wrap
// ErrUnusable.
func (d Directory) Read(app string, names []string) (map[string]string, error) {
	values := make(map[string]string, len(names))
	for _, name := range names {
		value, err := d.read(app, name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		values[name] = value
	}
	return values, nil
}

func (d Directory) read(app, name string) (string, error) {
	if err := wire.CheckSecret(name); err != nil {
		return "", err
	}
	if d == "" {
		return "", fmt.Errorf("%s is not there, as the server has no --secrets-dir", name)
	}
	for _, path := range []string{filepath.Join(string(d), filepath.Base(app), name), filepath.Join(string(d), name)} {
		text, err := secrecy.ReadFile(path, most)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
		switch {
		case value == "":
			return "", fmt.Errorf("%s: %s is empty", name, path)
		case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
			return "", fmt.Errorf("%s: %s is no text", name, path)
		}
		return value, nil
	}
	return "", fmt.Errorf("%s is not in %s", name, d)
}

// List returns the names of all secrets, those of an app after its name and a slash, sorted, and what is wrong with
// any. Hidden files, and whatever is no name, are left out.
func (d Directory) List() (names []string, wrong error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var errs []error
	look := func(app, name string) {
		if wire.CheckSecret(name) != nil {
			return
		}
		if _, err := d.read(app, name); err != nil {
			errs = append(errs, err)
		}
		names = append(names, strings.TrimPrefix(app+"/"+name, "/"))
	}
	for _, entry := range entries {
		info, err := os.Stat(filepath.Join(string(d), entry.Name()))
		if err != nil || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if !info.IsDir() {
			look("", entry.Name())
			continue
		}
		within, err := os.ReadDir(filepath.Join(string(d), entry.Name()))
		if err != nil {
			errs = append(errs, err)
		}
		for _, one := range within {
			look(entry.Name(), one.Name())
		}
	}
	slices.Sort(names)
	return names, errors.Join(errs...)
}
