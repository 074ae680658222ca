package spill

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// quiet is the part of a batch's wait after which, with no other task since the last, none is waited for any more: the
// tasks of a window that are all here bring no others.
const quiet = 4

// alone reports whether an attempt has an invoke for itself: where its build takes no batches, where its run's money
// bounds it, as code that does not stop then ends with its environment, and where it was tried before: what has ended
// an environment ends none with others in it again.
func alone(task wire.Task, attempt int, c call) bool {
	return !task.Batches || task.Command || attempt > 1 || c.within > 0
}

// ready is which of the tasks that wait, in their order, go with the next invoke now, while so many go on of as many
// slots; none where it is not time yet, and then after how long to look again, 0 for when an invoke ends or a task
// comes.
func ready(
	waiting []*member, flying int, row granted, now time.Time,
) (take []*member, again time.Duration) {
	switch {
	case len(waiting) == 0, flying >= max(row.slots, 1):
		return nil, 0
	case row.batch.Most() == 1, waiting[0].alone, slow(row, waiting[0]):
		return waiting[:1], 0
	}
	first, last, bytes := waiting[0], waiting[0].since, 0
	for _, m := range waiting {
		if m.alone || m.call.function != first.call.function || slow(row, m) {
			continue
		}
		if bytes += len(m.payload); bytes > maxPayload {
			return take, 0
		}
		if take = append(take, m); len(take) == row.batch.Tasks {
			return take, 0
		}
		last = m.since
	}
	due := min(first.since.Add(row.batch.Wait).Sub(now), last.Add(row.batch.Wait/quiet).Sub(now))
	if due <= 0 || first.again {
		return take, 0
	}
	return nil, due
}

// slow reports whether a task is expected to take longer than a batch and the wait for it: it would keep the others.
func slow(row granted, m *member) bool {
	return m.expected > 2*row.batch.Wait.Seconds()
}

// split divides what an invoke cost, and for how long it was billed, over its attempts by how long each has run. The
// parts sum up to the whole to the last unit: each is what the sum of the weights up to it comes to, rounded, less the
// same before it. Without weights they are equal.
func split(cost quantity.Money, billed time.Duration, ran []time.Duration) (costs []quantity.Money,
	bills []time.Duration,
) {
	var sum int64
	for _, d := range ran {
		sum += max(int64(d), 0)
	}
	at := func(total int64, upTo int64) int64 {
		return int64(quantity.Money(total).Prorated(quantity.Fraction{Of: upTo, In: cmp.Or(sum, int64(len(ran)))}))
	}
	var before int64
	for _, d := range ran {
		upTo := before + max(int64(d), 0)
		if sum == 0 {
			upTo = before + 1
		}
		costs = append(costs, quantity.Money(at(int64(cost), upTo)-at(int64(cost), before)))
		bills = append(bills, time.Duration(at(int64(billed), upTo)-at(int64(billed), before)))
		before = upTo
	}
	return costs, bills
}

// fate is what became of one attempt of an invoke that returned.
type fate struct {
	landing
	ran   time.Duration // what of the bill is its part, beside those of the others
	again bool          // it was not begun, and goes with another invoke
}

// fates decides what became of each attempt of an invoke that returned. Where its environment died, that is put down to
// the one that ran then, as the log tells, unless it ran into the limit of the function, of which others had a part.
// Those before it have lost their answers, and those behind it were not begun. Where the log does not tell, because
// nothing was begun or the last has printed much, all are lost: each is tried again with an invoke for itself, and
// shows then who it was.
func fates(venue predictor.FunctionVenue, members []*member, answer activities.FunctionAnswer) []fate {
	found := make([]fate, len(members))
	if answer.Error != "" {
		at := begun(answer.Log, members)
		for i, m := range members {
			switch {
			case i == at && i > 0 && ranOut(answer):
				// Those before it had a part of the time, so that it says nothing of this one's.
				lost := lostWithOthers(*m.call, "the function ran into its time limit")
				found[i] = fate{landing: landing{ending: lost}, ran: 1}
			case i == at:
				mine := answer
				_, mine.Log = wire.CutFunctionNotes(printedBy(answer.Log, i, members))
				found[i] = fate{landing: landing{ending: died(venue, m.start.Task, mine)}, ran: 1}
			case at >= 0 && i > at:
				found[i].again = true
			default:
				found[i] = fate{landing: landing{ending: lostWithOthers(*m.call, "the function's process ended")}, ran: 1}
			}
		}
		return found
	}
	answers, err := decode(len(members), answer.Payload)
	for i, m := range members {
		switch {
		case err != nil:
			found[i] = fate{landing: landing{ending: noAnswer(err)}, ran: 1}
		case i < len(answers):
			got := answers[i]
			found[i] = fate{landing: landing{ending: answered(venue, m.start.Task, got), answer: got}, ran: max(got.Wall, 1)}
		default:
			found[i].again = true
		}
	}
	return found
}

// decode reads the answers of an invoke of so many attempts; there is at least one.
func decode(attempts int, payload []byte) ([]wire.Answer, error) {
	if attempts == 1 {
		var answer wire.Answer
		err := json.Unmarshal(payload, &answer)
		return []wire.Answer{answer}, err
	}
	var all wire.Answers
	if err := json.Unmarshal(payload, &all); err != nil {
		return nil, err
	}
	if all.Version != wire.Version || len(all.Answers) == 0 || len(all.Answers) > attempts {
		return nil, fmt.Errorf("%d answers of version %d to %d tasks", len(all.Answers), all.Version, attempts)
	}
	return all.Answers, nil
}

// begun is the last attempt of an invoke that its log says was begun; -1 where it tells of none. One that is alone
// was.
func begun(log string, members []*member) int {
	if len(members) == 1 {
		return 0
	}
	for i := range slices.Backward(members) {
		if strings.Contains(log, mark(i, members)) {
			return i
		}
	}
	return -1
}

// mark is the line with which the function began an attempt of a batch.
func mark(i int, members []*member) string {
	return wire.BatchMark(i+1, len(members), members[i].start.Task.ID) + "\n"
}

// printedBy is what of the log an attempt of a batch has printed, as far as that is told.
func printedBy(log string, i int, members []*member) string {
	if len(members) == 1 {
		return log
	}
	_, mine, found := strings.Cut(log, mark(i, members))
	if !found {
		return ""
	}
	if i+1 < len(members) {
		mine, _, _ = strings.Cut(mine, mark(i+1, members))
	}
	return mine
}

// lostWithOthers is the ending of an attempt whose invoke ended because of another task, or nobody knows of which.
func lostWithOthers(c call, what string) slot.Ending {
	return slot.Ending{
		Outcome: predictor.Lost, Cause: predictor.CauseHostLost,
		Message: fmt.Sprintf("%s while it had %d tasks, of which this was one; it is tried again with an invoke for itself",
			what, c.part.tasks),
	}
}
