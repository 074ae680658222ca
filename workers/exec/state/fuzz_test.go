package state

import (
	"bytes"
	"errors"
	"testing"
)

func FuzzParse(f *testing.F) {
	head, err := header(map[string]string{FormatKey: Part},
		[]Tensor{{Name: "a", Type: "F32", Shape: []int{1}, Data: make([]byte, 4)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(head, 1, 2, 3, 4))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Add(make([]byte, 8)) // it was an EOF
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("%v does not wrap %v", err, ErrFormat)
			}
			return
		}
		held := 0
		var tensors []Tensor
		for _, name := range file.Names() {
			tensor, err := file.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			held += len(tensor.Data)
			tensors = append(tensors, tensor)
		}
		if held != len(data)-int(file.start) {
			t.Fatalf("%d bytes of data are read of %d", held, len(data)-int(file.start))
		}
		if _, err := header(file.Metadata(), tensors); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
