package ledger

import "slices"

// chunkSize is how many attempts are copied when one of them changes that a snapshot shares: 140 KB.
const chunkSize = 512

// attempts are those of a run, in the order in which they were first heard of. A snapshot shares them: what changes
// after it is copied first, a chunk at a time. The zero value has none.
type attempts struct {
	chunks []*chunk
	count  int
}

// chunk is up to chunkSize attempts; all chunks but the last are full. What is shared is not changed any more.
type chunk struct {
	of     []attempt
	shared bool
}

// at is an attempt, to be read.
func (s *attempts) at(i int) *attempt { return &s.chunks[i/chunkSize].of[i%chunkSize] }

// edit is an attempt, to be changed.
func (s *attempts) edit(i int) *attempt { return &s.own(i / chunkSize).of[i%chunkSize] }

// add appends an attempt, and returns it to be changed.
func (s *attempts) add() *attempt {
	last := s.count / chunkSize
	if last == len(s.chunks) {
		s.chunks = append(s.chunks, &chunk{})
	}
	c := s.own(last)
	c.of = append(c.of, attempt{})
	s.count++
	return &c.of[len(c.of)-1]
}

// own is a chunk that nobody shares.
func (s *attempts) own(i int) *chunk {
	if c := s.chunks[i]; c.shared {
		s.chunks[i] = &chunk{of: slices.Clone(c.of)}
	}
	return s.chunks[i]
}

// snapshot is the attempts as they are now, to be read by others while these change.
func (s *attempts) snapshot() attempts {
	for _, c := range s.chunks {
		c.shared = true
	}
	return attempts{chunks: slices.Clone(s.chunks), count: s.count}
}
