package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
)

// descriptorName is the file beside a stored binary that keeps what it said of itself.
const descriptorName = "describe.json"

// digestDigits is how many hexadecimal digits of the SHA-256 name a build: 48 bits, so that among a million builds of
// an app the chance that two share a name is below one in 500.
const digestDigits = 12

// List returns the stored builds, oldest first. Directories that hold no whole build are left out; a state directory
// without builds has an empty list.
func (s *Store) List() ([]App, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	var apps []App
	for _, entry := range entries {
		name, digest, found := strings.Cut(entry.Name(), "@")
		if !found {
			continue
		}
		if app, err := s.get(name, digest); err == nil {
			apps = append(apps, app)
		}
	}
	slices.SortStableFunc(apps, func(a, b App) int {
		return cmp.Or(a.BuiltAt.Compare(b.BuiltAt), cmp.Compare(a.Path, b.Path))
	})
	return apps, nil
}

// Get returns the build of the app called name with this digest, which is fetched where a Catalogue has it. It wraps
// ErrUnknownBuild when there is none that is whole.
func (s *Store) Get(ctx context.Context, name, digest string) (App, error) {
	if _, err := s.Path(ctx, name, digest); err != nil {
		return App{}, err
	}
	return s.get(name, digest)
}

// get is Get for what is here.
func (s *Store) get(name, digest string) (App, error) {
	path, err := s.path(name, digest)
	if err != nil {
		return App{}, err
	}
	place := filepath.Dir(path)
	descriptor, err := readDescriptor(filepath.Join(place, descriptorName))
	if err != nil || descriptor.Name != name {
		return App{}, fmt.Errorf("read %s: %w: remove %s and build the app again", descriptorName, ErrUnknownBuild, place)
	}
	info, err := os.Stat(place)
	if err != nil {
		return App{}, fmt.Errorf("look at build %s of app %s: %w", digest, name, err)
	}
	return App{Descriptor: descriptor, Digest: digest, Path: path, BuiltAt: info.ModTime()}, nil
}

// Newest returns the newest stored build of every app, sorted by name.
func (s *Store) Newest() ([]App, error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	newest := map[string]App{}
	for _, app := range all {
		newest[app.Descriptor.Name] = app
	}
	apps := make([]App, 0, len(newest))
	for _, app := range newest {
		apps = append(apps, app)
	}
	slices.SortFunc(apps, func(a, b App) int { return cmp.Compare(a.Descriptor.Name, b.Descriptor.Name) })
	return apps, nil
}

func writeDescriptor(path string, descriptor wire.App) error {
	text, err := json.MarshalIndent(descriptor, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the description of app %s: %w", descriptor.Name, err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

func readDescriptor(path string) (wire.App, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return wire.App{}, err
	}
	var descriptor wire.App
	if err := json.Unmarshal(text, &descriptor); err != nil {
		return wire.App{}, fmt.Errorf("decode %s: %w", path, err)
	}
	return descriptor, nil
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	return hex.EncodeToString(hash.Sum(nil))[:digestDigits], nil
}

// copyBinary copies the executable file source to target.
func copyBinary(source, target string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return &Error{
			Source: source, Problem: "the file is not executable",
			Hint: "give a directory with a Go main package, or make the binary executable with chmod +x",
		}
	}
	in, err := os.Open(source)
	if err != nil {
		return &Error{Source: source, Err: cause(err)}
	}
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return &Error{Source: source, Err: errors.Join(err, in.Close())}
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close(), in.Close()); err != nil {
		return &Error{
			Source: source, Problem: "copy the binary", Err: err,
			Hint: "look for free space in the state directory",
		}
	}
	return nil
}
