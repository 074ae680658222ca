// Package wait pauses until a time has passed or a context ends.
package wait

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, and reports whether all of d has passed; a d of 0 or below is no wait. When both
// end at the same moment, either answer may come.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
