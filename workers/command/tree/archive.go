package tree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/activities"
)

// Permissions of what is unpacked, before the umask.
const (
	plainFile      fs.FileMode = 0o644
	executableFile fs.FileMode = 0o755
	directory      fs.FileMode = 0o755
)

// write writes entries as an archive.
func write(ctx context.Context, w io.Writer, root *os.Root, entries []entry) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := writeEntry(ctx, archive, root, e); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeEntry writes one entry. Its header says nothing that differs between machines.
func writeEntry(ctx context.Context, archive *tar.Writer, root *os.Root, e entry) error {
	header := &tar.Header{Format: tar.FormatPAX, Name: e.name}
	switch {
	case e.mode.IsDir():
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, e.name+"/", int64(directory)
		return archive.WriteHeader(header)
	case e.mode.Type() == fs.ModeSymlink:
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.target, 0o777
		return archive.WriteHeader(header)
	}
	header.Typeflag, header.Size, header.Mode = tar.TypeReg, int64(e.bytes), int64(plainFile)
	if e.mode&0o111 != 0 {
		header.Mode = int64(executableFile)
	}
	// What was a file may be a pipe by now, and nobody may write to it: do not wait.
	file, err := root.OpenFile(e.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	if err := unchanged(file, e); err != nil {
		return err
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if _, err := io.CopyN(archive, interruptible(ctx, file), header.Size); errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", e.name, ErrChanged)
	} else if err != nil {
		return err
	}
	return unchanged(file, e)
}

// unchanged refuses a file that is not what was listed any more.
func unchanged(file *os.File, e entry) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != int64(e.bytes) || !info.ModTime().Equal(e.time) {
		return fmt.Errorf("%s: %w", e.name, ErrChanged)
	}
	return nil
}

// Unpack puts the files of a packed directory into dir, which it makes where needed. Files that are there already are
// replaced and directories joined. Nothing is written outside dir, whatever the archive says and whatever links dir
// has, and never more than the archive is long. An archive that Pack would not write is refused with ErrFormat, or with
// ErrLeaves. After an error dir may hold a part of the files.
//
// Links on the way to dir are followed: where other users may have planted some, open the directory with package
// safefile, and use [UnpackInto].
func Unpack(ctx context.Context, store activities.Store, ref activities.Ref, dir string) error {
	err := os.MkdirAll(dir, directory)
	if err != nil {
		return fmt.Errorf("unpack %s into %s: %w", ref.Digest, dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack %s into %s: %w", ref.Digest, dir, err)
	}
	defer root.Close() //nolint:errcheck // files are closed one by one
	return UnpackInto(ctx, store, ref, root)
}

// UnpackInto is [Unpack] into a directory that is open.
func UnpackInto(ctx context.Context, store activities.Store, ref activities.Ref, root *os.Root) error {
	if err := unpack(ctx, store, ref, root); err != nil {
		return fmt.Errorf("unpack %s into %s: %w", ref.Digest, root.Name(), err)
	}
	return nil
}

func unpack(ctx context.Context, store activities.Store, ref activities.Ref, root *os.Root) (err error) {
	archive, err := store.Open(ctx, ref.Digest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	return read(ctx, archive, root)
}

// read unpacks an archive and reads it to its end, where the store says whether the bytes were right.
func read(ctx context.Context, r io.Reader, root *os.Root) error {
	r = interruptible(ctx, r)
	archive := tar.NewReader(r)
	u := unpacker{root: root, archive: archive, kinds: make(map[string]byte)}
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = u.check(header)
		} else {
			err = fmt.Errorf("%w: %w", ErrFormat, err)
		}
		if err != nil { // or the store's bytes are not those that were put, which it says at their end
			_, damage := io.Copy(io.Discard, r)
			return errors.Join(damage, err)
		}
		if err := u.take(header); err != nil {
			return fmt.Errorf("entry %q: %w", header.Name, err)
		}
	}
	for _, link := range u.links {
		if err := stays(root, link.name, link.target); err != nil {
			return errors.Join(err, root.Remove(link.name))
		}
	}
	_, err := io.Copy(io.Discard, r)
	return err
}

// unpacker makes the files of one archive.
type unpacker struct {
	root    *os.Root
	archive *tar.Reader
	kinds   map[string]byte // type of each entry so far
	links   []entry         // made so far; where they lead is known when all is there
}

// take makes one file, directory or link.
func (u *unpacker) take(header *tar.Header) error {
	name := strings.TrimSuffix(header.Name, "/")
	if parent := path.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, directory); err != nil {
			return err
		}
	}
	info, err := u.root.Lstat(name)
	exists := err == nil
	switch {
	case header.Typeflag == tar.TypeDir && exists && info.IsDir():
		return nil
	case header.Typeflag == tar.TypeDir && !exists:
		return u.root.Mkdir(name, directory)
	case exists && (info.IsDir() || header.Typeflag == tar.TypeDir):
		return fmt.Errorf("a directory and a file have the same name: %w", syscall.ENOTDIR)
	case exists:
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	if header.Typeflag == tar.TypeSymlink {
		u.links = append(u.links, entry{name: name, target: header.Linkname})
		return u.root.Symlink(header.Linkname, name)
	}
	return u.file(name, header)
}

// check refuses what Pack does not write.
func (u *unpacker) check(header *tar.Header) error {
	name := strings.TrimSuffix(header.Name, "/")
	refuse := func(why string) error { return fmt.Errorf("%w: entry %q %s", ErrFormat, header.Name, why) }
	switch {
	case name == "." || !filepath.IsLocal(name) || path.Clean(name) != name || strings.ContainsRune(name, 0):
		return refuse("leaves the directory or is not clean")
	case header.Typeflag != tar.TypeReg && header.Typeflag != tar.TypeDir && header.Typeflag != tar.TypeSymlink:
		return refuse(fmt.Sprintf("is neither a file nor a directory nor a symbolic link, but of type %q", header.Typeflag))
	case sparse(header):
		return refuse("is a sparse file, which can be larger than its archive")
	case u.kinds[name] != 0:
		return refuse("is there twice")
	case header.Typeflag == tar.TypeSymlink && (path.IsAbs(header.Linkname) ||
		!filepath.IsLocal(path.Join(path.Dir(name), header.Linkname))):
		return refuse(fmt.Sprintf("is a link out of the directory, to %q", header.Linkname))
	}
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if kind := u.kinds[parent]; kind != 0 && kind != tar.TypeDir {
			return refuse("is below " + parent + ", which is no directory")
		}
	}
	u.kinds[name] = header.Typeflag
	return nil
}

// sparse reports whether the size of a file is not that of its bytes in the archive.
func sparse(header *tar.Header) bool {
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// file makes a regular file.
func (u *unpacker) file(name string, header *tar.Header) error {
	mode := plainFile
	if header.Mode&0o111 != 0 {
		mode = executableFile
	}
	file, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, u.archive)
	return errors.Join(err, file.Close())
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

// Read calls f.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// interruptible returns a reader of r that fails once ctx has ended, so that a large file does not hold up a stop.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(p)
	})
}
