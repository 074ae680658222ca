package secrecy

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// ReadFile reads a file that holds a secret and that a setting names. It refuses one that others can read or change, or
// that has more than most bytes; errors name the file, and repeat nothing of it. The group may read where root is the
// owner, as libpq has it for keys, and as volumes of secrets are.
func ReadFile(path string, most int64) ([]byte, error) {
	opened, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe nobody writes to holds nobody up
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }() // it was only read
	info, err := opened.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", path)
	}
	others := os.FileMode(0o077)
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid == 0 {
		others = 0o027
	}
	if info.Mode()&others != 0 {
		return nil, fmt.Errorf("%s can be read or changed by others, and holds a secret: chmod 600 %s", path, path)
	}
	text, err := io.ReadAll(io.LimitReader(opened, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return text, nil
}
