package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// Compress returns JSON in fewer bytes, about a tenth of them, which [Expand] undoes.
func Compress(data []byte) ([]byte, error) {
	var small bytes.Buffer
	w, err := gzip.NewWriterLevel(&small, gzip.BestSpeed) // who waits for it is a tick
	if err != nil {
		return nil, err
	}
	_, err = w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return small.Bytes(), nil
}

// Expand undoes [Compress], where data was compressed: gzip begins with 1f 8b, JSON with a brace. What would come to
// more than most bytes is an error: a damaged value must not take all memory.
func Expand(data []byte, most int64) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	expanded, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(expanded)) > most {
		err = fmt.Errorf("it expands to more than %d bytes", most)
	}
	return expanded, err
}
