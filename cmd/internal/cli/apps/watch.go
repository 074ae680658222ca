package apps

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// WatchEvery is how often sources are looked at.
	WatchEvery = time.Second
	// watchMost bounds how many files are looked at: a tree with more is not one of sources.
	watchMost = 20_000
)

// Watch calls changed, one call at a time, after files of the app at source changed and then were still for a second,
// until ctx ends. A binary is watched itself; a directory with its whole module, because the app's packages may lie
// anywhere in it.
func Watch(ctx context.Context, source string, every time.Duration, changed func(context.Context)) {
	root := watchRoot(source)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	built := fingerprint(root)
	last := built
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := fingerprint(root)
		if now == last && now != built {
			built = now
			changed(ctx)
		}
		last = now
	}
}

func watchRoot(source string) string {
	if info, err := os.Stat(source); err != nil || !info.IsDir() {
		return source
	}
	absolute, err := filepath.Abs(source)
	if err != nil {
		return source
	}
	if root, found := moduleRoot(absolute); found {
		return root
	}
	return absolute
}

// fingerprint is another number whenever a file that a build may read was added, removed or written: names, sizes and
// times of all files but tests and what lies in directories that the go command or everyone ignores.
func fingerprint(root string) uint64 {
	hash := fnv.New64a()
	seen := 0
	// Files that vanish while walking change the fingerprint by being left out; there is no error worth stopping for.
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "node_modules" ||
				name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(name, ".") || strings.HasSuffix(name, "_test.go") ||
			strings.HasSuffix(name, "~") {
			return nil //nolint:nilerr // see above
		}
		if seen++; seen > watchMost {
			return fs.SkipAll
		}
		line := append([]byte(path), 0)
		line = binary.LittleEndian.AppendUint64(line, uint64(info.ModTime().UnixNano()))
		line = binary.LittleEndian.AppendUint64(line, uint64(info.Size()))
		_, _ = hash.Write(line) // never fails
		return nil
	})
	return hash.Sum64()
}
