package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// errFound says that another look has found the message, and reads it.
var errFound = errors.New("another look has found it")

// errPassed says that the group has gone on meanwhile, and that this worker has taken its state over.
var errPassed = errors.New("the others have gone on")

const (
	// firstPoll is the first pause between two looks at a board; each is a quarter longer than the one before, up to
	// longestPoll. At most mostLooks are under way at a time.
	firstPoll, longestPoll = 2 * time.Millisecond, 50 * time.Millisecond
	mostLooks              = 8
	// looksFor is how long a message is missing before the worker looks whether the group has gone on.
	looksFor = time.Second
)

func partName(round, part int) string { return fmt.Sprintf("%d-part-%d", round, part) }

func pieceName(round, piece, part int) string {
	return fmt.Sprintf("%d-piece-%d-of-%d", round, piece, part)
}

func meanName(round, piece int) string { return fmt.Sprintf("%d-mean-%d", round, piece) }

// names are those of all messages of a round.
func (w *worker) names(round int) (names []string) {
	for part := range w.Workers {
		if w.Pattern != ScatterReduce {
			names = append(names, partName(round, part))
			continue
		}
		names = append(names, meanName(round, part))
		for piece := range w.Workers {
			names = append(names, pieceName(round, piece, part))
		}
	}
	return names
}

// turn is one round of one worker: what it has computed of it.
type turn struct {
	*worker

	began time.Time // to wait for others: its own parts are posted
	parts map[int]Vector
	given map[int]bool // parts that this turn has posted
}

// turn begins the round to come.
func (w *worker) turn() *turn {
	return &turn{worker: w, parts: map[int]Vector{}, given: map[int]bool{}}
}

// exchange computes this worker's part of the round, and returns the mean of all.
func (w *worker) exchange(ctx context.Context) (Vector, error) {
	t := cmp.Or(w.ahead, w.turn())
	w.ahead = nil
	if w.Workers == 1 {
		part, err := t.part(ctx, 0)
		if err != nil {
			return Vector{}, err
		}
		return mean([]Vector{part})
	}
	if w.Pattern == "" { // parts of all workers are as large, so all of them choose the same
		part, err := t.part(ctx, w.Worker)
		if err != nil {
			return Vector{}, err
		}
		w.Pattern = Usual(w.Workers, len(part.encode()))
	}
	switch w.Pattern {
	case AllGather:
		return t.gather(ctx)
	case ParameterServer:
		return t.serve(ctx)
	default:
		return t.scatter(ctx)
	}
}

// roles are the parts that this worker computes: its own first, then those that it has adopted.
func (t *turn) roles() []int {
	return append([]int{t.Worker}, slices.Sorted(maps.Keys(t.adopted))...)
}

// part computes a part, once. The others may take as long for theirs, and begin later.
func (t *turn) part(ctx context.Context, number int) (Vector, error) {
	if part, computed := t.parts[number]; computed {
		return part, nil
	}
	began := time.Now()
	part, err := t.model.Part(ctx, t.round, number, t.Workers)
	took := time.Since(began)
	t.told.Computing += took
	t.told.Parts++
	t.patience = max(t.patience, patienceOver*took)
	if err == nil {
		err = part.check()
	}
	if err != nil {
		return Vector{}, fmt.Errorf("compute part %d: %w", number, err)
	}
	t.parts[number] = part
	return part, nil
}

// give posts a vector under a name, and returns what is there then: the first that was posted.
func (t *turn) give(ctx context.Context, name string, v Vector) (there Vector, first bool, err error) {
	for {
		first, err = t.Board.Post(ctx, t.Group, name, v.encode())
		if err != nil || first {
			return v, first, err
		}
		there, found, err := t.take(ctx, name)
		if err != nil || found {
			return there, false, err
		}
		if err := t.gone(ctx); err != nil { // it was wiped, or was damaged and is posted again
			return Vector{}, false, err
		}
	}
}

// take looks for a vector once.
func (t *turn) take(ctx context.Context, name string) (Vector, bool, error) {
	data, err := t.Board.Look(ctx, t.Group, name)
	if errors.Is(err, activities.ErrMissing) {
		return Vector{}, false, nil
	}
	if err != nil {
		return Vector{}, false, err
	}
	v, err := decode(data)
	if errors.Is(err, errMessage) { // cut off by a crash: it is posted again
		return Vector{}, false, t.Board.Wipe(ctx, t.Group, name)
	}
	return v, err == nil, err
}

