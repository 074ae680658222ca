package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/slot"
)

const hush = "sk-4711-very-much-hush"

func confides(task *wire.Task) { task.Secrets = true }

func TestACommandFindsItsSecretsAndWhatItPrintsIsToldWithoutThem(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 10)
	h, printed, _ := startWithStore(t, 1, func(o *Options) {
		o.SampleEvery = time.Hour
		o.Secrets = func(_ context.Context, task wire.Task, attempt int) (map[string]string, error) {
			asked <- fmt.Sprintf("%s of %s, %d", task.ID, task.Stage.Name, attempt)
			return map[string]string{"open-key": hush}, nil
		}
	})
	c := shell(`echo "key $OPEN_KEY"; printf '%s' "$OPEN_KEY" | cut -c1-5 | tr -d '\n'; sleep 0.1
		printf '%s\n' "$OPEN_KEY" | cut -c6-; printf 'sk-4711'; echo "no login: $OPEN_KEY" >&2; exit 3`)
	_, err := h.command(t, "fit-1", c, confides).Wait(t)
	record := h.records()[0]
	if err == nil || strings.Contains(err.Error(), hush) || strings.Contains(record.Error, hush) ||
		!strings.Contains(record.Error, "no login: "+wire.Masked) {
		t.Errorf("it failed with %v, and its Record says %q", err, record.Error)
	}
	text, want := printed("fit-1", 1), "key (secret)\n(secret)\nsk-4711no login: (secret)\n"
	if text != want {
		t.Errorf("printed: got %q, want %q: all but the secret, also of its beginning", text, want)
	}
	if first := <-asked; first != "fit-1 of score, 1" || len(asked) > 0 {
		t.Errorf("asked for %q, and %d times more; want once for each attempt", first, len(asked))
	}

	// The next attempt is of a stage that names none.
	if _, err := h.command(t, "look-1", shell(`env | grep -c OPEN_KEY && exit 1; true`), nil).Wait(t); err != nil {
		t.Errorf("an attempt of a stage without secrets: %v", err)
	}
	if text := printed("look-1", 1); text != "0\n" || len(asked) > 0 {
		t.Errorf("it printed %q, and asked %d times", text, len(asked))
	}
}

func TestAnAttemptWhoseSecretsCannotBeHadFailsOnceOrIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err  error
		want string // of the first Record
		most int32  // how often it is asked
	}{
		"there is none": {
			fmt.Errorf("%w: open-key is not in /secrets", slot.ErrNoSecret), "open-key is not in /secrets", 1,
		},
		"nobody answers": {errors.New("the server does not answer"), "the server does not answer", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			h, _, _ := startWithStore(t, 1, func(o *Options) {
				o.SampleEvery = time.Hour
				o.Secrets = func(context.Context, wire.Task, int) (map[string]string, error) {
					if asked.Add(1) > 1 {
						return map[string]string{"open-key": hush}, nil
					}
					return nil, row.err
				}
			})
			_, err := h.command(t, "fit-1", shell(`test "$OPEN_KEY" = `+hush), func(task *wire.Task) {
				task.Secrets, task.MaxAttempts = true, 3
			}).Wait(t)
			if got := asked.Load(); got != row.most || (err == nil) != (row.most > 1) {
				t.Errorf("it was asked %d times, and ended with %v; want %d times", got, err, row.most)
			}
			if record := h.records()[0]; !strings.Contains(record.Error, row.want) {
				t.Errorf("the first Record says %q, want %q", record.Error, row.want)
			}
		})
	}
}
