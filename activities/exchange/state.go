package exchange

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/activities"
)

// Names on the board. A state is told under the number of the interval that it ends, so that the newest is found
// without a list: they are there from the first to the newest.
const endName = "end"

func stateName(interval int) string { return fmt.Sprintf("state-%d", interval) }

func doneName(worker int) string { return fmt.Sprintf("done-%d", worker) }

// stateMark begins a stored state, and names its version.
const stateMark = "SPS1"

// save stores the state as it is now, as the attempt's checkpoint.
func (w *worker) save(ctx context.Context) error {
	if w.saved.Round == w.round && w.saved.State.Digest != "" {
		return nil
	}
	encoded, err := w.model.MarshalBinary()
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	data := binary.LittleEndian.AppendUint64([]byte(stateMark), uint64(w.round)) //nolint:gosec // it is not negative
	ref, err := activities.PutStream(ctx, bytes.NewReader(append(data, encoded...)))
	if err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	w.keep(Saved{Round: w.round, State: ref})
	return nil
}

// keep makes a stored state the attempt's checkpoint.
func (w *worker) keep(saved Saved) {
	w.saved = saved
	if w.attempt.Checkpoint != nil {
		w.attempt.Checkpoint(saved.State)
	}
}

// restore takes over a stored state.
func (w *worker) restore(ctx context.Context, from Saved) error {
	data, err := activities.Artifact[[]byte]{Ref: from.State}.Get(ctx)
	if err != nil {
		return fmt.Errorf("restore the state: %w", err)
	}
	if len(data) < len(stateMark)+8 || string(data[:len(stateMark)]) != stateMark {
		return errors.New("restore the state: the artifact is none; start the run again")
	}
	round := binary.LittleEndian.Uint64(data[len(stateMark):])
	if round > uint64(w.Rounds) { //nolint:gosec // it is not negative
		return fmt.Errorf("restore the state: it is that after %d rounds, of %d", round, w.Rounds)
	}
	if err := w.model.UnmarshalBinary(data[len(stateMark)+8:]); err != nil {
		return fmt.Errorf("restore the state: %w", err)
	}
	w.round = int(round) //nolint:gosec // at most Rounds
	w.keep(Saved{Round: w.round, State: from.State})
	return nil
}

// mark ends an interval of rounds. One of the workers, in turn, saves the state and tells the others of it: who comes
// anew begins there, so what was exchanged in the interval before is needed no more.
func (w *worker) mark(ctx context.Context) error {
	interval := w.round / w.Every
	if interval%w.Workers != w.Worker && !w.adopted[interval%w.Workers] {
		return nil
	}
	if err := w.save(ctx); err != nil {
		return err
	}
	if err := w.tell(ctx, w.saved); err != nil {
		return err
	}
	w.wipe(ctx, w.round-2*w.Every, w.round-w.Every)
	return nil
}

// tell leaves word of a state, where it ends an interval.
func (w *worker) tell(ctx context.Context, saved Saved) error {
	if w.Every == 0 || saved.Round%w.Every != 0 {
		return nil
	}
	return w.post(ctx, stateName(saved.Round/w.Every), saved)
}

func (w *worker) post(ctx context.Context, name string, saved Saved) error {
	data, err := json.Marshal(saved)
	if err == nil {
		_, err = w.Board.Post(ctx, w.Group, name, data)
	}
	if err != nil {
		return fmt.Errorf("tell the others: %w", err)
	}
	return nil
}

// hear reads word of a state.
func (w *worker) hear(ctx context.Context, name string) (saved Saved, there bool, err error) {
	data, err := w.Board.Look(ctx, w.Group, name)
	if errors.Is(err, activities.ErrMissing) {
		return Saved{}, false, nil
	}
	if err != nil {
		return Saved{}, false, err
	}
	if err := json.Unmarshal(data, &saved); err != nil { // cut off by a crash
		return Saved{}, false, w.Board.Wipe(ctx, w.Group, name)
	}
	return saved, true, nil
}

// wipe removes what was exchanged in rounds from a first to before a last one.
func (w *worker) wipe(ctx context.Context, from, to int) {
	var names []string
	for round := max(0, from); round < to; round++ {
		names = append(names, w.names(round)...)
	}
	if len(names) > 0 {
		w.discard(ctx, names...)
	}
}

// discard removes messages that nobody needs. What cannot be removed, as by a role that may not, lies there until the
// engine removes what is old: it is no reason to end a training.
func (w *worker) discard(ctx context.Context, names ...string) {
	if err := w.Board.Wipe(ctx, w.Group, names...); err != nil {
		activities.Log(ctx).WarnContext(ctx, "messages of the training are left behind", "error", err)
	}
}

// catchUp takes over the newest state of the group where that is further than this worker's, and reports whether it
// was.
func (w *worker) catchUp(ctx context.Context) (further bool, err error) {
	for {
		newest, err := w.newest(ctx)
		if err != nil || newest.Round <= w.round {
			return false, err
		}
		before := w.round
		err = w.restore(ctx, newest)
		if errors.Is(err, activities.ErrMissing) { // a newer one has replaced it meanwhile
			if again, failed := w.newest(ctx); failed != nil || again == newest {
				return false, errors.Join(err, failed)
			}
			continue
		}
		if err != nil {
			return false, err
		}
		w.told.Skipped += w.round - before
		return true, nil
	}
}

// newest is the newest state of the group that this worker has not passed; the zero value where there is none.
func (w *worker) newest(ctx context.Context) (newest Saved, err error) {
	if saved, there, err := w.hear(ctx, endName); there || err != nil {
		return saved, err
	}
	if w.Every == 0 {
		return Saved{}, nil
	}
	// One that was not told leaves a gap, so every one is looked for.
	for interval := w.round/w.Every + 1; interval*w.Every < w.Rounds; interval++ {
		saved, there, err := w.hear(ctx, stateName(interval))
		if err != nil {
			return Saved{}, err
		}
		if there {
			newest = saved
		} else if newest.Round > 0 || interval > w.round/w.Every+w.Workers {
			break // at most one worker after another was lost
		}
	}
	return newest, nil
}

// end tells that the training is over. Who comes later finds the final state; who is the last to come removes all else.
// An answer that was lost is asked for again, so the word of the end stays until old groups are removed.
func (w *worker) end(ctx context.Context) error {
	final, over, err := w.hear(ctx, endName)
	if err != nil {
		return err
	}
	if over {
		w.keep(final)
	} else {
		if err := w.save(ctx); err != nil {
			return err
		}
		if err := w.post(ctx, endName, w.saved); err != nil {
			return err
		}
	}
	if err := w.post(ctx, doneName(w.Worker), w.saved); err != nil {
		return err
	}
	for other := range w.Workers {
		if _, done, err := w.hear(ctx, doneName(other)); err != nil || !done {
			return err
		}
	}
	w.discard(ctx)
	return w.post(ctx, endName, w.saved)
}
