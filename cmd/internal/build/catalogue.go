package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Catalogue is which builds and chains the servers of a stack have together. The programs lie among the artifacts, by
// digest; each server, and through it each host, fetches those that it needs. A nil Catalogue is that of a server which
// is alone: it has all of them in its state directory, and the catalogue does nothing.
//
// Its methods may be called concurrently. Use OpenCatalogue.
type Catalogue struct {
	artifacts activities.Store
	builds    *Store
	chains    *Chains
	server    string // that serves apps of its own accord
	changed   chan struct{}
	failed    func(what string, err error)

	listed  *documents.Set[listedBuild] // by name and digest
	stored  *documents.Set[listedChain] // likewise
	current *documents.Set[Served]      // by the app's name

	sharing sync.Mutex // held while a program is sent, so that none is sent twice
}

// listedBuild is a build that all servers can have.
type listedBuild struct {
	App    string `json:"app"`
	Digest string `json:"digest"`
	// Program and Descriptor are the artifacts with the binary and with what it said of itself.
	Program    activities.Ref `json:"program"`
	Descriptor activities.Ref `json:"descriptor"`
	// Platform is what it was built for, as "linux/amd64".
	Platform string    `json:"platform"`
	Stored   time.Time `json:"stored"`
	// Used is when it was needed last, to the hour.
	Used time.Time `json:"used"`
}

// listedChain is a chain that all servers have.
type listedChain struct {
	Chain json.RawMessage `json:"chain"`
	// Used is when it was put or wanted last, to the hour.
	Used time.Time `json:"used"`
}

// Served is the build that new runs of an app start with.
type Served struct {
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
	// Server is the one that serves it of its own accord: see [CatalogueOptions.Server].
	Server string `json:"server"`
}

// CatalogueOptions configures a Catalogue. All fields are required.
type CatalogueOptions struct {
	Shared    *documents.Documents
	Artifacts activities.Store
	// Builds and Chains are those of this server's state directory.
	Builds *Store
	Chains *Chains
	// Server names the state directory, the same at each start.
	Server string
	// Failed is told what could not be taken over from others.
	Failed func(what string, err error)
}

const (
	// usedEvery is how exactly it is known when something was used last.
	usedEvery = time.Hour
	// mostChain is the largest chain that is shared, in bytes: a message of NATS holds it.
	mostChain = 512 << 10
	// fetchLimit bounds how long a program may take to come.
	fetchLimit = 10 * time.Minute
)

// ErrLargeChain says that a chain is too large to be shared.
var ErrLargeChain = fmt.Errorf("a chain of more than %d KiB cannot be shared by several servers: put its scripts into "+
	"files beside it", mostChain>>10)

// OpenCatalogue returns the catalogue, and has the store of builds fetch from it what it has not. The chains of others
// are stored here when it returns, and from then on as they come.
func OpenCatalogue(o CatalogueOptions) *Catalogue {
	c := &Catalogue{
		artifacts: o.Artifacts, builds: o.Builds, chains: o.Chains, server: o.Server, changed: make(chan struct{}, 1),
		failed: o.Failed,
	}
	c.listed = documents.Of[listedBuild](o.Shared, "build", nil)
	c.stored = documents.Of(o.Shared, "chain", c.chainChanged)
	c.current = documents.Of(o.Shared, "app", func(string, *Served, *Served) { c.tell() })
	c.builds.fetch = c.fetch
	return c
}

// Changed is sent something after others, or this server, have changed what is served or which chains there are.
func (c *Catalogue) Changed() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.changed
}

func (c *Catalogue) tell() {
	select {
	case c.changed <- struct{}{}:
	default: // who is told has not looked yet
	}
}

// Share makes a stored build known to all servers, with its program among the artifacts.
func (c *Catalogue) Share(ctx context.Context, app App) error {
	if c == nil {
		return nil
	}
	name := listName(app.Descriptor.Name, app.Digest)
	c.sharing.Lock()
	defer c.sharing.Unlock()
	if _, known := c.listed.Get(name); known {
		return nil
	}
	fail := func(err error) error {
		return fmt.Errorf("share build %s of app %s with the other servers: %w", app.Digest, app.Descriptor.Name, err)
	}
	program, err := os.Open(app.Path)
	if err != nil {
		return fail(err)
	}
	listed := listedBuild{
		App: app.Descriptor.Name, Digest: app.Digest, Platform: PlatformOf(app.Path), Stored: app.BuiltAt.UTC(),
		Used: time.Now().UTC(),
	}
	listed.Program, err = c.artifacts.Put(ctx, program)
	if err := errors.Join(err, program.Close()); err != nil {
		return fail(err)
	}
	if !strings.HasPrefix(listed.Program.Digest, app.Digest) {
		return fail(fmt.Errorf("%s has the digest %.12s: %w", app.Path, listed.Program.Digest, activities.ErrCorrupt))
	}
	described, err := json.Marshal(app.Descriptor)
	if err != nil {
		return fail(err)
	}
	if listed.Descriptor, err = c.artifacts.Put(ctx, strings.NewReader(string(described))); err != nil {
		return fail(err)
	}
	return c.listed.Change(ctx, name, func(there listedBuild, known bool) (listedBuild, error) {
		if known {
			return there, nil
		}
		return listed, nil
	})
}