// gone returns errPassed where the group has gone on.
func (t *turn) gone(ctx context.Context) error {
	further, err := t.catchUp(ctx)
	if err == nil && further {
		err = errPassed
	}
	return err
}

// overdue reports whether a part has been missing for so long that it is this worker's turn to compute it: the one
// after its own worker comes first, so that not all of them begin at the same time.
func (t *turn) overdue(part int) bool {
	distance := (t.Worker - part + t.Workers) % t.Workers
	return time.Since(t.began) > t.patience*time.Duration(1+distance)/2
}

// found is what a look has come back with.
type found struct {
	v     Vector
	there bool
	err   error
}

// looks are those at one message that are under way. Once one has found it, no other reads it.
type looks struct {
	all     sync.WaitGroup
	answers chan found
	out     int
	reading atomic.Bool
}

// begin begins a look, unless there are enough or one has found the message.
func (l *looks) begin(ctx context.Context, t *turn, name string) {
	if l.out == mostLooks || l.reading.Load() {
		return
	}
	l.out++
	l.all.Go(func() {
		mine := false
		v, there, err := t.take(activities.WithFound(ctx, func(int64) error {
			if mine = l.reading.CompareAndSwap(false, true); !mine {
				return errFound
			}
			return nil
		}), name)
		if mine && err == nil && !there { // it was damaged, and is posted again
			l.reading.Store(false)
		}
		l.answers <- found{v, there, err}
	})
}

// await waits for the vector of a part's worker. It is not there when it is overdue, and was looked for. While it is
// missing, one look follows another before that has come back: over a slow channel, each would else delay what comes
// meanwhile by a whole latency.
func (t *turn) await(ctx context.Context, name string, part int) (v Vector, there bool, err error) {
	looking, cancel := context.WithCancel(ctx)
	l := looks{answers: make(chan found, mostLooks)}
	defer l.all.Wait()
	defer cancel()
	asked, answered := time.Now(), false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := firstPoll; ; {
		select {
		case got := <-l.answers:
			l.out--
			if errors.Is(got.err, errFound) {
				continue
			}
			if got.err != nil || got.there {
				return got.v, got.there, got.err
			}
			answered = true
			continue
		case <-ctx.Done():
			return Vector{}, false, context.Cause(ctx)
		case <-timer.C:
		}
		overdue := answered && !l.reading.Load() && t.overdue(part)
		if overdue || time.Since(asked) > looksFor {
			if err := t.gone(ctx); err != nil || overdue {
				return Vector{}, false, err
			}
			asked = time.Now()
		}
		l.begin(looking, t, name)
		timer.Reset(pause)
		pause = min(pause*5/4, longestPoll)
	}
}

// gather posts the parts and reads those of the others.
func (t *turn) gather(ctx context.Context) (Vector, error) {
	all := make([]Vector, t.Workers)
	if err := t.giveParts(ctx, all); err != nil {
		return Vector{}, err
	}
	t.began = time.Now()
	for i := 1; i < t.Workers; i++ {
		part := (t.Worker + i) % t.Workers
		if all[part].Weight > 0 {
			continue
		}
		got, there, err := t.await(ctx, partName(t.round, part), part)
		if err == nil && !there {
			got, err = t.adopt(ctx, part)
		}
		if err != nil {
			return Vector{}, err
		}
		all[part] = got
	}
	return mean(all)
}

// giveParts computes and posts whole parts, and notes what is there then.
func (t *turn) giveParts(ctx context.Context, all []Vector) error {
	for _, role := range t.roles() {
		if role != t.Worker {
			there, found, err := t.take(ctx, partName(t.round, role))
			if err != nil {
				return err
			}
			if found { // its worker is back
				delete(t.adopted, role)
				all[role] = there
				continue
			}
		}
		v, err := t.givePart(ctx, role)
		if err != nil {
			return err
		}
		all[role] = v
	}
	return nil
}

func (t *turn) givePart(ctx context.Context, role int) (Vector, error) {
	part, err := t.part(ctx, role)
	if err != nil {
		return Vector{}, err
	}
	v, first, err := t.give(ctx, partName(t.round, role), part)
	if !first && role != t.Worker {
		delete(t.adopted, role)
	}
	return v, err
}

// adopt computes and posts the part of a worker that is not there.
func (t *turn) adopt(ctx context.Context, part int) (Vector, error) {
	t.missed(ctx, part)
	return t.givePart(ctx, part)
}

