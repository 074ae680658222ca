package external

import "time"

// ForgetKey has the file of the API key be read at the next request.
func ForgetKey(t *Temporal) {
	t.key.mu.Lock()
	defer t.key.mu.Unlock()
	t.key.until = time.Time{}
}
