package exchange

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ErrNoFit says that a parameter server has not the room for a training, whoever else uses it.
var ErrNoFit = errors.New("the parameter server has no room for this training")

// everyFor is after how many rounds of messages of so many bytes a state is saved, so that what the server holds until
// then fits its room: the messages of two intervals, and those of the round in which they are removed. As many as are
// asked for; 0 is the usual number, or the most that half of the room is enough for, so that another training has room
// beside it.
func everyFor(asked, workers, bytes int, room int64) (int, error) {
	round := int64(workers) * (int64(bytes) + memoryEach)
	fits := func(room int64) int { return int((room/round - 1) / 2) }
	most := fits(room)
	switch {
	case bytes > mostMessage || most < 1:
		return 0, fmt.Errorf("%w: a message may have %s, this one has %s, and those of three rounds %s, of %s in all; use %s",
			ErrNoFit, quantity.Bytes(mostMessage), quantity.Bytes(bytes), quantity.Bytes(3*round), quantity.Bytes(room),
			ScatterReduce)
	case asked > most:
		return 0, fmt.Errorf("%w: it keeps the messages of two intervals, of %d rounds of %s each: save the state every %d "+
			"rounds at most, or use %s", ErrNoFit, asked, quantity.Bytes(round), most, ScatterReduce)
	case asked > 0:
		return asked, nil
	}
	return max(1, min(fits(room/2), usualEvery)), nil
}

// fit computes this worker's part of the round to come, by whose size it chooses Every; all parts are as large, so all
// workers choose the same. The round goes on from there.
func (w *worker) fit(ctx context.Context) error {
	w.ahead = w.turn()
	began := time.Now()
	part, err := w.ahead.part(ctx, w.Worker)
	if err != nil {
		return err
	}
	w.longest = time.Since(began)
	w.Every, err = everyFor(w.Every, w.Workers, len(part.encode()), w.room)
	return err
}
