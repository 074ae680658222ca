package space

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spillway-ml/spillway/activities/retention"
)

// namesFile is the file below the state directory that says which digests are in the text of artifacts, so that an
// engine that starts does not read all artifacts again.
const namesFile = "artifact-names"

// compactAbove is how many lines more than twice those that are needed the file may have.
const compactAbove = 1000

// nameIndex knows which digests are in the text of artifacts: bytes with a digest never change. The file has a line for
// each artifact, with a checksum. A line that is missing, cut or damaged is no more than an artifact that is read
// again. One goroutine at a time uses it.
type nameIndex struct {
	path  string
	known map[retention.Digest][]retention.Digest
	fresh []retention.Digest // those that are not in the file
	lines int                // how many are in the file, those of what was removed among them
	read  bool               // the file was read
}

func newNameIndex(stateDir string) *nameIndex {
	return &nameIndex{path: filepath.Join(stateDir, namesFile), known: map[retention.Digest][]retention.Digest{}}
}

// of returns the digests in the text of an artifact, where it is known.
func (x *nameIndex) of(digest retention.Digest) (names []retention.Digest, known bool) {
	names, known = x.known[digest]
	return names, known
}

// learn notes what an artifact names.
func (x *nameIndex) learn(digest retention.Digest, names []retention.Digest) {
	x.known[digest] = names
	x.fresh = append(x.fresh, digest)
}

// load reads the file, once. Where it cannot be read, all artifacts are.
func (x *nameIndex) load() error {
	if x.read {
		return nil
	}
	x.read = true
	file, err := os.Open(x.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what artifacts name: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewReader(file); ; x.lines++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // a last line without an end was cut
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what artifacts name: %w", err)
		}
		if digest, names, whole := parseNames(line); whole {
			x.known[digest] = names
		}
	}
}

// keep forgets artifacts that there are no more, and writes down what was learnt.
func (x *nameIndex) keep(there []retention.Artifact) error {
	still := make(map[retention.Digest]bool, len(there))
	for _, one := range there {
		still[one.Digest] = true
	}
	for digest := range x.known {
		if !still[digest] {
			delete(x.known, digest)
		}
	}
	fresh, compact := x.fresh, x.lines > 2*len(x.known)+compactAbove
	if compact {
		fresh, x.lines = slices.Collect(maps.Keys(x.known)), 0
	}
	var text bytes.Buffer
	for _, digest := range fresh {
		if names, still := x.known[digest]; still {
			writeNames(&text, digest, names)
			x.lines++
		}
	}
	x.fresh = nil
	if text.Len() == 0 && !compact {
		return nil
	}
	if err := x.write(text.Bytes(), compact); err != nil {
		return fmt.Errorf("note what artifacts name: %w", err)
	}
	return nil
}

// write appends lines to the file, or puts a new file with them in its place. It does not wait for the disk: what a
// loss of power takes is read again.
func (x *nameIndex) write(lines []byte, anew bool) error {
	path, flags := x.path, os.O_APPEND
	if anew {
		path, flags = x.path+".new", os.O_TRUNC
	}
	file, err := os.OpenFile(path, flags|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if !anew {
		lines = append([]byte{'\n'}, lines...) // behind a line that was cut
	}
	_, err = file.Write(lines)
	if err = errors.Join(err, file.Close()); err == nil && anew {
		err = os.Rename(path, x.path)
	}
	return err
}

// writeNames writes the line of an artifact.
func writeNames(text *bytes.Buffer, digest retention.Digest, names []retention.Digest) {
	first := text.Len()
	text.WriteString(digest.String())
	for _, name := range names {
		text.WriteString(" " + name.String())
	}
	fmt.Fprintf(text, " %08x\n", crc32.ChecksumIEEE(text.Bytes()[first:]))
}

// parseNames reads a line; whole is false for one that is none.
func parseNames(line []byte) (digest retention.Digest, names []retention.Digest, whole bool) {
	at := bytes.LastIndexByte(line, ' ')
	if at < 0 || string(line[at:]) != fmt.Sprintf(" %08x\n", crc32.ChecksumIEEE(line[:at])) {
		return digest, nil, false
	}
	for i, field := range bytes.Split(line[:at], []byte{' '}) {
		var one retention.Digest
		if one.UnmarshalText(field) != nil {
			return digest, nil, false
		}
		if i == 0 {
			digest = one
		} else {
			names = append(names, one)
		}
	}
	return digest, names, true
}
