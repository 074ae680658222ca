//go:build !cgo || !linux

package device

import (
	"context"
	"fmt"
)

// Sees reports whether this build asks the driver of GPUs at all: with cgo, on Linux.
const Sees = false

// Reader asks the driver.
type Reader struct{}

// Open returns a reader that sees nothing.
func Open() *Reader { return &Reader{} }

// Read says that this build cannot see a GPU.
func (*Reader) Read(context.Context) (Reading, error) {
	return Reading{}, fmt.Errorf("read the GPUs: %w: this program was built without cgo or not for Linux", ErrNone)
}

// Accounts tells nothing.
func (*Reader) Accounts(context.Context, string, []int) ([]Account, error) { return nil, nil }

// Close does nothing.
func (*Reader) Close() error { return nil }
