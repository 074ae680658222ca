package build

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
)

// Platform is what this program was built for, as "linux/amd64": the builds that this machine runs are for the same.
const Platform = runtime.GOOS + "/" + runtime.GOARCH

// PlatformOf is what a program was built for; what is none of Go's is taken for this machine's.
func PlatformOf(path string) string {
	system, architecture := runtime.GOOS, runtime.GOARCH
	if info, err := buildinfo.ReadFile(path); err == nil {
		for _, setting := range info.Settings {
			switch setting.Key {
			case "GOOS":
				system = setting.Value
			case "GOARCH":
				architecture = setting.Value
			}
		}
	}
	return system + "/" + architecture
}

// PlatformError says that a build is for other machines than this one.
type PlatformError struct {
	App, Build string
	// Of is the platform of the build, Here that of this machine.
	Of, Here string
}

// Error says what to do, too.
func (e *PlatformError) Error() string {
	system, architecture, _ := strings.Cut(e.Here, "/")
	return fmt.Sprintf("build %s of app %s is for %s, and this host runs %s: run its stages on hosts of %s, or build it "+
		"for this one (GOOS=%s GOARCH=%s go build) and serve that binary", e.Build, e.App, e.Of, e.Here, e.Of, system,
		architecture)
}

// Unwrap tells that no further try can help here.
func (*PlatformError) Unwrap() error { return activities.ErrUnfit }

// Take stores a build that comes from elsewhere, whose SHA-256 begins with digest, with what its binary said of itself,
// which may be nil: then only Path finds it. It returns its executable file.
func (s *Store) Take(app, digest string, program io.Reader, descriptor *wire.App) (path string, err error) {
	if !Names(app, digest) {
		return "", fmt.Errorf("store build %q of app %q: %w", digest, app, ErrUnknownBuild)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", fmt.Errorf("make room for builds: %w", err)
	}
	scratch, err := os.MkdirTemp(s.dir, scratchPrefix)
	if err != nil {
		return "", fmt.Errorf("make room for a build: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }() // nothing is there once it was moved
	if err := receive(filepath.Join(scratch, app), digest, program); err != nil {
		return "", err
	}
	if descriptor != nil {
		if err := writeDescriptor(filepath.Join(scratch, descriptorName), *descriptor); err != nil {
			return "", err
		}
	}
	place := s.Place(app, digest)
	path = filepath.Join(place, app)
	if err := os.Rename(scratch, place); err != nil && !isStored(path) {
		return "", fmt.Errorf("keep build %s of app %s: %w", digest, app, err)
	}
	return path, nil
}

// receive writes a program, whose SHA-256 begins with digest, into a file.
func receive(path, digest string, from io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700) //nolint:gosec // it is a program
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(file, sum), from)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); !strings.HasPrefix(got, digest) {
		return fmt.Errorf("what came has the digest %.12s: %w", got, activities.ErrCorrupt)
	}
	return nil
}

// bring brings a build that is not here, where something can. It is brought once, however many wait for it.
func (s *Store) bring(ctx context.Context, app, digest string) error {
	if s.fetch == nil || !Names(app, digest) {
		return ErrUnknownBuild
	}
	brought := s.fetching.DoChan(app+"@"+digest, func() (any, error) {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
		defer cancel()
		return nil, s.fetch(limited, app, digest)
	})
	select {
	case result := <-brought:
		return result.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
