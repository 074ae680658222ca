package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// AsideSuffix ends the name of a file that was brought back beside one that changed here in the meantime.
const AsideSuffix = ".spillway"

// Local is a directory as it was when its files were sent.
type Local struct {
	Dir    string
	ignore *tree.Ignore
	before tree.Snapshot
	// sent is false when none of its files was: whatever is there is not the program's.
	sent bool
}

// LookAt remembers a directory. When its files are not sent, nothing of it has to be remembered.
func LookAt(ctx context.Context, dir string, sent bool) (Local, error) {
	here := Local{Dir: dir, sent: sent}
	if !sent {
		return here, nil
	}
	var err error
	if here.ignore, err = tree.ReadIgnore(dir); err != nil {
		return here, err
	}
	here.before, err = tree.Take(ctx, dir, here.ignore)
	return here, err
}

// Brought is one file that was brought back.
type Brought struct {
	Name  string // with slashes, below the directory
	Bytes quantity.Bytes
	// Aside says that it lies beside a file that changed here meanwhile.
	Aside bool
}

// BringBack puts the files that a program made or changed where they belong: changed is a packed directory, or the zero
// Ref, outputs what else it left. A file that was changed here since the start stays as it is, and the program's is put
// beside it.
func (l Local) BringBack(
	ctx context.Context, store activities.Store, changed activities.Ref, outputs []wire.CommandFile,
) (files []Brought, err error) {
	root, err := os.OpenRoot(l.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // files are closed one by one
	foreign, err := l.foreign(ctx)
	if err != nil {
		return nil, err
	}
	top, scratch, err := safefile.Scratch(root, ".spillway-") // here, so that files are renamed and not copied
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, scratch.Close(), root.RemoveAll(top)) }()
	if changed.Digest != "" {
		if err := tree.UnpackInto(ctx, store, changed, scratch); err != nil {
			return nil, err
		}
	}
	for _, output := range outputs {
		if output.Artifact.Digest == "" {
			continue // an optional one
		}
		if err := Receive(ctx, store, scratch, output.Path, output.Artifact, output.Tree); err != nil {
			return nil, fmt.Errorf("fetch %s: %w", display.Name(output.Path), err)
		}
	}
	err = fs.WalkDir(tree.FS(root), top, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := strings.TrimPrefix(name, top+"/")
		aside, same, err := place(root, name, target, foreign)
		if err == nil && !same {
			files = append(files, Brought{Name: target, Bytes: quantity.Bytes(info.Size()), Aside: aside})
		}
		return err
	})
	return files, err
}

// foreign returns what tells whether a file here is none that the program was given as it is now.
func (l Local) foreign(ctx context.Context) (func(name string) bool, error) {
	if !l.sent {
		return func(string) bool { return true }, nil
	}
	changed, err := tree.Changed(ctx, l.before, l.Dir)
	if err != nil {
		return nil, err
	}
	return func(name string) bool {
		_, found := slices.BinarySearch(changed, name)
		return found || l.ignored(name)
	}, nil
}

// ignored reports whether a file, or a directory that it is in, was left out when the files were sent.
func (l Local) ignored(name string) bool {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if l.ignore.Match(parent, true) {
			return true
		}
	}
	return l.ignore.Match(name, false)
}

// place moves a file of the scratch directory to its target; same says that the target is as the file already.
func place(root *os.Root, from, target string, foreign func(string) bool) (aside, same bool, err error) {
	if parent := path.Dir(target); parent != "." {
		if err := root.MkdirAll(parent, 0o755); err != nil {
			return false, false, fmt.Errorf("bring back %s: %w", display.Name(target), linkOut(root, parent, err))
		}
	}
	info, err := root.Lstat(target)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, false, err
	case equal(root, from, target):
		return false, true, nil
	case info.IsDir() || foreign(target):
		aside = true
		target += AsideSuffix
	}
	if err := root.Rename(from, target); err != nil {
		return false, false, fmt.Errorf("bring back %s: %w", display.Name(target), err)
	}
	return aside, false, nil
}

// equal reports whether two names are regular files of the same bytes and kind.
func equal(root *os.Root, a, b string) bool {
	first, errA := digestFile(root, a)
	second, errB := digestFile(root, b)
	return errA == nil && errB == nil && bytes.Equal(first, second)
}

var errNoFile = errors.New("it is no regular file")

func digestFile(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNoFile
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	sum := sha256.New()
	if info.Mode()&0o100 != 0 {
		_, _ = sum.Write([]byte{'x'}) // a hash never returns an error
	}
	_, err = io.Copy(sum, file)
	return sum.Sum(nil), err
}
