package function

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// unzip extracts a zip into dir. Nothing outside dir is written, whatever names the zip holds.
func unzip(content []byte, dir string) error {
	archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return fmt.Errorf("open the zip: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unzip: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := checkArchive(archive.File); err != nil {
		return err
	}
	left := int64(maxUnzippedBytes)
	for _, f := range archive.File {
		n, err := extract(root, f, left)
		if err != nil {
			return fmt.Errorf("unzip %.200q: %w", f.Name, err)
		}
		left -= n
	}
	return nil
}

// checkArchive refuses, before anything of it is written, a zip of too many files and directories, those that it only
// implies included, of too deep ones, and of more bytes than it may hold by its own account.
func checkArchive(files []*zip.File) error {
	var total uint64
	entries := make(map[string]struct{})
	for _, f := range files {
		if total += f.UncompressedSize64; total > maxUnzippedBytes || f.UncompressedSize64 > maxUnzippedBytes {
			return errUnzippedTooLarge()
		}
		name := path.Clean(f.Name)
		if depth := strings.Count(name, "/"); depth > maxUnzippedDepth {
			return fmt.Errorf("%.200q lies in %d directories; at most %d can be deployed", f.Name, depth, maxUnzippedDepth)
		}
		for ; name != "." && name != "/"; name = path.Dir(name) {
			if _, known := entries[name]; known {
				break
			}
			if entries[name] = struct{}{}; len(entries) > maxUnzippedFiles {
				return fmt.Errorf("it has more than %d files and directories, the most that can be deployed: "+
					"leave out what the bootstrap does not need", maxUnzippedFiles)
			}
		}
	}
	return nil
}

func errUnzippedTooLarge() error {
	return fmt.Errorf("unzipped size must be smaller than %d bytes", maxUnzippedBytes)
}

// makeDirs makes a directory and those that it lies in, so that functions of another user can enter them.
func makeDirs(root *os.Root, name string) error {
	if err := root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	for name = path.Clean(name); name != "."; name = path.Dir(name) {
		if err := root.Chmod(name, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// extract writes one file of a zip and returns its size, at most limit bytes.
func extract(root *os.Root, file *zip.File, limit int64) (n int64, err error) {
	mode := file.Mode()
	if mode.IsDir() {
		return 0, makeDirs(root, file.Name)
	}
	if !mode.IsRegular() {
		return 0, errors.New("only regular files and directories can be deployed")
	}
	if parent := path.Dir(file.Name); parent != "." {
		if err := makeDirs(root, parent); err != nil {
			return 0, err
		}
	}
	in, err := file.Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	permissions := mode.Perm()&^0o222 | 0o600
	out, err := root.OpenFile(file.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, permissions)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Chmod(permissions); err != nil { // as in the zip, whatever the umask: functions may run as another user
		return 0, err
	}
	n, err = io.Copy(out, io.LimitReader(in, limit+1))
	if err != nil {
		return n, err
	}
	if n > limit {
		return n, errUnzippedTooLarge()
	}
	return n, out.Sync()
}
