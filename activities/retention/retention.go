package retention

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// UsualKeepFor is how long what an ended run reaches stays by default; it is also how long Temporal keeps a history.
	UsualKeepFor = 30 * 24 * time.Hour
	// UsualKeepLeast is how long what an ended run reaches stays by default whatever room there is: one run that takes all
	// of it does not cost the results of the others of that day.
	UsualKeepLeast = 24 * time.Hour
	// UsualGrace is how long what nobody names yet stays by default. Between the first file of a checkpoint and the word
	// of the whole of it lies a write to the disk.
	UsualGrace = time.Hour
	// usualShare is the part of a file system that artifacts may take by default, in percent: images, caches and the
	// databases of the engine are there as well.
	usualShare = 60
)

// Policy says for how long and within how much room what is no longer in use stays.
type Policy struct {
	// KeepFor is how long what an ended run reaches stays; more than 0, and at most UsualKeepFor: what a run reaches is
	// in its history, which Temporal keeps that long.
	KeepFor time.Duration `json:"keep_for_ns"`
	// KeepBytes is what all artifacts may take together before ended runs, the oldest first, give back what only they
	// reach; more than 0.
	KeepBytes quantity.Bytes `json:"keep_bytes"`
	// KeepLeast is for how long an ended run gives back nothing, however much all artifacts take; 0 or more, and at most
	// KeepFor.
	KeepLeast time.Duration `json:"keep_least_ns"`
	// Grace is how long what nobody names stays after it was written; 0 or more.
	Grace time.Duration `json:"grace_ns"`
}

// Usual is the policy of an engine whose artifacts lie in a file system of this size.
func Usual(fileSystem quantity.Bytes) Policy {
	share := fileSystem/100*usualShare + fileSystem%100*usualShare/100
	return Policy{KeepFor: UsualKeepFor, KeepBytes: max(share, 1), KeepLeast: UsualKeepLeast, Grace: UsualGrace}
}

// Validate says what is wrong with a policy, and what to do.
func (p Policy) Validate() error {
	switch {
	case p.KeepFor <= 0:
		return fmt.Errorf("artifacts of ended runs cannot be kept for %s; give more than 0, at most %s", p.KeepFor,
			UsualKeepFor)
	case p.KeepFor > UsualKeepFor:
		return fmt.Errorf("artifacts of ended runs cannot be kept for %s, since histories are kept for %s; give at most that",
			p.KeepFor, UsualKeepFor)
	case p.KeepBytes <= 0:
		return fmt.Errorf("artifacts cannot be kept in %d bytes; give more than 0", int64(p.KeepBytes))
	case p.KeepLeast < 0 || p.KeepLeast > p.KeepFor:
		return fmt.Errorf("artifacts of ended runs cannot be kept for at least %s; give 0 or more, at most %s",
			p.KeepLeast, p.KeepFor)
	case p.Grace < 0:
		return fmt.Errorf("what was just written cannot stay for %s; give 0 or more", p.Grace)
	default:
		return nil
	}
}

// Artifact is one artifact that is stored.
type Artifact struct {
	Digest Digest
	Bytes  quantity.Bytes
	// Written is when it was last put, or asked for from outside.
	Written time.Time
	// Again says that it was put, or asked for, more than once, or that nobody knows: more than one may be about to name
	// it.
	Again bool
	// Names are the digests in its text.
	Names []Digest
}

// Holder names artifacts that stay as long as it does.
type Holder struct {
	// Name says who it is: "run digits-7f3a9c". It is in reasons.
	Name string
	// Ended is since when nothing happens to it any more. The zero time is that of one that goes on: it holds what it
	// names whatever the policy says.
	Ended time.Time
	// Given says that it gave back before what only it held: it holds nothing any more, also not what is still there.
	Given bool
	// Names are the digests that it names.
	Names []Digest
	// Guessed says that nobody knows what it names: Names are all that it may have.
	Guessed bool
}

// Stock is all that there is at one time.
type Stock struct {
	At        time.Time
	Artifacts []Artifact
	Holders   []Holder
	// Settled is when the Grace began: what was written by then was written at least so long ago, whatever was done to
	// the clock. The zero time is that At less the Grace.
	Settled time.Time
	// Busy is when the oldest attempt that goes on began: until its end it may name what it wrote since, but not what
	// somebody else wrote, whose run has ended. The zero time says that none goes on.
	Busy time.Time
	// Superseded are checkpoints that newer ones have replaced, and what was stored for them alone, with when each was
	// told. What was put, or asked for, more than once or later than that is somebody else's as well.
	Superseded map[Digest]time.Time
}

