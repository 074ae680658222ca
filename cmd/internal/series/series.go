package series

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Point is the use at one time, in the unit of its series.
type Point struct {
	At    time.Time
	Value float64
}

// Series is the recorded use of one thing, oldest first, no two points at the same time.
type Series struct {
	// Name is that of the container, virtual machine or pool, and of the resource where one thing has several.
	Name string
	// Points are in the order of time.
	Points []Point
}

// Format reads the series of one file. An error tells what is wrong and in which line.
type Format func(io.Reader) ([]Series, error)

// ErrNoFiles means that a folder holds no file of the wanted kind.
var ErrNoFiles = errors.New("no such recorded files")

// Open reads one file in the given format; a name that ends in ".gz" is decompressed on the way.
// Errors name the file, and the line where there is one.
func Open[T any](path string, format func(io.Reader) ([]T, error)) (read []T, err error) {
	file, err := os.Open(path) //nolint:gosec // the path is the folder that the caller wants to read
	if err != nil {
		return nil, fmt.Errorf("open recorded data: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	read, err = Decompressed(path, file, format)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return read, nil
}

// Decompressed reads a file that is open in the given format; what has a name that ends in ".gz" is decompressed on the
// way. Errors name the line where there is one.
func Decompressed[T any](name string, file io.Reader, format func(io.Reader) (T, error)) (read T, err error) {
	if !strings.HasSuffix(name, ".gz") {
		return format(file)
	}
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		return read, fmt.Errorf("decompress: %w: %w", ErrFormat, err)
	}
	return format(unzipped)
}

// Files returns the files of folder with a name that begins with prefix and ends in ".csv" or ".csv.gz", in the order
// of their names. A folder without one is ErrNoFiles; a folder that is absent is fs.ErrNotExist.
func Files(folder, prefix string) ([]string, error) { return FilesOf(folder, prefix, ".csv") }

// FilesOf is Files of names that end in suffix or in suffix and ".gz".
func FilesOf(folder, prefix, suffix string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("list recorded data: %w", err)
	}
	var paths []string
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() && strings.HasPrefix(name, prefix) && strings.HasSuffix(strings.TrimSuffix(name, ".gz"), suffix) {
			paths = append(paths, filepath.Join(folder, name))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%w: %s holds no %s*%s or %s*%s.gz", ErrNoFiles, folder, prefix, suffix, prefix, suffix)
	}
	slices.Sort(paths)
	return paths, nil
}
