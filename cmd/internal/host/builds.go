package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Platform is what this program was built for: the builds that this machine runs are for the same.
const Platform = runtime.GOOS + "/" + runtime.GOARCH

// PlatformError says that a build is for other machines than this host.
type PlatformError struct {
	App, Build string
	// Of is the platform of the build, Here that of the host.
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

// builds are those that this host has fetched, in <state>/builds as the engine has them. The longest unused go when
// they take more than most together.
type builds struct {
	ask      *asker
	stored   *build.Store
	most     quantity.Bytes
	fetching singleflight.Group
}

var _ activities.Builds = (*builds)(nil)

// Path finds the program of a build, and fetches it where this host does not have it.
func (b *builds) Path(ctx context.Context, app, digest string) (string, error) {
	path, err := b.stored.Path(ctx, app, digest)
	if err == nil {
		now := time.Now() // the longest unused go first
		_ = os.Chtimes(filepath.Dir(path), now, now)
		return path, nil
	}
	if !build.Names(app, digest) {
		return "", err
	}
	// One of many attempts fetches it, and goes on when that one ends: the others wait for the same bytes.
	fetched := b.fetching.DoChan(app+"@"+digest, func() (any, error) { return b.fetch(b.ask.life, app, digest) })
	select {
	case result := <-fetched:
		path, _ = result.Val.(string)
		return path, result.Err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// fetchWait bounds how long a build may take to come.
const fetchWait = 10 * time.Minute

// fetch fetches a build and moves it to its place, once its bytes are those that its name says.
func (b *builds) fetch(ctx context.Context, app, digest string) (path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	place := b.stored.Place(app, digest)
	path = filepath.Join(place, app)
	if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
		return "", fmt.Errorf("make room for builds: %w", err)
	}
	scratch, err := os.MkdirTemp(filepath.Dir(place), ".new-")
	if err != nil {
		return "", fmt.Errorf("make room for a build: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }() // nothing is there once it was moved
	query := url.Values{"platform": {Platform}}
	answer, err := b.ask.send(ctx, http.MethodGet, join.BuildPrefix+app+"@"+digest+"?"+query.Encode(), nil, "")
	if refused, is := errors.AsType[*refusedError](err); is && refused.status == http.StatusConflict &&
		refused.platform != "" {
		return "", &PlatformError{App: app, Build: digest, Of: refused.platform, Here: Platform}
	}
	if err != nil {
		return "", fmt.Errorf("fetch build %s of app %s: %w", digest, app, err)
	}
	err = errors.Join(receive(filepath.Join(scratch, app), digest, answer.Body), answer.Body.Close())
	if err != nil {
		return "", fmt.Errorf("fetch build %s of app %s: %w", digest, app, err)
	}
	if err := os.Rename(scratch, place); err != nil {
		return "", fmt.Errorf("keep build %s of app %s: %w", digest, app, err)
	}
	return path, b.shrink(place)
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

// shrink removes the builds that were unused for longest, as long as all take more than they may; never the one at
// kept. A program that runs goes on when its file is gone.
func (b *builds) shrink(kept string) error {
	type place struct {
		path  string
		bytes int64
		used  time.Time
	}
	entries, err := os.ReadDir(b.stored.Dir())
	if err != nil {
		return fmt.Errorf("look at the builds: %w", err)
	}
	var all []place
	var total int64
	for _, entry := range entries {
		app, _, is := strings.Cut(entry.Name(), "@")
		path := filepath.Join(b.stored.Dir(), entry.Name())
		dir, errDir := os.Stat(path)
		program, errProgram := os.Stat(filepath.Join(path, app))
		if !is || errDir != nil || errProgram != nil {
			continue
		}
		all = append(all, place{path, program.Size(), dir.ModTime()})
		total += program.Size()
	}
	slices.SortFunc(all, func(x, y place) int { return x.used.Compare(y.used) })
	for _, oldest := range all {
		if total <= int64(b.most) {
			break
		}
		if oldest.path == kept {
			continue
		}
		if err := os.RemoveAll(oldest.path); err != nil {
			return fmt.Errorf("remove an unused build: %w", err)
		}
		total -= oldest.bytes
	}
	return nil
}
