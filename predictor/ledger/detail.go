package ledger

// Bounds of what is kept of runs beyond their sums, over all runs. Beyond them that of the oldest ended runs is
// dropped. A single attempt takes about 300 bytes, a look 40, a point of a curve 40.
const (
	maxAttempts = 250_000
	maxLooks    = 500_000
	maxPoints   = 500_000
)

// detail is what is kept of a run beyond its sums.
type detail struct {
	attempts attempts
	places   map[uint64]int32 // where an attempt is, by key; nil once the run is settled
	looks    []look
	curves   []*curve
	points   int // of all curves

	trainings []*TrainingView
}

// tally counts what is kept over all runs.
type tally struct{ attempts, looks, points, trainings int }

// place returns where the attempt of this key is, with room made for it if there is none; known is false when there is
// no room: runs that go on have taken it all.
func (l *Ledger) place(a *account, key uint64) (kept *attempt, known bool) {
	if i, found := a.detail.places[key]; found {
		return a.detail.attempts.edit(int(i)), true
	}
	for l.kept.attempts >= l.bounds.attempts {
		if !l.dropOldest(func(d *detail) bool { return d.attempts.count > 0 }) {
			return nil, false
		}
	}
	if a.detail.places == nil {
		a.detail.places = map[uint64]int32{}
	}
	a.detail.places[key] = int32(a.detail.attempts.count)
	l.kept.attempts++
	return a.detail.attempts.add(), true
}

// dropOldest drops the detail of the oldest ended run that has some of what is asked for.
func (l *Ledger) dropOldest(has func(*detail) bool) bool {
	for _, a := range l.order {
		if a.ended() && has(&a.detail) {
			l.drop(a)
			return true
		}
	}
	return false
}

// drop forgets the detail of a run. What static sizes would have cost is compared for the last time.
func (l *Ledger) drop(a *account) {
	a.freeze(&l.prices)
	l.kept.attempts -= a.detail.attempts.count
	l.kept.looks -= len(a.detail.looks)
	l.kept.points -= a.detail.points
	l.kept.trainings -= len(a.detail.trainings)
	a.detail, a.dropped = detail{}, true
}
