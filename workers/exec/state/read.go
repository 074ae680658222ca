package state

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
)

// File is an open file of tensors. Its methods may be called concurrently, but for Close.
type File struct {
	source   io.ReaderAt
	closer   io.Closer
	start    int64 // of the data
	metadata map[string]string
	names    []string
	entries  map[string]entry
}

// Open opens a file and checks all but its numbers: that each tensor lies where its type and shape say, that they
// follow each other without gap or overlap, and that the file ends where the last one does. Errors of a file that does
// not wrap [ErrFormat]. Close it.
func Open(path string) (*File, error) {
	source, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open tensors: %w", err)
	}
	info, err := source.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s", ErrFormat, info.Mode().Type())
	}
	var file *File
	if err == nil {
		file, err = parse(source, info.Size())
	}
	if err != nil {
		return nil, fmt.Errorf("open tensors: %s: %w", path, errors.Join(err, source.Close()))
	}
	file.closer = source
	return file, nil
}

// parse reads the header of a file of this many bytes.
func parse(source io.ReaderAt, length int64) (*File, error) {
	var prefix [8]byte
	if length < int64(len(prefix)) {
		return nil, fmt.Errorf("%w: it has %d bytes and is cut short", ErrFormat, length)
	}
	if _, err := source.ReadAt(prefix[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n == 0 {
		return nil, fmt.Errorf("%w: it has no header", ErrFormat)
	}
	if n > mostHeader {
		return nil, fmt.Errorf("%w: a header of %d bytes; at most %d are read", ErrFormat, n, mostHeader)
	}
	f := &File{source: source, start: int64(len(prefix)) + int64(n), entries: map[string]entry{}}
	if length < f.start {
		return nil, fmt.Errorf("%w: it is cut short in its header: %d bytes are missing", ErrFormat, f.start-length)
	}
	head := make([]byte, n)
	if _, err := source.ReadAt(head, int64(len(prefix))); err != nil {
		return nil, err
	}
	if err := f.decode(head); err != nil {
		return nil, err
	}
	return f, f.place(length - f.start)
}

// decode reads the header token by token, as a map would hide repeated names.
func (f *File) decode(head []byte) error {
	if len(head) == 0 || head[0] != '{' {
		return fmt.Errorf("%w: its header is no JSON object", ErrFormat)
	}
	decoder := json.NewDecoder(bytes.NewReader(head))
	decoder.DisallowUnknownFields()
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("%w: its header: %w", ErrFormat, err)
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("%w: its header: %w", ErrFormat, err)
		}
		name, _ := key.(string)
		if err := f.decodeEntry(decoder, name); err != nil {
			return fmt.Errorf("%w: its header: %q: %w", ErrFormat, name, err)
		}
	}
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("%w: its header: %w", ErrFormat, err)
	}
	if rest := bytes.Trim(head[decoder.InputOffset():], " "); len(rest) > 0 {
		return fmt.Errorf("%w: its header goes on after its end", ErrFormat)
	}
	return nil
}

func (f *File) decodeEntry(decoder *json.Decoder, name string) error {
	if name == reserved {
		if f.metadata != nil {
			return errors.New("twice")
		}
		f.metadata = map[string]string{}
		return decoder.Decode(&f.metadata)
	}
	if _, twice := f.entries[name]; twice {
		return errors.New("twice")
	}
	if name == "" {
		return errors.New("a tensor without a name")
	}
	var e entry
	if err := decoder.Decode(&e); err != nil {
		return err
	}
	if e.Shape == nil || len(e.Offsets) != 2 {
		return errors.New("want dtype, shape and two data_offsets")
	}
	want, err := size(e.Type, e.Shape)
	if err != nil {
		return err
	}
	if begin, end := e.Offsets[0], e.Offsets[1]; begin < 0 || end < begin || end-begin != want {
		return fmt.Errorf("it lies from %d to %d; shape %v of %s has %d bytes", begin, end, e.Shape, e.Type, want)
	}
	f.entries[name] = e
	f.names = append(f.names, name)
	return nil
}

// place checks that the tensors fill the data one after the other, and puts their names in this order.
func (f *File) place(have int64) error {
	slices.SortStableFunc(f.names, func(a, b string) int {
		return slices.Compare(f.entries[a].Offsets, f.entries[b].Offsets)
	})
	end := int64(0)
	for _, name := range f.names {
		if begin := f.entries[name].Offsets[0]; begin != end {
			return fmt.Errorf("%w: %q begins at %d; the one before ends at %d", ErrFormat, name, begin, end)
		}
		end = f.entries[name].Offsets[1]
	}
	switch {
	case have < end:
		return fmt.Errorf("%w: it is cut short: %d of %d bytes of data are missing", ErrFormat, end-have, end)
	case have > end:
		return fmt.Errorf("%w: %d bytes follow its end", ErrFormat, have-end)
	default:
		return nil
	}
}

// Metadata returns a copy of the metadata; it is empty where there is none.
func (f *File) Metadata() map[string]string {
	if f.metadata == nil {
		return map[string]string{}
	}
	return maps.Clone(f.metadata)
}

// Names returns the names of the tensors in the order of their data.
func (f *File) Names() []string { return slices.Clone(f.names) }

// Read returns a tensor; the error wraps [fs.ErrNotExist] where the file has none of this name.
func (f *File) Read(name string) (Tensor, error) {
	e, ok := f.entries[name]
	if !ok {
		return Tensor{}, fmt.Errorf("read tensor %q: %w", name, fs.ErrNotExist)
	}
	data := make([]byte, e.Offsets[1]-e.Offsets[0])
	if n, err := f.source.ReadAt(data, f.start+e.Offsets[0]); n < len(data) {
		return Tensor{}, fmt.Errorf("read tensor %q: %w: %w", name, ErrFormat, err)
	}
	return Tensor{Name: name, Type: e.Type, Shape: slices.Clone(e.Shape), Data: data}, nil
}

// Close closes the file.
func (f *File) Close() error { return f.closer.Close() }
