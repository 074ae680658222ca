package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// cache is the engine's store with what was lately opened and put kept on this host's disk, so that ten attempts that
// read one data set fetch it once. Its methods may be called concurrently.
type cache struct {
	files  *artifact.Files
	behind activities.Store
	most   quantity.Bytes
	//nolint:containedctx // what one attempt began to fetch others wait for: it is fetched for as long as the host lives
	life   context.Context
	logger *slog.Logger

	fetching singleflight.Group
	grown    atomic.Int64 // bytes since the cache was last measured
	measure  sync.Mutex   // held by who shrinks
}

var _ activities.Store = (*cache)(nil)

const (
	// measuredAfter is the part of the bound that is added before the cache is measured again, and shrunkTo the part that
	// is left of it then.
	measuredAfter = 16
	shrunkTo      = 0.9
	// putPause and longestPutPause space the tries to hand on what was put, as long as who puts waits: the server may be
	// starting anew.
	putPause        = 100 * time.Millisecond
	longestPutPause = 5 * time.Second
)

// Open returns the bytes of digest: those of this host's disk, or else the engine's, which are kept first.
func (c *cache) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	content, err := c.files.Open(ctx, digest)
	if !errors.Is(err, activities.ErrMissing) {
		if err == nil {
			_ = c.files.Touch(ctx, digest) // the longest unused go first
		}
		return content, err
	}
	fetched := c.fetching.DoChan(digest, func() (any, error) { return nil, c.fetch(digest) })
	select {
	case result := <-fetched:
		err = result.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("open artifact %s: %w", digest, ctx.Err())
	}
	if full(err) || err == nil {
		if content, err := c.files.Open(ctx, digest); err == nil {
			return content, nil
		}
		return c.behind.Open(ctx, digest) // there is no room for it here
	}
	return nil, err
}

// full reports whether an error says that this host's disk has no room.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// fetch brings an artifact here. Bytes that are not those of the digest stay nowhere.
func (c *cache) fetch(digest string) error {
	content, err := c.behind.Open(c.life, digest)
	if err != nil {
		return err
	}
	ref, err := c.files.Put(c.life, content)
	if err = errors.Join(err, content.Close()); err == nil && ref.Digest != digest {
		err = activities.ErrCorrupt
	}
	if err != nil {
		return fmt.Errorf("fetch artifact %s: %w", digest, err)
	}
	c.grew(ref.Bytes)
	return nil
}

// Put stores everything that r yields with the engine and returns its address once it is durable there. It is on this
// host's disk first, so that what breaks off on the way is sent again.
func (c *cache) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	ref, err := c.files.Put(ctx, r)
	if err != nil {
		return activities.Ref{}, err
	}
	c.grew(ref.Bytes)
	for pause := putPause; ; pause = min(2*pause, longestPutPause) {
		err := c.handOn(ctx, ref)
		if err == nil {
			return ref, nil
		}
		if errors.Is(err, activities.ErrNoRoom) || ctx.Err() != nil {
			return activities.Ref{}, err
		}
		c.logger.DebugContext(ctx, "hand an artifact on again", "digest", ref.Digest, "wait", pause, "error", err)
		if !wait.For(ctx, pause) {
			return activities.Ref{}, fmt.Errorf("put artifact %s: %w", ref.Digest, errors.Join(err, ctx.Err()))
		}
	}
}

func (c *cache) handOn(ctx context.Context, ref activities.Ref) error {
	content, err := c.files.Open(ctx, ref.Digest)
	if err != nil {
		return err
	}
	stored, err := c.behind.Put(ctx, content)
	if err = errors.Join(err, content.Close()); err == nil && stored.Digest != ref.Digest {
		err = fmt.Errorf("put artifact %s: the server has stored %s", ref.Digest, stored.Digest)
	}
	return err
}

// grew notes that so much was added, and shrinks the cache now and then.
func (c *cache) grew(bytes int64) {
	if c.grown.Add(bytes) < int64(c.most)/measuredAfter || !c.measure.TryLock() {
		return
	}
	c.grown.Store(0)
	go func() {
		defer c.measure.Unlock()
		if err := c.shrink(c.life); err != nil && c.life.Err() == nil {
			c.logger.WarnContext(c.life, "artifacts that are kept here may take more than they shall", "error", err)
		}
	}()
}

// shrink removes what was unused for longest where all of it takes more than it may.
func (c *cache) shrink(ctx context.Context) error {
	var all []artifact.Info
	var total int64
	err := c.files.List(ctx, func(info artifact.Info) error {
		all = append(all, info)
		total += info.Bytes
		return nil
	})
	if err != nil || total <= int64(c.most) {
		return err
	}
	slices.SortFunc(all, func(x, y artifact.Info) int { return x.Written.Compare(y.Written) })
	for _, oldest := range all {
		if total <= int64(shrunkTo*float64(c.most)) {
			return nil
		}
		taken, err := c.files.Discard(ctx, oldest.Digest, oldest.Written)
		if err != nil {
			return err
		}
		if !taken {
			continue // it was asked for meanwhile
		}
		if _, err := c.files.Delete(ctx, oldest.Digest); err != nil {
			return err
		}
		total -= oldest.Bytes
	}
	return nil
}
