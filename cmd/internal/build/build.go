// Package build compiles users' apps and keeps their builds by digest.
//
// A build lives at <state>/builds/<app>@<digest>/<app> beside what the binary said of itself, and never changes: a run
// that started with one finds the same code for as long as it goes on, whatever was built since.
package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/spillway-ml/spillway/activities/wire"
)

// App is one stored build of a user's app.
type App struct {
	// Descriptor is what the binary said of itself.
	Descriptor wire.App `json:"descriptor"`
	// Digest is the first 12 hexadecimal digits of the SHA-256 of the binary.
	Digest string `json:"digest"`
	// Path is the stored executable file.
	Path string `json:"path"`
	// BuiltAt is when it was stored.
	BuiltAt time.Time `json:"built_at"`
}

// Phase is a part of the work of Build.
type Phase string

// The phases.
const (
	// Compile is the Go toolchain at work; the first time it compiles every dependency and takes minutes.
	Compile Phase = "compile"
	// Describe is asking the binary what it offers.
	Describe Phase = "describe"
)

// Store keeps builds under one state directory. Its methods may be called concurrently, also by several processes. The
// zero value is not useful; use NewStore.
type Store struct {
	dir string
	// progress is told about once a second how long a phase has taken; nil ignores it.
	progress func(Phase, time.Duration)
	// fetch brings a build that is not here; nil brings none.
	fetch    func(ctx context.Context, app, digest string) error
	fetching singleflight.Group
}

// NewStore returns the store of the state directory stateDir, which is made when the first build is stored. While Build
// works it calls progress, from another goroutine, about once a second with the phase and its age; nil ignores it.
func NewStore(stateDir string, progress func(Phase, time.Duration)) *Store {
	return &Store{dir: filepath.Join(stateDir, "builds"), progress: progress}
}

// Dir is the directory that holds the builds.
func (s *Store) Dir() string { return s.dir }

// Error says why an app could not be built, and what to do.
type Error struct {
	// Source is the directory or the binary that was given.
	Source string
	// Problem is what was wrong, in one sentence; it may be empty when Err says it all.
	Problem string
	// Output is what the compiler or the binary printed, verbatim, at most its last 64 KiB.
	Output string
	// Hint is what to do next; empty when Output says it.
	Hint string
	// Err is the cause; nil when there is none beyond Problem.
	Err error
}

// Error returns the problem, the cause and the output.
func (e *Error) Error() string {
	text := "build " + e.Source
	if e.Problem != "" {
		text += ": " + e.Problem
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Output != "" {
		text += "\n" + e.Output
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Advice returns the hint.
func (e *Error) Advice() string { return e.Hint }

// Build stores the app at source and returns it. A directory is compiled as the Go main package in it; a file is taken
// as the binary itself. A binary that is stored already is not stored again. Errors are of type *Error.
func (s *Store) Build(ctx context.Context, source string) (App, error) {
	info, err := os.Stat(source)
	if err != nil {
		return App{}, &Error{
			Source: source, Err: cause(err),
			Hint: "give the directory of a Go main package that calls app.Main, or a binary built from one",
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return App{}, &Error{
			Source: source, Problem: "make the directory of builds", Err: err,
			Hint: "choose a writable state directory with --state",
		}
	}
	s.sweep(time.Now())
	scratch, err := os.MkdirTemp(s.dir, scratchPrefix)
	if err != nil {
		return App{}, &Error{
			Source: source, Problem: "make a scratch directory", Err: err,
			Hint: "choose a writable state directory with --state",
		}
	}
	// After a success the scratch directory has been renamed away and this removes nothing.
	defer func() { _ = os.RemoveAll(scratch) }()

	binary := filepath.Join(scratch, "app")
	if info.IsDir() {
		err = s.compile(ctx, source, binary)
	} else {
		err = copyBinary(source, binary, info)
	}
	if err != nil {
		return App{}, err
	}
	return s.keep(ctx, source, scratch, binary)
}

// scratchPrefix begins the name of a build that is not finished; no app's name begins with a dot.
const scratchPrefix = ".new-"

// scratchLife is how long an unfinished build may take before a later one takes it for the leftover of a crash.
const scratchLife = time.Hour

// sweep removes what builds that crashed have left.
func (s *Store) sweep(now time.Time) {
	leftovers, err := filepath.Glob(filepath.Join(s.dir, scratchPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range leftovers {
		if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > scratchLife {
			_ = os.RemoveAll(path) // it is tried again at the next build
		}
	}
}

// keep asks the binary in scratch what it is and moves it to its place.
func (s *Store) keep(ctx context.Context, source, scratch, binary string) (App, error) {
	digest, err := digestOf(binary)
	if err != nil {
		return App{}, &Error{Source: source, Err: err}
	}
	descriptor, err := s.describe(ctx, source, binary)
	if err != nil {
		return App{}, err
	}
	place := s.Place(descriptor.Name, digest)
	app := App{Descriptor: descriptor, Digest: digest, Path: filepath.Join(place, descriptor.Name), BuiltAt: time.Now()}
	if err := writeDescriptor(filepath.Join(scratch, descriptorName), descriptor); err != nil {
		return App{}, &Error{Source: source, Err: err}
	}
	if err := os.Rename(binary, filepath.Join(scratch, descriptor.Name)); err != nil {
		return App{}, &Error{Source: source, Err: err}
	}
	switch err := os.Rename(scratch, place); {
	case err == nil:
		return app, nil
	case isStored(app.Path):
		// The same bytes are there already; make them the newest.
		if err := os.Chtimes(place, app.BuiltAt, app.BuiltAt); err != nil {
			return App{}, &Error{Source: source, Err: err}
		}
		return app, nil
	default:
		return App{}, &Error{
			Source: source, Problem: "keep the build", Err: err,
			Hint: "remove " + place + " and build again",
		}
	}
}

func isStored(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// ErrUnknownBuild says that a build is not stored on this host.
var ErrUnknownBuild = errors.New("this build is not stored on this host")

// Path returns the executable file of the build of app with this digest, which is fetched where a Catalogue has it. It
// wraps ErrUnknownBuild when there is none. It makes Store an activities.Builds.
func (s *Store) Path(ctx context.Context, app, digest string) (string, error) {
	path, err := s.path(app, digest)
	if err == nil {
		return path, nil
	}
	switch brought := s.bring(ctx, app, digest); {
	case errors.Is(brought, ErrUnknownBuild):
		return "", err
	case brought != nil:
		return "", brought
	}
	return s.path(app, digest)
}

// Names reports whether there may be such an app and such a build of it.
func Names(app, digest string) bool {
	return validName.MatchString(app) && validDigest.MatchString(digest)
}

// Place is the directory of a build, whether it is there or not; its executable file is called as the app is. Names
// says whether it may be one.
func (s *Store) Place(app, digest string) string { return filepath.Join(s.dir, app+"@"+digest) }

func (s *Store) path(app, digest string) (string, error) {
	if !Names(app, digest) {
		return "", fmt.Errorf("find build %q of app %q: %w", digest, app, ErrUnknownBuild)
	}
	path := filepath.Join(s.Place(app, digest), app)
	if !isStored(path) {
		return "", fmt.Errorf("find build %s of app %s: %w; build the app again from the same source, or cancel the runs "+
			"that need it", digest, app, ErrUnknownBuild)
	}
	return path, nil
}

var (
	validName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	validDigest = regexp.MustCompile(`^[0-9a-f]{12}$`)
)

// cause strips the operation and the path from a file error, because Error has the source already.
func cause(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}
