package state

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// alignment is what the header is padded to, so that numbers may be mapped into memory.
const alignment = 8

// entry is a tensor in the header.
type entry struct {
	Type    string  `json:"dtype"`
	Shape   []int   `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// Write makes a file of tensors, in their order. It takes its name when it is whole and on the disk, so a file of this
// name is never half written; what is in the making has a name that cannot be guessed, so that nobody can have put a
// link there. Tensors of wrong size and repeated names are errors that wrap [ErrFormat]. Files of different paths may
// be written concurrently.
func Write(path string, metadata map[string]string, tensors []Tensor) error {
	head, err := header(metadata, tensors)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write tensors: %w", err)
	}
	write := func(file *os.File) error { return fill(file, head, tensors) }
	err = safefile.Write(root, filepath.Base(path), 0o666, write)
	if err := errors.Join(err, root.Close()); err != nil {
		return fmt.Errorf("write tensors: %w", err)
	}
	return safefile.SyncDirectory(filepath.Dir(path))
}

func fill(file *os.File, head []byte, tensors []Tensor) error {
	if _, err := file.Write(head); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := file.Write(t.Data); err != nil {
			return err
		}
	}
	return file.Sync()
}

// header returns the file's first bytes, up to the data.
func header(metadata map[string]string, tensors []Tensor) ([]byte, error) {
	var text bytes.Buffer
	text.Write(make([]byte, 8))
	text.WriteByte('{')
	add := func(name string, value any) error {
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if text.Len() > 9 {
			text.WriteByte(',')
		}
		text.Write(key)
		text.WriteByte(':')
		text.Write(encoded)
		return nil
	}
	if len(metadata) > 0 {
		if err := checkText(metadata); err != nil {
			return nil, err
		}
		if err := add(reserved, metadata); err != nil {
			return nil, err
		}
	}
	end, seen := int64(0), make(map[string]bool, len(tensors))
	for _, t := range tensors {
		if seen[t.Name] {
			return nil, fmt.Errorf("%w: two tensors are called %q", ErrFormat, t.Name)
		}
		seen[t.Name] = true
		if err := t.check(); err != nil {
			return nil, err
		}
		want := int64(len(t.Data))
		if err := add(t.Name, entry{
			Type: t.Type, Shape: append([]int{}, t.Shape...),
			Offsets: []int64{end, end + want},
		}); err != nil {
			return nil, err
		}
		end += want
	}
	text.WriteByte('}')
	for text.Len()%alignment != 0 {
		text.WriteByte(' ')
	}
	head := text.Bytes()
	if len(head)-8 > mostHeader {
		return nil, fmt.Errorf("%w: the header of %d tensors has %d bytes; at most %d are read", ErrFormat, len(tensors),
			len(head)-8, mostHeader)
	}
	binary.LittleEndian.PutUint64(head, uint64(len(head)-8))
	return head, nil
}

func checkText(metadata map[string]string) error {
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return fmt.Errorf("%w: metadata %q is no UTF-8 text", ErrFormat, key)
		}
	}
	return nil
}

// check refuses a tensor that has no proper name, or whose data are not what its type and shape say.
func (t Tensor) check() error {
	if t.Name == "" || t.Name == reserved || !utf8.ValidString(t.Name) {
		return fmt.Errorf("%w: a tensor is called %q; names are UTF-8 text, not empty and not %s", ErrFormat, t.Name,
			reserved)
	}
	want, err := size(t.Type, t.Shape)
	if err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if int64(len(t.Data)) != want {
		return fmt.Errorf("%w: tensor %q has %d bytes of data; shape %v of %s has %d", ErrFormat, t.Name, len(t.Data),
			t.Shape, t.Type, want)
	}
	return nil
}