// fetch brings a build of the catalogue into the store of this server.
func (c *Catalogue) fetch(ctx context.Context, app, digest string) error {
	listed, known := c.listed.Get(listName(app, digest))
	if !known {
		return ErrUnknownBuild
	}
	if listed.Platform != Platform {
		return &PlatformError{App: app, Build: digest, Of: listed.Platform, Here: Platform}
	}
	fail := func(err error) error { return fmt.Errorf("fetch build %s of app %s: %w", digest, app, err) }
	described, err := c.artifacts.Open(ctx, listed.Descriptor.Digest)
	if err != nil {
		return fail(err)
	}
	var descriptor wire.App
	err = json.NewDecoder(io.LimitReader(described, descriptionLimit)).Decode(&descriptor)
	if err := errors.Join(err, described.Close()); err != nil {
		return fail(err)
	}
	program, err := c.artifacts.Open(ctx, listed.Program.Digest)
	if err != nil {
		return fail(err)
	}
	_, err = c.builds.Take(app, digest, program, &descriptor)
	if err := errors.Join(err, program.Close()); err != nil {
		return fail(err)
	}
	return nil
}

// CheckChain refuses a chain that cannot be shared.
func (c *Catalogue) CheckChain(one chain.Chain) error {
	if c == nil {
		return nil
	}
	_, err := encodeChain(one)
	return err
}

func encodeChain(one chain.Chain) ([]byte, error) {
	text, err := json.Marshal(one)
	if err == nil && len(text) > mostChain {
		err = fmt.Errorf("it has %d KiB: %w", len(text)>>10, ErrLargeChain)
	}
	if err != nil {
		return nil, fmt.Errorf("share chain %s: %w", one.Name(), err)
	}
	return text, nil
}

// ShareChain makes a chain known to all servers, as the newest of its name.
func (c *Catalogue) ShareChain(ctx context.Context, one chain.Chain) error {
	if c == nil {
		return nil
	}
	text, err := encodeChain(one)
	if err != nil {
		return err
	}
	next := listedChain{text, time.Now().UTC()}
	if c.isNewest(one.Name(), one.Digest(), next.Used) {
		return nil
	}
	return c.stored.Change(ctx, listName(one.Name(), one.Digest()), func(listedChain, bool) (listedChain, error) {
		return next, nil
	})
}

// isNewest reports whether a chain is known as the newest of its name, and was used not long ago.
func (c *Catalogue) isNewest(name, digest string, now time.Time) bool {
	own, known := c.stored.Get(listName(name, digest))
	if !known || now.Sub(own.Used) > usedEvery {
		return false
	}
	for listed, other := range c.stored.All() {
		if of, _, _ := strings.Cut(listed, "@"); of == name && other.Used.After(own.Used) {
			return false
		}
	}
	return true
}

// takeChain makes a chain of before known that others do not know; it is not the newest for that.
func (c *Catalogue) takeChain(ctx context.Context, name, digest string, used time.Time) error {
	if _, known := c.stored.Get(listName(name, digest)); known {
		return nil
	}
	one, err := c.chains.Get(name, digest)
	if err != nil {
		return err
	}
	text, err := encodeChain(one)
	if err != nil {
		return err
	}
	return c.stored.Change(ctx, listName(name, digest), func(there listedChain, known bool) (listedChain, error) {
		if known {
			return there, nil
		}
		return listedChain{text, used.UTC()}, nil
	})
}

// chainChanged stores a chain that another server has put, or removes one that is not needed any more.
func (c *Catalogue) chainChanged(listed string, _, now *listedChain) {
	name, digest, _ := strings.Cut(listed, "@")
	if now == nil {
		if err := c.chains.Remove(name, digest); err != nil {
			c.failed("forget chain "+name, err)
		}
		c.tell()
		return
	}
	var one chain.Chain
	err := json.Unmarshal(now.Chain, &one)
	if err == nil && (one.Name() != name || one.Digest() != digest) {
		err = fmt.Errorf("it is chain %q of digest %q", one.Name(), one.Digest())
	}
	if err == nil {
		err = c.chains.put(one, now.Used)
	}
	if err != nil {
		c.failed("store chain "+name+" that another server has", err)
	}
	c.tell()
}

