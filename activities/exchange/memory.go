package exchange

import (
	"context"
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
	// memoryEach is what a message takes besides its bytes: its name, and its place.
	memoryEach = 200
	// mostMean is of how many messages a mean is at most: one of each worker.
	mostMean = 100
)

// Memory is a board in the memory of this process, which adds up as well: what a parameter server keeps. The zero value
// is empty and ready.
type Memory struct {
	mu     sync.Mutex
	groups map[string]*group // guarded by mu
	begun  chan struct{}     // guarded by mu: closed when the next group begins; nil where nobody waits for one
	bytes  int64             // guarded by mu: that all messages take
}

// group is the messages of one group.
type group struct {
	messages map[string][]byte
	posted   chan struct{}   // closed at the next message
	sums     map[string]*sum // those of the latest rounds, by the names of what they are of
	expiry   *time.Timer     // forgets it; put off whenever somebody asks
}

var (
	_ activities.Board = (*Memory)(nil)
	_ Averager         = (*Memory)(nil)
)

// find returns a group, nil where there is none; the caller holds mu.
func (m *Memory) find(name string) *group {
	g := m.groups[name]
	if g != nil {
		g.expiry.Reset(memoryPatience)
	}
	return g
}

// begin makes a group; the caller holds mu.
func (m *Memory) begin(name string) *group {
	g := &group{messages: map[string][]byte{}, posted: make(chan struct{}), sums: map[string]*sum{}}
	g.expiry = time.AfterFunc(memoryPatience, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.groups[name] == g {
			m.forget(name, g)
		}
	})
	if m.groups == nil {
		m.groups = map[string]*group{}
	}
	m.groups[name] = g
	if m.begun != nil {
		close(m.begun)
		m.begun = nil
	}
	return g
}

// forget drops a group; who waits for its messages looks again. The caller holds mu.
func (m *Memory) forget(name string, g *group) {
	for _, data := range g.messages {
		m.bytes -= taken(data)
	}
	g.expiry.Stop()
	delete(m.groups, name)
	close(g.posted)
}

// taken is what a message takes, in bytes.
func taken(data []byte) int64 { return int64(len(data)) + memoryEach }

// Post leaves data under a name of a group; see activities.Board. It wraps activities.ErrNoRoom beyond a gibibyte.
func (m *Memory) Post(_ context.Context, group, name string, data []byte) (first bool, err error) {
	if err := activities.CheckMessage(group, name); err != nil {
		return false, fmt.Errorf("post: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.find(group)
	if g != nil && g.messages[name] != nil {
		return false, nil
	}
	if m.bytes+taken(data) > memoryRoom {
		return false, fmt.Errorf("post %d bytes where %d are kept: %w; use the artifact store as the channel", len(data),
			m.bytes, activities.ErrNoRoom)
	}
	if g == nil {
		g = m.begin(group)
	}
	g.messages[name] = append([]byte{}, data...) // never nil
	m.bytes += taken(data)
	close(g.posted)
	g.posted = make(chan struct{})
	return true, nil
}

// Look returns what is under a name; see activities.Board.
func (m *Memory) Look(_ context.Context, group, name string) ([]byte, error) {
	if err := activities.CheckMessage(group, name); err != nil {
		return nil, fmt.Errorf("look: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var data []byte
	if g := m.find(group); g != nil {
		data = g.messages[name]
	}
	if data == nil {
		return nil, fmt.Errorf("look at %s of %s: %w", name, group, activities.ErrMissing)
	}
	return data, nil
}

// Wipe removes messages; see activities.Board.
func (m *Memory) Wipe(_ context.Context, group string, names ...string) error {
	if err := activities.CheckMessage(group, names...); err != nil {
		return fmt.Errorf("wipe: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.find(group)
	if g == nil {
		return nil
	}
	for _, name := range names {
		if data := g.messages[name]; data != nil {
			m.bytes -= taken(data)
			delete(g.messages, name)
		}
	}
	clear(g.sums)
	if len(names) == 0 || len(g.messages) == 0 {
		m.forget(group, g)
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

// checkMean refuses names of which there is no mean.
func checkMean(group string, names []string) error {
	seen := map[string]bool{}
	for _, name := range names[:min(len(names), mostMean)] {
		if seen[name] {
			return fmt.Errorf("a mean in which %q is twice: name each message once", name)
		}
		seen[name] = true
	}
	if len(names) == 0 || len(names) > mostMean {
		return fmt.Errorf("a mean of %d messages: give 1 to %d", len(names), mostMean)
	}
	return activities.CheckMessage(group, names...)
}

// Mean waits until there is a message under each of the names, 100 at most and each once, and returns their mean; see
// Averager.
func (m *Memory) Mean(
	ctx context.Context, group string, names []string, patience time.Duration,
) (mean Vector, missing []int, err error) {
	if err := checkMean(group, names); err != nil {
		return Vector{}, nil, err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for last := false; ; {
		found, missing, posted := m.sum(group, names)
		if len(missing) == 0 {
			mean, err := found.of()
			if err == nil {
				err = activities.Found(ctx, 2*4*int64(len(mean.Values))) // the caller's own, and its encoding
			}
			if err != nil {
				return Vector{}, nil, err
			}
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
	g := m.find(group)
	if g == nil {
		if m.begun == nil {
			m.begun = make(chan struct{})
		}
		for i := range names {
			missing = append(missing, i)
		}
		return nil, missing, m.begun
	}
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
