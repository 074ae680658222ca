package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		g = &group{messages: map[string][]byte{}, posted: make(chan struct{})}
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
	if len(names) == 0 {
		m.forget(group, g)
		close(g.posted) // who waits looks again
	}
	return nil
}

// Mean waits until there is a message under each of the names, and returns their mean; see Averager.
func (m *Memory) Mean(
	ctx context.Context, group string, names []string, patience time.Duration,
) (sum Vector, missing []int, err error) {
	if len(names) == 0 {
		return Vector{}, nil, errors.New("a mean of no messages")
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for last := false; ; {
		parts, missing, posted, err := m.parts(group, names)
		if err != nil || len(missing) > 0 && last {
			return Vector{}, missing, err
		}
		if len(missing) == 0 {
			sum, err := mean(parts)
			return sum, nil, err
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

// parts decodes the messages under names, or says which are missing.
func (m *Memory) parts(
	group string, names []string,
) (parts []Vector, missing []int, posted <-chan struct{}, err error) {
	m.mu.Lock()
	g := m.of(group)
	found := make([][]byte, len(names))
	for i, name := range names {
		if data, there := g.messages[name]; there {
			found[i] = data
		} else {
			missing = append(missing, i)
		}
	}
	posted = g.posted
	m.mu.Unlock()
	if len(missing) > 0 {
		return nil, missing, posted, nil
	}
	for i, data := range found { // messages never change
		part, err := decode(data)
		if err != nil {
			return nil, nil, posted, fmt.Errorf("message %s of %s: %w", names[i], group, err)
		}
		parts = append(parts, part)
	}
	return parts, nil, posted, nil
}