// missed notes that the worker of a part is not there: from the next round on, nobody waits for it.
func (t *turn) missed(ctx context.Context, part int) {
	t.adopted[part], t.waited = true, true
	activities.Log(ctx).InfoContext(ctx, "a worker is not there: its part is computed here", "worker", part, "round",
		t.round)
}

// serve posts the parts and has a parameter server add up.
func (t *turn) serve(ctx context.Context) (Vector, error) {
	server, _ := t.Board.(Averager) // checked at the beginning
	if err := t.giveParts(ctx, make([]Vector, t.Workers)); err != nil {
		return Vector{}, err
	}
	t.began = time.Now()
	names := t.names(t.round)
	for {
		sum, missing, err := server.Mean(ctx, t.Group, names, min(t.patience/2, looksFor))
		if err != nil || len(missing) == 0 {
			return sum, err
		}
		if err := t.gone(ctx); err != nil {
			return Vector{}, err
		}
		for _, part := range missing {
			if _, computed := t.parts[part]; computed { // the server has lost it
				_, err = t.givePart(ctx, part)
			} else if t.overdue(part) {
				_, err = t.adopt(ctx, part)
			}
			if err != nil {
				return Vector{}, err
			}
		}
	}
}

// scatter posts the pieces of the parts, adds up the pieces of its roles, and reads the others' means.
func (t *turn) scatter(ctx context.Context) (Vector, error) {
	for _, role := range t.roles() {
		back, err := t.isBack(ctx, role)
		if err == nil && !back {
			err = t.givePieces(ctx, role)
		}
		if err != nil {
			return Vector{}, err
		}
	}
	t.began = time.Now()
	pieces := make([]Vector, t.Workers)
	for _, role := range t.roles() {
		sum, err := t.add(ctx, role)
		if err != nil {
			return Vector{}, err
		}
		pieces[role] = sum
	}
	var whole Vector
	for i := range t.Workers {
		piece := (t.Worker + i) % t.Workers
		if pieces[piece].Weight > 0 {
			continue
		}
		sum, there, err := t.await(ctx, meanName(t.round, piece), piece)
		if err == nil && !there {
			if err = t.adoptPieces(ctx, piece); err == nil {
				sum, err = t.add(ctx, piece)
			}
		}
		if err != nil {
			return Vector{}, err
		}
		pieces[piece] = sum
	}
	for _, piece := range pieces {
		whole.Weight = piece.Weight
		whole.Values = append(whole.Values, piece.Values...)
	}
	return whole, nil
}

// isBack reports whether a role is adopted, and its own worker has been faster in this round.
func (t *turn) isBack(ctx context.Context, role int) (bool, error) {
	if role == t.Worker {
		return false, nil
	}
	_, there, err := t.take(ctx, pieceName(t.round, (role+1)%t.Workers, role))
	if there {
		delete(t.adopted, role)
	}
	return there, err
}

// adoptPieces computes and posts the part of a worker that is not there, unless that is done.
func (t *turn) adoptPieces(ctx context.Context, part int) error {
	if t.given[part] {
		return nil
	}
	t.missed(ctx, part)
	return t.givePieces(ctx, part)
}

// givePieces computes a part and posts what others add up of it, beginning with the worker after its own.
func (t *turn) givePieces(ctx context.Context, role int) error {
	part, err := t.part(ctx, role)
	if err != nil {
		return err
	}
	t.given[role] = true
	for i := 1; i < t.Workers; i++ {
		piece := (role + i) % t.Workers
		first, err := t.Board.Post(ctx, t.Group, pieceName(t.round, piece, role),
			part.piece(piece, t.Workers).encode())
		if err != nil {
			return err
		}
		if !first && i == 1 && role != t.Worker { // its worker is back
			delete(t.adopted, role)
		}
	}
	return nil
}

// add adds up one piece of all parts, and posts the mean. Who has computed a part takes it from there.
func (t *turn) add(ctx context.Context, piece int) (Vector, error) {
	all := make([]Vector, t.Workers)
	for i := range t.Workers {
		part := (piece + i) % t.Workers
		_, computed := t.parts[part]
		if !computed {
			got, there, err := t.await(ctx, pieceName(t.round, piece, part), part)
			if err == nil && !there {
				err = t.adoptPieces(ctx, part)
			}
			if err != nil {
				return Vector{}, err
			}
			all[part] = got
		}
		if own, computed := t.parts[part]; computed {
			all[part] = own.piece(piece, t.Workers)
		}
	}
	sum, err := mean(all)
	if err != nil {
		return Vector{}, err
	}
	there, _, err := t.give(ctx, meanName(t.round, piece), sum)
	return there, err
}
