package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// cache keeps directories that are dear to make, by key, for all processes of a host that use the same directory. For
// each key there are
//
//	key/       the content, made in place, as Python environments cannot be moved
//	key.ready  its size; it is there when the content is complete, and its time is that of the last use
//	key.lock   held exclusively by who makes or removes the content, and shared by who uses it
//
// so that content is made once, what is half made is never used, and what is used is never removed, whoever is killed.
type cache struct {
	dir string
	max quantity.Bytes
}

const readySuffix = ".ready"

// cached is content in use.
type cached struct {
	dir  string
	lock *os.File
}

// release says that the content is not used any more.
func (c *cached) release() error {
	if c == nil {
		return nil
	}
	return c.lock.Close()
}

// use returns the content of key, which it makes with build where it is not there yet. Build fills the empty directory
// it is given; when it fails nothing of it stays. Who needs the same content at the same time waits.
func (c cache) use(
	ctx context.Context, key string, build func(ctx context.Context, dir string) error,
) (*cached, error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the cache: %w; choose a directory that can be written", err)
	}
	dir := filepath.Join(c.dir, key)
	for {
		lock, err := waitLock(ctx, dir+lockSuffix, shared)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		switch err := os.Chtimes(dir+readySuffix, now, now); {
		case err == nil:
			return &cached{dir: dir, lock: lock}, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, errors.Join(fmt.Errorf("use the cache: %w", err), lock.Close())
		}
		if err := lock.Close(); err != nil {
			return nil, fmt.Errorf("use the cache: %w", err)
		}
		if err := c.make(ctx, dir, build); err != nil {
			return nil, err
		}
	}
}

// make makes the content of dir, unless somebody else did meanwhile.
func (c cache) make(ctx context.Context, dir string, build func(ctx context.Context, dir string) error) (err error) {
	lock, err := waitLock(ctx, dir+lockSuffix, exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if _, err := os.Stat(dir + readySuffix); err == nil {
		return nil
	}
	if err := removeAll(dir); err != nil { // what a crash left
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("fill the cache: %w", err)
	}
	if err := build(ctx, dir); err != nil {
		return errors.Join(err, removeAll(dir))
	}
	size, err := diskUse(ctx, dir)
	if err != nil {
		return errors.Join(err, removeAll(dir))
	}
	if err := os.WriteFile(dir+readySuffix, []byte(strconv.FormatInt(int64(size), 10)), 0o600); err != nil {
		return fmt.Errorf("fill the cache: %w", err)
	}
	return c.trim(filepath.Base(dir))
}

// content is one entry of the cache that is complete.
type content struct {
	dir  string
	size quantity.Bytes
	used time.Time
}

// trim removes what was not used for longest until the rest fits, but nothing that is in use and not keep.
func (c cache) trim(keep string) error {
	contents, err := c.list()
	if err != nil {
		return err
	}
	var total quantity.Bytes
	for _, content := range contents {
		total += content.size
	}
	slices.SortFunc(contents, func(a, b content) int { return a.used.Compare(b.used) })
	for _, content := range contents {
		if total <= c.max {
			return nil
		}
		if filepath.Base(content.dir) == keep {
			continue
		}
		lock, err := tryLock(content.dir+lockSuffix, exclusive)
		if errors.Is(err, errLocked) {
			continue
		}
		if err == nil {
			// The mark goes first, so that content without it is not taken for complete; the lock goes last.
			err = errors.Join(os.Remove(content.dir+readySuffix), removeAll(content.dir), os.Remove(content.dir+lockSuffix),
				lock.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make room in the cache: %w", err)
		}
		total -= content.size
	}
	return nil
}

// list returns what is complete.
func (c cache) list() ([]content, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("look into the cache: %w", err)
	}
	var contents []content
	for _, entry := range entries {
		key, found := strings.CutSuffix(entry.Name(), readySuffix)
		if !found {
			continue
		}
		mark := filepath.Join(c.dir, entry.Name())
		info, err := os.Stat(mark)
		if err != nil {
			continue // another process removed it
		}
		text, err := os.ReadFile(mark)
		if err != nil {
			continue
		}
		size, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			size = 0 // it was cut short by a crash; it is removed in its turn
		}
		contents = append(contents, content{dir: filepath.Join(c.dir, key), size: quantity.Bytes(size), used: info.ModTime()})
	}
	return contents, nil
}
