package ledger

// maxRecent is how many keys a generation takes: those of 32,000 tasks, in about 2 MB.
const maxRecent = 1 << 16

// recent remembers keys in two generations: the latest maxRecent at least, twice as many at most. A run that goes on
// for ever remembers no more.
type recent struct{ newer, older map[uint64]struct{} }

func newRecent() *recent { return &recent{newer: map[uint64]struct{}{}} }

// has reports whether a key is remembered; nil remembers none.
func (r *recent) has(key uint64) bool {
	if r == nil {
		return false
	}
	if _, found := r.newer[key]; found {
		return true
	}
	_, found := r.older[key]
	return found
}

func (r *recent) add(key uint64) {
	if len(r.newer) >= maxRecent {
		r.newer, r.older = map[uint64]struct{}{}, r.newer
	}
	r.newer[key] = struct{}{}
}

func (r *recent) remove(key uint64) {
	delete(r.newer, key)
	delete(r.older, key)
}