// Decision is what goes, and what that comes to.
type Decision struct {
	// Remove is what goes, each before what it names: whatever part of it is removed, all that is left is whole.
	Remove []Removal `json:"remove"`
	// Give are the holders that give something back, by their position in Stock.Holders, the one that ended first first.
	Give []Giving `json:"-"`
	// Freed is the sum of what goes, Kept that of what stays.
	Freed Sum `json:"freed"`
	Kept  Sum `json:"kept"`
	// Over is by how much what stays exceeds KeepBytes: runs that go on and what was just written hold it. 0 if not.
	Over quantity.Bytes `json:"over_bytes,omitempty"`
}

// Removal is one artifact that goes.
type Removal struct {
	Digest Digest         `json:"digest"`
	Bytes  quantity.Bytes `json:"bytes"`
	// Reason says why, in a few words.
	Reason string `json:"reason"`
	// Written is that of the artifact: what was written since is not what was decided about.
	Written time.Time `json:"written"`
}

// Giving is a holder that gives something back.
type Giving struct {
	Holder int
	Reason string
}

// Sum is how many artifacts there are and what they take.
type Sum struct {
	Artifacts int            `json:"artifacts"`
	Bytes     quantity.Bytes `json:"bytes"`
}

func (s *Sum) add(a Artifact) {
	s.Artifacts++
	s.Bytes += a.Bytes
}

// The reasons why something goes that no holder has given back.
const (
	Superseded = "a newer checkpoint has taken its place"
	Unreached  = "nothing reaches it"
)

// Decide says what goes. It never removes what a holder that goes on reaches, whatever else is said of it.
func Decide(policy Policy, stock Stock) Decision {
	d := decider{policy: policy, stock: stock, index: make(map[Digest]int, len(stock.Artifacts))}
	for i, artifact := range stock.Artifacts {
		d.index[artifact.Digest] = i
	}
	d.holds = make([]int, len(stock.Artifacts))
	d.known = make([]bool, len(stock.Artifacts))
	d.mark = make([]int, len(stock.Artifacts))
	d.reasons = make([]string, len(stock.Artifacts))
	d.hold()
	d.giveByAge()
	d.giveByBytes()
	return d.decision()
}

// decider counts, for each artifact, by how many it is held.
type decider struct {
	policy Policy
	stock  Stock
	index  map[Digest]int

	holds   []int  // by artifact: how many holders reach it, the grace of what was just written among them
	known   []bool // by artifact: a holder that has ended reaches it, whether it has given back or not
	mark    []int  // by artifact: the last walk that came by
	walks   int
	held    quantity.Bytes // of all artifacts that are held
	ended   []int          // the holders that may give back, the one that ended first first
	giving  []Giving
	reasons []string // by artifact: why the last of its holders gave it back
}

// walk visits, once each, the artifacts that can be reached from those names.
func (d *decider) walk(names []Digest, visit func(artifact int)) {
	d.walks++
	next := slices.Clone(names)
	for len(next) > 0 {
		name := next[len(next)-1]
		next = next[:len(next)-1]
		i, there := d.index[name]
		if !there || d.mark[i] == d.walks {
			continue
		}
		d.mark[i] = d.walks
		visit(i)
		next = append(next, d.stock.Artifacts[i].Names...)
	}
}

// take adds a hold to all that those names reach.
func (d *decider) take(names []Digest) {
	d.walk(names, func(i int) {
		if d.holds[i]++; d.holds[i] == 1 {
			d.held += d.stock.Artifacts[i].Bytes
		}
	})
}

// hold takes what every holder holds before any gives back.
func (d *decider) hold() {
	for i, holder := range d.stock.Holders {
		if !holder.Ended.IsZero() && !holder.Guessed {
			d.walk(holder.Names, func(artifact int) { d.known[artifact] = true })
		}
		if holder.Given || len(holder.Names) == 0 {
			continue
		}
		d.take(holder.Names)
		if !holder.Ended.IsZero() {
			d.ended = append(d.ended, i)
		}
	}
	slices.SortStableFunc(d.ended, func(a, b int) int {
		return d.stock.Holders[a].Ended.Compare(d.stock.Holders[b].Ended)
	})
	var young []Digest
	for i, artifact := range d.stock.Artifacts {
		if d.isYoung(artifact, d.known[i]) {
			young = append(young, artifact.Digest)
		}
	}
	d.take(young)
}

