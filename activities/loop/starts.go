package loop

import (
	"maps"
	"sync"

	"github.com/spillway-ml/spillway/predictor"
)

// start is one telling of a run's start.
type start struct{ run string }

// starts are those that Tell was given and that are not sent yet. Who tells the end of a run tells its start with it,
// so those of the run are not sent any more: behind the end they would begin it again, for ever. The zero value is
// empty.
type starts struct {
	// publishing is held from the look whether a start is still to be sent until it is on its way, and while those of a
	// run are taken back: none gets behind what is published then.
	publishing sync.Mutex

	mu      sync.Mutex
	waiting map[*start]struct{} // guarded by mu
}

// add notes that a start waits; nil for an event that is none.
func (s *starts) add(event predictor.Event) *start {
	started, is := event.(predictor.RunStarted)
	if !is {
		return nil
	}
	added := &start{started.Run}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[*start]struct{}{}
	}
	s.waiting[added] = struct{}{}
	return added
}

// remove notes that one does not wait any more; nil is none.
func (s *starts) remove(one *start) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, one)
}

// takeBack removes those of a run.
func (s *starts) takeBack(run string) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.waiting, func(one *start, _ struct{}) bool { return one.run == run })
}

// publish calls send unless the start was taken back; nil, for what is none, never is.
func (s *starts) publish(one *start, send func() error) error {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	if one != nil && !s.waits(one) {
		return nil
	}
	return send()
}

func (s *starts) waits(one *start) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.waiting[one]
	return waits
}
