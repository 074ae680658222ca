//go:build linux

package hostscheck_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// posted is a plan that an engine put in force, or what a host obeys of one.
type posted struct {
	key  string
	term uint64
	at   time.Time // when NATS stored it
	// decided is when it was: the first of a term may be the last of the term before.
	decided time.Time
}

// plans are all that engines put in force, in the order of NATS.
type plans struct {
	mu     sync.Mutex
	posted []posted // guarded by mu
	broken []string // what cannot be read of them; guarded by mu
}

// watchPlans takes note of all plans from now on.
func watchPlans(t *testing.T, js jetstream.JetStream) *plans {
	t.Helper()
	bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := bucket.WatchAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &plans{}
	go func() { // it ends with the context of the test
		for entry := range watcher.Updates() {
			if entry != nil && entry.Operation() == jetstream.KeyValuePut && entry.Key() != wire.TermKey {
				p.take(entry)
			}
		}
	}()
	return p
}

func (p *plans) take(entry jetstream.KeyValueEntry) {
	var value struct {
		Plan predictor.Plan `json:"plan"`
	}
	err := json.Unmarshal(entry.Value(), &value)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.broken = append(p.broken, fmt.Sprintf("%s at revision %d: %v", entry.Key(), entry.Revision(), err))
		return
	}
	p.posted = append(p.posted, posted{entry.Key(), value.Plan.Term, entry.Created(), value.Plan.At})
}

// wantTerms looks that nothing of a term was put in force after something of a later one.
func (p *plans) wantTerms(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.broken {
		t.Error(one)
	}
	var last posted
	terms := map[uint64]bool{}
	for _, one := range p.posted {
		if one.term < last.term {
			t.Errorf("%s of term %d was put in force at %s, after %s of term %d at %s", one.key, one.term, one.at, last.key,
				last.term, last.at)
		} else {
			last = one
		}
		terms[one.term] = true
	}
	t.Logf("%d plans and parts of them were put in force, in %d terms", len(p.posted), len(terms))
	if len(terms) == 0 {
		t.Error("no plan was seen")
	}
}

// around returns the last plan of the term that was in force at a moment, and the first that was decided in a later
// one; a zero time where there is none.
func (p *plans) around(moment time.Time) (last, first posted) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.posted {
		switch {
		case one.key != wire.PlanKey:
		case one.at.Before(moment) || one.term == last.term:
			last = one
		case first.at.IsZero() && one.decided.After(last.decided):
			first = one
		}
	}
	return last, first
}

// wantSucceeded looks that the term that was in force when its leader was struck was followed by another, and that none
// of its decisions was made afterwards. It returns what is to be told of that.
func (p *plans) wantSucceeded(tb testing.TB, js jetstream.JetStream, struck time.Time) string {
	tb.Helper()
	last, first := p.around(struck)
	if first.at.IsZero() {
		tb.Errorf("no plan of another term than %d came after the engine was killed that led", last.term)
		return ""
	}
	for _, message := range told(tb, js, wire.KindDecision) {
		made := *message.Decision
		number, _, _ := strings.Cut(made.ID, ".")
		term, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			tb.Errorf("decision %q tells no term: %v", made.ID, err)
		}
		if term < first.term && made.At.After(first.at) {
			tb.Errorf("decision %s was made at %s, when term %d had begun at %s", made.ID, made.At, first.term, first.at)
		}
	}
	return fmt.Sprintf("the last plan of term %d came %s before the engine was killed that led, and the first of term %d "+
		"%s after it: %s without decisions", last.term, tenths(struck.Sub(last.at)), first.term,
		tenths(first.at.Sub(struck)), tenths(first.at.Sub(last.at)))
}
