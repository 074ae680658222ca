package activities

import (
	"context"
	"errors"
	"io"
)

// Ref addresses bytes by what they are. The zero value addresses nothing.
type Ref struct {
	// Digest is the lower-case hexadecimal SHA-256 of the bytes.
	Digest string `json:"digest"`
	// Bytes is how many there are.
	Bytes int64 `json:"bytes"`
}

// Store keeps artifacts. Implementations are safe for concurrent use; the same bytes may be put any number of times.
type Store interface {
	// Put stores everything that r yields and returns its address once it is durable.
	Put(ctx context.Context, r io.Reader) (Ref, error)
	// Open returns the bytes of digest. It wraps ErrMissing when they are not here. The reader's last Read wraps
	// ErrCorrupt when the bytes do not match the digest, so a caller that reads to the end never uses wrong bytes.
	Open(ctx context.Context, digest string) (io.ReadCloser, error)
}

// Errors of a Store.
var (
	// ErrMissing says that no bytes with this digest are stored.
	ErrMissing = errors.New("artifact is missing")
	// ErrCorrupt says that the stored bytes do not match their digest.
	ErrCorrupt = errors.New("artifact does not match its digest")
	// ErrNoRoom says that the store takes no more, because the disk is nearly full; what is in it can be read.
	ErrNoRoom = errors.New("no room for another artifact")
)
