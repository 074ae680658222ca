package web

import (
	"container/list"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// feedEntries is how many changes a Feed remembers: a reader that is further behind is told the whole state again. A
// decision takes about a kilobyte, a run the 2.5 kB of its view. A reader hears ten times a second; 100 runs a second
// are 10 s of them.
const feedEntries = 1024

// Feed remembers what changed, for the readers of GET /api/v1/stream. The engine calls its methods as it folds events,
// after its answers have changed and, so that no reader is told of a change twice, before it gives another answer. They
// never block, and cost a send on a channel for each reader whom the change concerns. A Feed is safe for concurrent
// use; the zero value is ready.
//
// Changes are numbered from 1 in the order of the calls. Of a run and of the plan only the latest change is remembered,
// since the state that it leads to is all that is told of it; each decision and each alert is remembered itself. So
// whoever has been told all changes up to a number, and is told those that are remembered above it, has missed nothing
// as long as nothing above that number was forgotten.
//
// Changes become visible to all readers at the same moments, at most one in each gap of time: the view of a run is then
// encoded once for all of them, however often it changes and however many there are.
type Feed struct {
	mutex sync.Mutex
	// All below is guarded by mutex.
	epoch   string    // names this Feed: numbers of another one mean nothing here
	log     list.List // of *change by number
	head    uint64    // the number of the latest change
	visible uint64    // the number of the latest change that readers may be told
	forgot  uint64    // the highest number of a change that was forgotten for lack of room
	shown   time.Time // when visible was last moved
	// settled and pending hold, by topic, the change that is remembered up to visible and above it.
	settled, pending map[string]*list.Element
	readers          map[string]map[*reader]struct{} // by the run that they follow
}

// change is one entry of the log.
type change struct {
	number uint64
	name   string // of the message
	topic  string // what it is the state of; empty for a decision and an alert
	run    string // whom it concerns; empty when that may be every run
	id     string // of the decision or alert
	value  any    // what is told; nil for a run, whose view is read when it is told

	mutex sync.Mutex
	// the message, guarded by mutex; nil before it was encoded, empty when there is nothing to tell
	text             []byte
	app, build, team string              // of the run, guarded by mutex until text is there
	decision         *predictor.Decision // nil for all else
}

// RunChanged says that the view of run is another.
func (f *Feed) RunChanged(run string) {
	f.add(&change{name: StreamRun, topic: "run " + run, run: run})
}

// Decided says that a decision was stored.
func (f *Feed) Decided(decision predictor.Decision) {
	f.add(&change{name: StreamDecision, run: decision.Run, id: decision.ID, value: decision, decision: &decision})
}

// Planned says that plan is in force. Plans without a decision changed nothing and are not told.
func (f *Feed) Planned(plan predictor.Plan) {
	if len(plan.Decisions) > 0 {
		plan.Decisions = nil
		f.add(&change{name: StreamPlan, topic: "plan", value: plan})
	}
}

// Alerted says that an alert was raised, or holds no more.
func (f *Feed) Alerted(alert alerting.Alert) {
	f.add(&change{name: StreamAlert, run: alert.Run, id: alert.ID, value: alert})
}

func (f *Feed) add(c *change) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.prepare()
	f.head++
	c.number = f.head
	added := f.log.PushBack(c)
	if c.topic != "" {
		if earlier, found := f.pending[c.topic]; found {
			f.log.Remove(earlier)
		}
		f.pending[c.topic] = added
	}
	for f.log.Len() > feedEntries {
		f.forget()
	}
	if c.run == "" {
		for _, readers := range f.readers {
			wake(readers, c.number)
		}
		return
	}
	wake(f.readers[""], c.number)
	wake(f.readers[c.run], c.number)
}

// prepare makes the zero value ready. The caller holds the mutex.
func (f *Feed) prepare() {
	if f.epoch == "" {
		f.epoch = strings.ToLower(rand.Text()[:10])
		f.settled, f.pending = map[string]*list.Element{}, map[string]*list.Element{}
		f.readers = map[string]map[*reader]struct{}{}
	}
}

// forget removes the oldest change. The caller holds the mutex.
func (f *Feed) forget() {
	oldest := f.log.Front()
	c := f.log.Remove(oldest).(*change)
	f.forgot = c.number
	for _, remembered := range []map[string]*list.Element{f.settled, f.pending} {
		if remembered[c.topic] == oldest {
			delete(remembered, c.topic)
		}
	}
}

// show makes all changes visible. The caller holds the mutex.
func (f *Feed) show(now time.Time) {
	for topic, element := range f.pending {
		if earlier, found := f.settled[topic]; found {
			f.log.Remove(earlier)
		}
		f.settled[topic] = element
	}
	clear(f.pending)
	f.visible, f.shown = f.head, now
}

// between returns the visible changes above a number that may concern run, oldest first. The caller holds the mutex.
func (f *Feed) between(above uint64, run string) []*change {
	var found []*change
	element := f.log.Back()
	for ; element != nil && element.Value.(*change).number > above; element = element.Prev() {
		c := element.Value.(*change)
		if c.number <= f.visible && (run == "" || c.run == "" || c.run == run) {
			found = append(found, c)
		}
	}
	slices.Reverse(found)
	return found
}

// mark is the ID of a message: who has it has been told all changes up to number.
func (f *Feed) mark(number uint64) string { return f.epoch + "-" + strconv.FormatUint(number, 10) }

// errNotMark says that a text is not the ID of a message.
var errNotMark = errors.New("not the ID of a message of a stream")

// parseMark is the inverse of mark.
func parseMark(text string) (epoch string, number uint64, err error) {
	epoch, digits, found := strings.Cut(text, "-")
	number, err = strconv.ParseUint(digits, 10, 64)
	if !found || epoch == "" || err != nil {
		return "", 0, errNotMark
	}
	return epoch, number, nil
}

// superseded reports whether the run of a change has changed again.
func (f *Feed) superseded(c *change) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, remembered := range []map[string]*list.Element{f.pending, f.settled} {
		if element, found := remembered[c.topic]; found && element.Value.(*change).number > c.number {
			return true
		}
	}
	return false
}

// encode returns the message, which is made once. look reads the view of a run; when there is no such run there is
// nothing to tell.
func (c *change) encode(mark string, look func(run string) (ledger.RunView, error)) ([]byte, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.text != nil {
		return c.text, nil
	}
	value := c.value
	if value == nil {
		view, err := look(c.run)
		if answer, ok := errors.AsType[*Error](err); ok && answer.Status == http.StatusNotFound {
			c.text = []byte{}
			return c.text, nil
		}
		if err != nil {
			return nil, err
		}
		c.app, c.build, c.team, value = view.App, view.Build, view.Team, view
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", c.name, err)
	}
	c.text = fmt.Appendf(nil, "id: %s\nevent: %s\ndata: %s\n\n", mark, c.name, text)
	return c.text, nil
}
