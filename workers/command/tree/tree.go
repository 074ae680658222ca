// Package tree keeps a directory as one artifact whose digest depends on the files alone.
//
// The artifact is a tar archive, sorted by name. It holds names, contents, whether a file may be executed, and symbolic
// links that stay within the directory. It does not hold times, owners and other permissions, which differ between
// machines; nor sockets, named pipes and devices, which have no content. It is not compressed: the digest of compressed
// bytes changes with the version of the compressor.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// DefaultMaxBytes bounds the content of a packed directory where Options say nothing: code is smaller, data goes
	// another way.
	DefaultMaxBytes = 512 * quantity.MiB
	// Unlimited is an Options.MaxBytes that refuses nothing.
	Unlimited quantity.Bytes = math.MaxInt64
)

// Errors of Pack and Unpack.
var (
	// ErrFormat says that an artifact is not a packed directory.
	ErrFormat = errors.New("it is not a packed directory")
	// ErrChanged says that a file was written while it was packed, so that what was read may be of two versions.
	ErrChanged = errors.New("changed during packing; write to another name and rename when complete")
	// ErrLeaves says that a symbolic link leads to a place outside, which other machines do not have.
	ErrLeaves = errors.New("leads out of the directory")
)

// Options say what Pack takes. The zero value is everything, up to DefaultMaxBytes.
type Options struct {
	// Ignore leaves files out; nil leaves out none.
	Ignore *Ignore
	// Only names the files and directories to pack, with slashes, relative to the directory; a directory is taken with all
	// that is below it. Nil packs all.
	Only []string
	// MaxBytes bounds the sum of the files' sizes; 0 means DefaultMaxBytes.
	MaxBytes quantity.Bytes
}

// A SizeError says that a directory is too large to be packed.
type SizeError struct {
	Dir          string
	Total, Limit quantity.Bytes
	// Largest are the files or directories that hold most, at most three, the largest first. A directory most of whose
	// bytes are in one entry is named by that entry.
	Largest []Share
}

// Share is a file or directory with what it holds. The path has slashes; a directory's ends with one.
type Share struct {
	Path  string
	Bytes quantity.Bytes
}

// Error tells what is large and what to do.
func (e *SizeError) Error() string {
	shares := make([]string, len(e.Largest))
	for i, share := range e.Largest {
		shares[i] = fmt.Sprintf("%s %s", share.Path, share.Bytes)
	}
	return fmt.Sprintf("pack %s: it holds %s and the limit is %s (largest: %s); name what is not needed in %s, or run "+
		"the command in place",
		e.Dir, e.Total, e.Limit, strings.Join(shares, ", "), IgnoreFile)
}

// Pack stores what opts select of the directory dir. Files that are deleted meanwhile are left out or an error; a file
// that is written meanwhile is an error that wraps ErrChanged. A directory that is too large is a *SizeError, and
// nothing is stored then.
func Pack(ctx context.Context, store activities.Store, dir string, opts Options) (activities.Ref, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return activities.Ref{}, fmt.Errorf("pack %s: %w", dir, err)
	}
	defer root.Close() //nolint:errcheck // it was only read
	return PackRoot(ctx, store, root, opts)
}

// PackRoot is Pack of a directory that is open already: whoever may change what is at its path changes nothing.
func PackRoot(ctx context.Context, store activities.Store, root *os.Root, opts Options) (activities.Ref, error) {
	dir := root.Name()
	entries, err := list(ctx, root, opts.Ignore, opts.Only)
	if err != nil {
		return activities.Ref{}, fmt.Errorf("pack %s: %w", dir, err)
	}
	limit := opts.MaxBytes
	if limit == 0 {
		limit = DefaultMaxBytes
	}
	if total := sum(entries); total > limit {
		return activities.Ref{}, &SizeError{Dir: dir, Total: total, Limit: limit, Largest: largest(entries, 3)}
	}
	ref, err := stream(ctx, store, root, entries)
	if errors.Is(err, ErrChanged) {
		err = changed(root, entries, err)
	}
	if errors.Is(err, ErrChanged) && opts.Ignore != nil {
		return activities.Ref{}, fmt.Errorf("pack %s: %w, or name it in %s if it is not needed", dir, err, IgnoreFile)
	}
	if err != nil {
		return activities.Ref{}, fmt.Errorf("pack %s: %w", dir, err)
	}
	return ref, nil
}

// mostChanged is how many files are named that were written while they were packed.
const mostChanged = 8

// changed names all files that are not what was listed any more, not only the one at which packing has stopped: whoever
// leaves that one out would be told of the next.
func changed(root *os.Root, entries []entry, first error) error {
	var names []string
	for _, e := range entries {
		if !e.mode.IsRegular() {
			continue
		}
		info, err := root.Lstat(e.name)
		if err == nil && info.Mode().IsRegular() && info.Size() == int64(e.bytes) && info.ModTime().Equal(e.time) {
			continue
		}
		names = append(names, e.name)
	}
	if len(names) < 2 {
		return first
	}
	more := ""
	if left := len(names) - mostChanged; left > 0 {
		names, more = names[:mostChanged], fmt.Sprintf(" and %d more", left)
	}
	return fmt.Errorf("%s%s: %w", strings.Join(names, ", "), more, ErrChanged)
}

