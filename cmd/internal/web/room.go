package web

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// measureEvery is how often what artifacts take is measured anew: stages store some, too, and past the API.
const measureEvery = time.Minute

// room is what artifacts may take together. The zero value has no bound.
type room struct {
	most  quantity.Bytes
	usage func() (quantity.Bytes, error) // what they take now

	mu       sync.Mutex
	used     quantity.Bytes // guarded by mu: as far as it is known
	measured time.Time      // guarded by mu
}

// measure looks what artifacts take, if it is long since that was done.
func (r *room) measure() error {
	if r.most == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.measured) < measureEvery {
		return nil
	}
	used, err := r.usage()
	if err != nil {
		return fmt.Errorf("measure the artifacts: %w", err)
	}
	r.used, r.measured = used, time.Now()
	return nil
}

// take counts n bytes more, or as many less, and refuses what there is no room for.
func (r *room) take(n quantity.Bytes) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used += n
	if r.most == 0 || n <= 0 || r.used <= r.most {
		return nil
	}
	return insufficient("artifacts may take %s together, and they do", r.most)
}

// insufficient returns an Error with status 507: there is no room to store what was sent.
func insufficient(format string, args ...any) *Error {
	return &Error{
		Status: http.StatusInsufficientStorage, Message: fmt.Sprintf(format, args...),
		Hint: "run `spillway gc`, or start the engine with a larger --artifacts-max",
	}
}

// counted takes room for what is read through it.
type counted struct {
	io.Reader
	room  *room
	taken quantity.Bytes
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.taken += quantity.Bytes(n)
	if refusal := c.room.take(quantity.Bytes(n)); refusal != nil {
		return n, refusal
	}
	return n, err
}

// full reports whether err says that the disk, or what this user may take of it, is full.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
