package training

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// CopyCheckpoint copies a checkpoint into a directory, whole or not at all, and returns where it is. A directory that
// others can change is refused unless shared allows it.
func CopyCheckpoint(checkpoint, directory string, shared bool) (target string, err error) {
	root, err := safefile.Open(directory, 0o755, shared)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name := filepath.Base(checkpoint)
	target = filepath.Join(directory, name)
	if _, err := root.Lstat(name); err == nil {
		return target, nil
	}
	scratch, below, err := safefile.Scratch(root, ".spillway-")
	if err != nil {
		return "", err
	}
	err = os.CopyFS(filepath.Join(root.Name(), scratch, "copy"), os.DirFS(checkpoint))
	if err = errors.Join(err, below.Close()); err == nil {
		err = root.Rename(filepath.Join(scratch, "copy"), name)
	}
	return target, errors.Join(err, root.RemoveAll(scratch))
}

// NewestCheckpoint returns the newest of a directory of checkpoints; empty for none.
func NewestCheckpoint(directory string) (newest string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return ""
	}
	var at fs.FileInfo
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if at == nil || info.ModTime().After(at.ModTime()) {
			at, newest = info, filepath.Join(directory, entry.Name())
		}
	}
	return newest
}