// stream writes the archive of entries into store.
func stream(ctx context.Context, store activities.Store, root *os.Root, entries []entry) (activities.Ref, error) {
	r, w := io.Pipe()
	var written error
	var writing sync.WaitGroup
	writing.Go(func() {
		written = write(ctx, w, root, entries)
		w.CloseWithError(written)
	})
	ref, err := store.Put(ctx, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // a store that stopped early ends the writer
	writing.Wait()
	if written != nil && !errors.Is(written, io.ErrClosedPipe) {
		return activities.Ref{}, written
	}
	return ref, err
}

// entry is one line of the archive.
type entry struct {
	name   string // with slashes, relative to the top, clean
	mode   fs.FileMode
	bytes  quantity.Bytes
	time   time.Time
	target string // of a symbolic link
}

// leaving says what becomes of a symbolic link that leads out of the tree.
type leaving bool

const (
	refuseLeaving leaving = false
	skipLeaving   leaving = true
)

// list returns what is to be packed, sorted by name, so that a directory comes before what is in it.
func list(ctx context.Context, root *os.Root, ignore *Ignore, only []string) ([]entry, error) {
	if only == nil {
		only = []string{"."}
	}
	var entries []entry
	for _, start := range only {
		if !filepath.IsLocal(start) {
			return nil, fmt.Errorf("%q is not below it", start)
		}
		found, err := walk(ctx, root, ignore, path.Clean(start), refuseLeaving)
		if err != nil {
			return nil, err
		}
		entries = append(entries, found...)
	}
	return sorted(entries), nil
}

func sorted(entries []entry) []entry {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(entries, func(a, b entry) bool { return a.name == b.name })
}

// walk returns what is at start and below. What is deleted meanwhile is passed over, but for start itself.
func walk(ctx context.Context, root *os.Root, ignore *Ignore, start string, links leaving) ([]entry, error) {
	var entries []entry
	err := fs.WalkDir(FS(root), start, func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && errors.Is(err, fs.ErrNotExist) && name != start:
			return nil
		case err != nil:
			return err
		case name == ".":
			return nil
		case ignore.Match(name, d.IsDir()):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		e, found, err := inspect(root, name, d)
		if errors.Is(err, ErrLeaves) && links == skipLeaving {
			return nil
		}
		if found {
			entries = append(entries, e)
		}
		return err
	})
	return entries, err
}

// inspect describes one file; found is false when it is gone or of a kind that has no content.
func inspect(root *os.Root, name string, d fs.DirEntry) (e entry, found bool, err error) {
	info, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return entry{}, false, nil
	}
	if err != nil {
		return entry{}, false, err
	}
	e = entry{name: name, mode: info.Mode(), time: info.ModTime()}
	switch info.Mode().Type() {
	case 0:
		e.bytes = quantity.Bytes(info.Size())
	case fs.ModeDir:
	case fs.ModeSymlink:
		if e.target, err = root.Readlink(name); err == nil {
			e.target = relative(root.Name(), name, e.target)
			err = stays(root, name, e.target)
		}
	default:
		return entry{}, false, nil
	}
	return e, err == nil, err
}

// relative returns the target of the link name as one that counts from the link, where it is the absolute path of
// something in dir: programs that make links use absolute paths more often than they should.
func relative(dir, name, target string) string {
	if !filepath.IsAbs(target) {
		return target
	}
	below, err := filepath.Rel(dir, target)
	if err != nil || !filepath.IsLocal(below) {
		return target
	}
	from, err := filepath.Rel(filepath.Dir(filepath.FromSlash(name)), below)
	if err != nil {
		return target
	}
	return filepath.ToSlash(from)
}

// stays refuses a symbolic link that leads out of the tree. The file system is asked, as links along the way bend what
// ".." means; where nothing is at the end of the link, its words must do.
func stays(root *os.Root, name, target string) error {
	end := path.Join(path.Dir(name), target)
	if !path.IsAbs(target) && filepath.IsLocal(end) {
		// Joined by hand: path.Join would take ".." for the last name, also where that is a link.
		_, err := root.Stat(path.Dir(name) + "/" + target)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
	}
	return fmt.Errorf("symbolic link %s to %q %w; replace it by what it points to, or name it in %s", name, target,
		ErrLeaves, IgnoreFile)
}

func sum(entries []entry) (total quantity.Bytes) {
	for _, e := range entries {
		total += e.bytes
	}
	return total
}

// largest names at most n places that hold most of the bytes.
func largest(entries []entry, n int) []Share {
	sums := make(map[string]quantity.Bytes)
	children := make(map[string][]string)
	for _, e := range entries {
		if !e.mode.IsRegular() {
			continue
		}
		child := e.name
		for {
			if _, seen := sums[child]; !seen {
				children[path.Dir(child)] = append(children[path.Dir(child)], child)
			}
			sums[child] += e.bytes
			if path.Dir(child) == "." {
				break
			}
			child = path.Dir(child)
		}
	}
	descending := func(a, b string) int { return int(min(max(sums[b]-sums[a], -1), 1)) }
	top := children["."]
	slices.SortStableFunc(top, descending)
	var shares []Share
	for _, name := range top[:min(len(top), n)] {
		for len(children[name]) > 0 {
			heaviest := slices.MinFunc(children[name], descending)
			if 2*sums[heaviest] <= sums[name] {
				break
			}
			name = heaviest
		}
		if len(children[name]) > 0 {
			shares = append(shares, Share{Path: name + "/", Bytes: sums[name]})
		} else {
			shares = append(shares, Share{Path: name, Bytes: sums[name]})
		}
	}
	return shares
}
