//go:build !linux

package agent

import "time"

// sinceBoot is how long this process goes on. Whether that counts the time for which the machine sleeps is the system's.
func sinceBoot() time.Duration { return time.Since(began) }
