// Package transfer sends files to the engine and brings back what a run has left.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Packing says what is sent to the engine.
type Packing struct {
	// Path is the file or directory.
	Path string
	// Code leaves out of a directory what tree.ReadIgnore names, and bounds it: all else is taken as it is.
	Code bool
	// State is the engine's state directory, which is left out: it changes all the time, and holds its credentials.
	State string
}

// Send packs a file or a directory into the engine's artifact store. What the engine has already is not sent again: the
// digest is known from reading alone. Environments that are left out of code are named.
func Send(ctx context.Context, t *tool.Tool, calls *client.Client, what Packing) (chain.Packed, error) {
	packed, err := what.into(ctx, digester{})
	if err != nil {
		return chain.Packed{}, err
	}
	if what.Code && packed.Tree {
		if err := tellEnvironments(ctx, t, what); err != nil {
			return chain.Packed{}, err
		}
	}
	has, err := calls.Has(ctx, packed.Artifact.Digest)
	if err != nil || has {
		return packed, err
	}
	progress := &sending{
		tool: t, path: what.Path, total: quantity.Bytes(packed.Artifact.Bytes),
		inPlace: tool.IsTerminal(t.Err), began: time.Now(),
	}
	defer progress.end()
	return what.into(ctx, watched{calls, progress})
}

// below names a file or directory that lies in the directory dir, wherever links lead, relative to it and with slashes.
func below(dir, place string) (name string, inside bool) {
	if place == "" {
		return "", false
	}
	dir, errDir := filepath.EvalSymlinks(dir)
	place, errPlace := filepath.EvalSymlinks(place)
	if errDir == nil {
		dir, errDir = filepath.Abs(dir)
	}
	if errDir != nil || errPlace != nil {
		return "", false
	}
	name, err := filepath.Rel(dir, place)
	return filepath.ToSlash(name), err == nil && name != "." && filepath.IsLocal(name)
}

// into packs into a store.
func (p Packing) into(ctx context.Context, store activities.Store) (chain.Packed, error) {
	info, err := os.Stat(p.Path)
	if err != nil {
		return chain.Packed{}, err
	}
	if info.IsDir() {
		options := tree.Options{MaxBytes: tree.Unlimited}
		if p.Code {
			options.MaxBytes = 0
		}
		if options.Ignore, err = p.ignore(); err != nil {
			return chain.Packed{}, err
		}
		ref, err := tree.Pack(ctx, store, p.Path, options)
		if tooLarge, ok := errors.AsType[*tree.SizeError](err); ok {
			return chain.Packed{}, &fault.UsageError{
				Problem: tooLarge.Error(),
				Hint:    "large inputs are sent by name: `inputs` of a chain, --file of a command",
			}
		}
		return chain.Packed{Artifact: ref, Tree: true}, err
	}
	file, err := flag.OpenFile(p.Path)
	if err != nil {
		return chain.Packed{}, err
	}
	ref, err := store.Put(ctx, file)
	return chain.Packed{Artifact: ref}, errors.Join(err, file.Close())
}

// ignore says what of the directory is left out; nil when that is nothing.
func (p Packing) ignore() (ignore *tree.Ignore, err error) {
	if p.Code {
		if ignore, err = tree.ReadIgnore(p.Path); err != nil {
			return nil, &fault.UsageError{Problem: err.Error(), Hint: "correct the file " + tree.IgnoreFile}
		}
	}
	if name, inside := below(p.Path, p.State); inside {
		ignore = ignore.Without(name)
	}
	return ignore, nil
}

// tellEnvironments says which environments are left out of a directory of code: a program that needs one would miss it.
func tellEnvironments(ctx context.Context, t *tool.Tool, what Packing) error {
	ignore, err := what.ignore()
	if err != nil {
		return err
	}
	found, err := tree.Environments(ctx, what.Path, ignore)
	if err != nil || len(found) == 0 {
		return err
	}
	const named = 3
	var listed []string
	for _, one := range found[:min(len(found), named)] {
		listed = append(listed, fmt.Sprintf("%s (%s)", display.Name(one.Path), one.Bytes))
	}
	if more := len(found) - len(listed); more > 0 {
		listed = append(listed, fmt.Sprintf("%d more", more))
	}
	t.Note("not sent: %s; a line such as !%s in %s sends it", strings.Join(listed, ", "), path.Base(found[0].Path)+"/",
		tree.IgnoreFile)
	return nil
}

