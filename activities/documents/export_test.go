package documents

import (
	"context"
	"time"
)

// ForgetRemoved has a server forget what it has known to be gone since before a time.
func (d *Documents) ForgetRemoved(ctx context.Context, before time.Time) error {
	return d.forgetRemoved(ctx, before)
}

// Remembered is how many documents a server has in memory, those that are gone included.
func (d *Documents) Remembered() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.known)
}