// isYoung reports whether somebody may be about to name the artifact. Known says that one who has ended names it:
// whoever else is about to has put it as well, or asked for it.
func (d *decider) isYoung(artifact Artifact, known bool) bool {
	if until, is := d.stock.Superseded[artifact.Digest]; is && !artifact.Again && !artifact.Written.After(until) {
		return false
	}
	busy := !d.stock.Busy.IsZero() && !artifact.Written.Before(d.stock.Busy) && (artifact.Again || !known)
	settled := d.stock.Settled
	if settled.IsZero() {
		settled = d.stock.At.Add(-d.policy.Grace)
	}
	return busy || artifact.Written.After(settled)
}

// give has the first of the ended holders give back what it holds.
func (d *decider) give(reason string) {
	first := d.ended[0]
	d.ended = d.ended[1:]
	lost := false
	d.walk(d.stock.Holders[first].Names, func(i int) {
		if d.holds[i]--; d.holds[i] == 0 {
			d.held -= d.stock.Artifacts[i].Bytes
		}
		d.reasons[i] = reason
		lost = true
	})
	if lost {
		d.giving = append(d.giving, Giving{first, reason})
	}
}

// giveByAge has those give back that ended too long ago.
func (d *decider) giveByAge() {
	for len(d.ended) > 0 {
		holder := d.stock.Holders[d.ended[0]]
		age := d.stock.At.Sub(holder.Ended)
		if age <= d.policy.KeepFor {
			return
		}
		d.give(fmt.Sprintf("%s ended %s ago", holder.Name, ago(age)))
	}
}

// giveByBytes has the oldest give back until the rest fits, but for those that ended of late.
func (d *decider) giveByBytes() {
	for len(d.ended) > 0 && d.held > d.policy.KeepBytes {
		holder := d.stock.Holders[d.ended[0]]
		age := d.stock.At.Sub(holder.Ended)
		if max(0, age) < d.policy.KeepLeast { // it may have ended by a clock that is ahead
			return
		}
		d.give(fmt.Sprintf("artifacts take more than %s, and %s, which ended %s ago, is the oldest",
			d.policy.KeepBytes, holder.Name, ago(age)))
	}
}

// decision is what all that comes to.
func (d *decider) decision() Decision {
	var decided Decision
	for i, artifact := range d.stock.Artifacts {
		if d.holds[i] > 0 {
			decided.Kept.add(artifact)
			continue
		}
		decided.Freed.add(artifact)
		_, superseded := d.stock.Superseded[artifact.Digest]
		if superseded {
			d.reasons[i] = cmp.Or(d.reasons[i], Superseded)
		}
	}
	decided.Remove = d.removals()
	for _, giving := range d.giving {
		lost := false
		d.walk(d.stock.Holders[giving.Holder].Names, func(i int) { lost = lost || d.holds[i] == 0 })
		if lost { // what loses nothing has given nothing back
			decided.Give = append(decided.Give, giving)
		}
	}
	decided.Over = max(decided.Kept.Bytes-d.policy.KeepBytes, 0)
	return decided
}

// removals lists what nobody holds, each before what it names.
func (d *decider) removals() (removals []Removal) {
	d.walks++
	var visit func(i int)
	visit = func(i int) {
		if d.mark[i] == d.walks || d.holds[i] > 0 {
			return
		}
		d.mark[i] = d.walks
		artifact := d.stock.Artifacts[i]
		for _, name := range artifact.Names {
			if named, there := d.index[name]; there {
				visit(named)
			}
		}
		reason := cmp.Or(d.reasons[i], Unreached)
		removals = append(removals, Removal{artifact.Digest, artifact.Bytes, reason, artifact.Written})
	}
	for i := range d.stock.Artifacts {
		visit(i)
	}
	slices.Reverse(removals)
	return removals
}

// ago writes how long ago something was, in its largest unit.
func ago(age time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct {
		span time.Duration
		name string
	}{{day, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		switch count := age / unit.span; {
		case count == 1:
			return "1 " + unit.name
		case count > 1:
			return fmt.Sprintf("%d %ss", count, unit.name)
		}
	}
	return "less than a minute"
}
