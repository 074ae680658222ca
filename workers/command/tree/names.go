package tree

import (
	"io/fs"
	"os"
	"slices"
	"strings"
)

// FS is a directory for the functions of io/fs with the names that the system has, of whatever bytes they are:
// [os.Root.FS] refuses what is not UTF-8, and programs write such names.
func FS(root *os.Root) fs.FS { return anyNames{root} }

type anyNames struct{ root *os.Root }

// Open opens a file to be read.
func (a anyNames) Open(name string) (fs.File, error) { return a.root.Open(name) }

// Stat describes what is at name, behind a link as well.
func (a anyNames) Stat(name string) (fs.FileInfo, error) { return a.root.Stat(name) }

// ReadDir lists a directory by name.
func (a anyNames) ReadDir(name string) ([]fs.DirEntry, error) {
	dir, err := a.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	entries, err := dir.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}
