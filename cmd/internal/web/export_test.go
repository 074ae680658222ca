package web

import "time"

// SetPace lets tests hurry. It is called before the first request.
func (s *Server) SetPace(gap, heartbeat, stall time.Duration) {
	s.pace = pace{gap: gap, heartbeat: heartbeat, stall: stall}
}

// Readers is how many streams are open.
func (f *Feed) Readers() int { return readers(f) }
