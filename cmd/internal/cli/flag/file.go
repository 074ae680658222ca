package flag

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// MostYAML bounds, in bytes, the file of a chain and that of devices.
const MostYAML = 16 << 20

var errNoPlainFile = errors.New("it is no plain file")

// OpenFile opens a file that the command line names, to read it; the caller closes it. What is no plain file is
// refused, unless this process has it open already, as it has /dev/stdin and the /dev/fd/63 of a shell's <(...): the
// read of a FIFO waits for a writer that may never come. Of a directory, the read says what it is.
func OpenFile(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait for the writer of a FIFO
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() && !isOpenAlready(name) {
		err = &os.PathError{Op: "open", Path: name, Err: errNoPlainFile}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func isOpenAlready(name string) bool {
	name = filepath.Clean(name)
	directory := filepath.Dir(name)
	return name == "/dev/stdin" || directory == "/dev/fd" || directory == "/proc/self/fd"
}

// ReadFile reads a file that OpenFile opens; it refuses one of more than most bytes.
func ReadFile(name string, most int64) ([]byte, error) {
	file, err := OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d MiB", most>>20)
	}
	return text, err
}