// digester is a store that keeps nothing: it tells the address that bytes would have.
type digester struct{ activities.Store }

// Put reads r to its end.
func (digester) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	sum := sha256.New()
	read, err := io.Copy(sum, reader(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(p)
	}))
	return activities.Ref{Digest: hex.EncodeToString(sum.Sum(nil)), Bytes: read}, err
}

// watched is the engine's store that tells how much was sent.
type watched struct {
	activities.Store

	progress *sending
}

// Put sends what r yields.
func (w watched) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	return w.Store.Put(ctx, reader(func(p []byte) (int, error) {
		n, err := r.Read(p)
		w.progress.sent(n)
		return n, err
	}))
}

// reader is an io.Reader.
type reader func([]byte) (int, error)

// Read calls r.
func (r reader) Read(p []byte) (int, error) { return r(p) }

const (
	// quietSending is how long sending may take before it is worth a word, and then a word a second on a terminal.
	quietSending = time.Second
)

// sending says how far an artifact is on its way. It is for one goroutine at a time.
type sending struct {
	tool    *tool.Tool
	path    string
	total   quantity.Bytes
	inPlace bool
	began   time.Time
	told    time.Time
	done    quantity.Bytes
}

func (s *sending) sent(n int) {
	s.done += quantity.Bytes(n)
	now := time.Now()
	pause := quietSending
	if !s.inPlace {
		pause = tool.WordEvery
	}
	if s.tool.Quiet || now.Sub(s.began) < quietSending || !s.told.IsZero() && now.Sub(s.told) < pause {
		return
	}
	s.told = now
	text := fmt.Sprintf("sending %s ... %s of %s", s.path, s.done, s.total)
	if s.inPlace {
		s.tool.Complain("\r\x1b[K%s", text)
	} else {
		s.tool.Complain("%s\n", text)
	}
}

func (s *sending) end() {
	if s.inPlace && !s.told.IsZero() {
		s.tool.Complain("\r\x1b[K")
	}
}

// Receive writes an artifact below root: a file whole or not at all, a packed directory joined with what is there.
// Links that lead out of root are not followed, and the names under which files are made cannot be guessed: in a
// directory that others can write to they may have been planted.
func Receive(
	ctx context.Context, store activities.Store, root *os.Root, name string, artifact activities.Ref, isTree bool,
) (err error) {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the result names %q, which is not below a directory", name)
	}
	if isTree {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return linkOut(root, name, err)
		}
		below, err := root.OpenRoot(name)
		if err != nil {
			return err
		}
		return errors.Join(tree.UnpackInto(ctx, store, artifact, below), below.Close())
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return linkOut(root, filepath.Dir(name), err)
	}
	content, err := store.Open(ctx, artifact.Digest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, content.Close()) }()
	return safefile.Write(root, name, 0o644, func(file *os.File) error {
		_, err := io.Copy(file, content)
		return err
	})
}

// linkOut names the link that made root refuse to make the directory name, when err is of that: one that leads out of
// root, or nowhere.
func linkOut(root *os.Root, name string, err error) error {
	parts := strings.Split(filepath.ToSlash(name), "/")
	for i := range parts {
		part := filepath.Join(parts[:i+1]...)
		info, lookErr := root.Lstat(part)
		if lookErr != nil {
			return err
		}
		if _, lookErr := root.Stat(part); lookErr == nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		where := display.Name(filepath.Join(root.Name(), part))
		return fault.Advise(fmt.Errorf("%s is a link that leads to no directory in %s", where, root.Name()), "remove it")
	}
	return err
}
