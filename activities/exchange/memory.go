package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

const (
	// memoryRoom is how many bytes a Memory keeps at most.
	memoryRoom = 1 << 30
	// memoryPatience is for how long a group is kept that nobody asks for: longer than any function runs.
	memoryPatience = time.Hour
)

// Memory is a board in the memory of this process, which adds up as well: what a parameter server keeps. The zero value
// is empty and ready.
type Memory struct {
	mu     sync.Mutex
	groups map[string]*group // guarded by mu
	bytes  int64             // guarded by mu: of all messages
}

// group is the messages of one group.
type group struct {
	messages map[string][]byte
	posted   chan struct{} // closed at the next message
	asked    time.Time
	sums     map[string]*sum // those of the latest rounds, by the names of what they are of
}

var (
	_ activities.Board = (*Memory)(nil)
	_ Averager         = (*Memory)(nil)
)

// of returns a group, and forgets those that nobody has asked for in a long time; the caller holds mu.
func (m *Memory) of(name string) *group {
	now := time.Now()
	for other, g := range m.groups {
		if other != name && now.Sub(g.asked) > memoryPatience {
			m.forget(other, g)
		}
	}
	g := m.groups[name]
	if g == nil {
		g = &group{messages: map[string][]byte{}, posted: make(chan struct{}), sums: map[string]*sum{}}
		if m.groups == nil {
			m.groups = map[string]*group{}
		}
		m.groups[name] = g
	}
	g.asked = now
	return g
}

func (m *Memory) forget(name string, g *group) {
	for _, data := range g.messages {
		m.bytes -= int64(len(data))
	}
	delete(m.groups, name)
}

// Post leaves data under a name of a group; see activities.Board. It wraps activities.ErrNoRoom beyond a gibibyte.
func (m *Memory) Post(_ context.Context, group, name string, data []byte) (first bool, err error) {
	if err := activities.CheckMessage(group, name); err != nil {
		return false, fmt.Errorf("post: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.of(group)
	if _, there := g.messages[name]; there {
		return false, nil
	}
	if m.bytes+int64(len(data)) > memoryRoom {
		return false, fmt.Errorf("post %d bytes where %d are kept: %w; use the artifact store as the channel", len(data),
			m.bytes, activities.ErrNoRoom)
	}
	g.messages[name] = slices.Clone(data)
	m.bytes += int64(len(data))
	close(g.posted)
	g.posted = make(chan struct{})
	return true, nil
}

// Look returns what is under a name; see activities.Board.
func (m *Memory) Look(_ context.Context, group, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, there := m.of(group).messages[name]
	if !there {
		return nil, fmt.Errorf("look at %s of %s: %w", name, group, activities.ErrMissing)
	}
	return data, nil
}

// Wipe removes messages; see activities.Board.
func (m *Memory) Wipe(_ context.Context, group string, names ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.of(group)
	for _, name := range names {
		m.bytes -= int64(len(g.messages[name]))
		delete(g.messages, name)
	}
	clear(g.sums)
	if len(names) == 0 {
		m.forget(group, g)
		close(g.posted) // who waits looks again
	}
	return nil
}

// sum is a mean that is added up once, by the first who asks for it.
type sum struct {
	once     sync.Once
	messages [][]byte
	mean     Vector
	err      error
}

func (s *sum) of() (Vector, error) {
	s.once.Do(func() {
		parts := make([]Vector, len(s.messages))
		for i, data := range s.messages { // they never change
			if parts[i], s.err = decode(data); s.err != nil {
				s.err = fmt.Errorf("part %d: %w", i, s.err)
				return
			}
		}
		s.mean, s.err = mean(parts)
	})
	return s.mean, s.err
}

// mostSums is how many means of a group are kept: workers of one round and of the next ask for them.
const mostSums = 2

// Mean waits until there is a message under each of the names, and returns their mean; see Averager.
func (m *Memory) Mean(
	ctx context.Context, group string, names []string, patience time.Duration,
) (mean Vector, missing []int, err error) {
	if len(names) == 0 {
		return Vector{}, nil, errors.New("a mean of no messages")
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for last := false; ; {
		found, missing, posted := m.sum(group, names)
		if len(missing) == 0 {
			mean, err := found.of()
			mean.Values = slices.Clone(mean.Values) // the caller's own
			return mean, nil, err
		}
		if last {
			return Vector{}, missing, nil
		}
		select {
		case <-posted:
		case <-timer.C:
			last = true
		case <-ctx.Done():
			return Vector{}, missing, context.Cause(ctx)
		}
	}
}

// sum returns the mean of the messages under names, or says which are missing.
func (m *Memory) sum(group string, names []string) (found *sum, missing []int, posted <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.of(group)
	key := strings.Join(names, " ")
	if found := g.sums[key]; found != nil {
		return found, nil, g.posted
	}
	found = &sum{}
	for i, name := range names {
		if data, there := g.messages[name]; there {
			found.messages = append(found.messages, data)
		} else {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		if len(g.sums) >= mostSums {
			clear(g.sums) // who still asks for one has it added up anew
		}
		g.sums[key] = found
	}
	return found, missing, g.posted
}
