package web

import "time"

// reader is one open stream: what of the feed it has been told.
type reader struct {
	feed *Feed
	run  string        // "" follows all runs
	news chan struct{} // of length 1: something waits

	// told and heard are guarded by feed.mutex. The reader has been told all that concerns it up to the number told, and
	// the latest change that concerns it has the number heard.
	told, heard uint64
}

func (f *Feed) join(run string) *reader {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.prepare()
	r := &reader{feed: f, run: run, news: make(chan struct{}, 1), told: f.head, heard: f.head}
	if f.readers[run] == nil {
		f.readers[run] = map[*reader]struct{}{}
	}
	f.readers[run][r] = struct{}{}
	return r
}

func (r *reader) leave() {
	r.feed.mutex.Lock()
	defer r.feed.mutex.Unlock()
	delete(r.feed.readers[r.run], r)
	if len(r.feed.readers[r.run]) == 0 {
		delete(r.feed.readers, r.run)
	}
}

// wake tells readers of a change that concerns them. The caller holds the mutex.
func wake(readers map[*reader]struct{}, number uint64) {
	for r := range readers {
		if r.heard <= r.told {
			r.told = max(r.told, number-1) // what lies between concerns others: it may be forgotten while the reader sleeps
		}
		r.heard = number
		r.nudge()
	}
}

func (r *reader) nudge() {
	select {
	case r.news <- struct{}{}:
	default: // it is awake already
	}
}

// begin takes all changes up to now for told: the state is read after it.
func (r *reader) begin() {
	r.feed.mutex.Lock()
	defer r.feed.mutex.Unlock()
	r.told, r.heard = r.feed.head, r.feed.head
}

// resume goes on after the message with the given mark; false when changes after it were forgotten, or it is of another
// feed.
func (r *reader) resume(mark string) bool {
	epoch, number, err := parseMark(mark)
	f := r.feed
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if err != nil || epoch != f.epoch || number < f.forgot || number > f.head {
		return false
	}
	r.told, r.heard = number, f.head
	r.nudge()
	return true
}

// taken is what a reader is to be told.
type taken struct {
	changes []*change
	mark    string        // of the last change up to which all is told with these
	wait    time.Duration // until more may be visible; 0 when nothing waits
	lost    bool          // changes were forgotten: the state has to be told again
}

// take returns the changes that have become visible, and takes them for told. A gap of 0 makes all changes visible.
func (r *reader) take(now time.Time, gap time.Duration) taken {
	f := r.feed
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if r.heard > r.told && r.told < f.forgot {
		return taken{lost: true}
	}
	if r.heard > f.visible && now.Sub(f.shown) >= gap {
		f.show(now)
	}
	next := taken{changes: f.between(r.told, r.run)}
	r.told = max(r.told, f.visible)
	next.mark = f.mark(r.told)
	if r.heard > r.told {
		next.wait = max(f.shown.Add(gap).Sub(now), time.Millisecond)
	}
	return next
}

// rest returns the mark of the latest change when none that concerns the reader waits.
func (r *reader) rest() (mark string, idle bool) {
	r.feed.mutex.Lock()
	defer r.feed.mutex.Unlock()
	if r.heard > r.told {
		return "", false
	}
	r.told = r.feed.head
	return r.feed.mark(r.told), true
}