// Use notes that a chain or build is in use; what is not known is none.
func (c *Catalogue) Use(ctx context.Context, name, digest string) error {
	if c == nil {
		return nil
	}
	now, listed := time.Now().UTC(), listName(name, digest)
	if one, known := c.stored.Get(listed); known && now.Sub(one.Used) > usedEvery {
		return c.stored.Change(ctx, listed, func(one listedChain, known bool) (listedChain, error) {
			if !known {
				return one, documents.Remove
			}
			one.Used = now
			return one, nil
		})
	}
	if one, known := c.listed.Get(listed); known && now.Sub(one.Used) > usedEvery {
		return c.listed.Change(ctx, listed, func(one listedBuild, known bool) (listedBuild, error) {
			if !known {
				return one, documents.Remove
			}
			one.Used = now
			return one, nil
		})
	}
	return nil
}

// Serve has new runs of an app start with a build at all servers.
func (c *Catalogue) Serve(ctx context.Context, app, digest string) error {
	if c == nil {
		return nil
	}
	if now, known := c.current.Get(app); known && now.Digest == digest && now.Server == c.server {
		return nil
	}
	next := Served{digest, time.Now().UTC(), c.server}
	return c.current.Change(ctx, app, func(Served, bool) (Served, error) { return next, nil })
}

// Withdraw serves no app any more that this server served at an earlier start of its own accord, but for those that
// named says.
func (c *Catalogue) Withdraw(ctx context.Context, named func(app string) bool) error {
	if c == nil {
		return nil
	}
	var errs []error
	for app, now := range c.current.All() {
		if now.Server != c.server || named(app) {
			continue
		}
		errs = append(errs, c.current.Change(ctx, app, func(now Served, _ bool) (Served, error) {
			if now.Server != c.server {
				return now, nil
			}
			return now, documents.Remove
		}))
	}
	return errors.Join(errs...)
}

// Current are the builds that new runs start with, by the app's name.
func (c *Catalogue) Current() map[string]Served {
	if c == nil {
		return nil
	}
	return c.current.All()
}

// TakeIn makes those of this server's builds and chains known to all that none of the others knows: an engine of
// before, or one that was alone, has stored them. Those that were not used since then are left.
func (c *Catalogue) TakeIn(ctx context.Context, then time.Time) error {
	if c == nil {
		return nil
	}
	apps, err := c.builds.List()
	errs := []error{err}
	for _, app := range apps {
		if !app.BuiltAt.Before(then) {
			errs = append(errs, c.Share(ctx, app))
		}
	}
	entries, err := os.ReadDir(c.chains.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, entry := range entries {
		name, digest, isChain := c.chains.parse(entry.Name())
		info, err := entry.Info()
		if isChain && err == nil && !info.ModTime().Before(then) {
			errs = append(errs, c.takeChain(ctx, name, digest, info.ModTime()))
		}
	}
	return errors.Join(errs...)
}

// Holds returns, by name and digest, the artifacts that builds consist of.
func (c *Catalogue) Holds() map[string][]string {
	if c == nil {
		return nil
	}
	held := map[string][]string{}
	for name, one := range c.listed.All() {
		held[name] = []string{one.Program.Digest, one.Descriptor.Digest}
	}
	return held
}

// Forget removes from the catalogue what was not used since then and keep does not name. One server does that.
func (c *Catalogue) Forget(ctx context.Context, then time.Time, keep func(name, digest string) bool) error {
	if c == nil {
		return nil
	}
	var errs []error
	for listed, one := range c.stored.All() {
		name, digest, _ := strings.Cut(listed, "@")
		if !one.Used.Before(then) || keep(name, digest) {
			continue
		}
		errs = append(errs, c.stored.Change(ctx, listed, func(one listedChain, _ bool) (listedChain, error) {
			if !one.Used.Before(then) {
				return one, nil
			}
			return one, documents.Remove
		}))
	}
	for listed, one := range c.listed.All() {
		if !one.Used.Before(then) || keep(one.App, one.Digest) {
			continue
		}
		errs = append(errs, c.listed.Change(ctx, listed, func(one listedBuild, _ bool) (listedBuild, error) {
			if !one.Used.Before(then) {
				return one, nil
			}
			return one, documents.Remove
		}))
	}
	return errors.Join(errs...)
}

// Sweep removes the programs of this server that the catalogue has no more, but for those that keep names and those
// that are younger than then. A program that runs goes on when its file is gone.
func (c *Catalogue) Sweep(then time.Time, keep func(name, digest string) bool) error {
	if c == nil {
		return nil
	}
	apps, err := c.builds.List()
	errs := []error{err}
	for _, app := range apps {
		_, known := c.listed.Get(listName(app.Descriptor.Name, app.Digest))
		if !known && app.BuiltAt.Before(then) && !keep(app.Descriptor.Name, app.Digest) {
			errs = append(errs, os.RemoveAll(filepath.Dir(app.Path)))
		}
	}
	return errors.Join(errs...)
}

func listName(name, digest string) string { return name + "@" + digest }
