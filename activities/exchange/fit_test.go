package exchange

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

func TestTheIntervalOfATrainingFollowsTheRoomOfTheServer(t *testing.T) {
	t.Parallel()
	const mb, gib = 1_000_000, 1 << 30
	for name, test := range map[string]struct {
		asked, workers, bytes int
		want                  int
		says                  string
	}{
		"small":                    {0, 4, 40_000, usualEvery, ""},
		"nothing":                  {0, 1, 0, usualEvery, ""},
		"half of the room":         {0, 8, 4 * mb, 7, ""},
		"more than half of it":     {0, 2, 100 * mb, 1, ""},
		"as it was asked":          {15, 8, 4 * mb, 15, ""},
		"more than there is":       {17, 8, 4 * mb, 0, "every 16 rounds at most"},
		"not even three rounds":    {0, 4, 100 * mb, 0, "scatter-reduce"},
		"not even so as asked":     {1, 4, 100 * mb, 0, "scatter-reduce"},
		"longer than any message":  {0, 1, mostMessage + 1, 0, "scatter-reduce"},
		"just as long as they are": {0, 1, mostMessage, 1, ""},
	} {
		got, err := everyFor(test.asked, test.workers, test.bytes, gib)
		if got != test.want || (err != nil) != (test.says != "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %d, %v; want %d and %q", name, got, err, test.want, test.says)
		}
		if err != nil && !errors.Is(err, ErrNoFit) {
			t.Errorf("%s: %v is none of ErrNoFit", name, err)
		}
		if kept := int64(2*got+1) * int64(test.workers) * (int64(test.bytes) + memoryEach); kept > gib {
			t.Errorf("%s: %d bytes are kept at most", name, kept)
		}
	}
}

// counts is a model that counts how often each of its values was told.
type counts struct {
	values [250]float32
	parts  int
}

func (c *counts) Part(context.Context, int, int, int) (Vector, error) {
	c.parts++
	part := Vector{Weight: 1, Values: make([]float32, len(c.values))}
	for i := range part.Values {
		part.Values[i] = float32(i)
	}
	return part, nil
}

func (c *counts) Apply(_ context.Context, _ int, mean Vector) error {
	for i, value := range mean.Values {
		c.values[i] += value
	}
	return nil
}

func (c *counts) MarshalBinary() ([]byte, error) {
	return binary.Append(nil, binary.LittleEndian, c.values[:])
}

func (c *counts) UnmarshalBinary(data []byte) error {
	_, err := binary.Decode(data, binary.LittleEndian, c.values[:])
	return err
}

// TestARoundOfWhichAPartIsComputedGoesOn has computed its part for five minutes of a call of fifteen, to learn how
// large it is: who went away then would do the same in the next call.
func TestARoundOfWhichAPartIsComputedGoesOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	w := &worker{longest: 5 * time.Minute}
	if !w.late(ctx) {
		t.Error("a round of five minutes is begun in the last nine, of which twice as much is to be left")
	}
	if w.ahead = w.turn(); w.late(ctx) {
		t.Error("a round is given up whose part is computed")
	}
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if !w.late(over) {
		t.Error("there is no time to save the state")
	}
}

// TestATrainingFitsTheRoomOfTheServer has one of 60 rounds, of which the server holds 17.
func TestATrainingFitsTheRoomOfTheServer(t *testing.T) {
	t.Parallel()
	const workers, rounds = 2, 60
	files, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	each := int64(len(Vector{Values: make([]float32, len(counts{}.values))}.encode())) + memoryEach
	room := 17 * workers * each
	words := int64(10 * 1000) // of states and of the end
	server := &Memory{bytes: memoryRoom - room - words}
	train := func(worker int, resume activities.Ref, every int) (Told, *counts, error) {
		attempt := &activities.Attempt{Store: files, Resume: resume}
		model := &counts{}
		told, err := train(activities.NewContext(t.Context(), attempt), Job{
			Board: server, Group: "group", Worker: worker, Workers: workers, Rounds: rounds, Pattern: ParameterServer,
			Every: every,
		}, model, room)
		return told, model, err
	}
	if _, model, err := train(0, activities.Ref{}, 9); !errors.Is(err, ErrNoFit) || model.parts != 1 ||
		len(server.groups) != 0 {
		t.Errorf("an interval for which there is no room: %v, after %d parts, %d groups", err, model.parts,
			len(server.groups))
	}
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			told, model, err := train(worker, activities.Ref{}, 0)
			if err != nil || told.Done != rounds || model.values[3] != 3*rounds {
				t.Errorf("worker %d: %+v, %v, %v", worker, told, model.values[3], err)
			}
		})
	}
	all.Wait()
	if told, model, err := train(0, activities.Ref{}, 0); err != nil || model.parts != 0 || told.Skipped != rounds {
		t.Errorf("after the end: %+v, %d parts, %v", told, model.parts, err)
	}
}
