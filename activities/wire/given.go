package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ProofHeader is the header, in NATS and in HTTP, with which a host shows that it was given the attempt of which it
// tells: a Given as the engine has sealed it for the host.
const ProofHeader = "Spillway-Proof"

// GivenLasts is for how long a host may tell of an attempt from when it was given: an attempt lasts 30 days at most,
// and the loop keeps what is told for 14.
const GivenLasts = 60 * 24 * time.Hour

const (
	// GivenGap is how far the times that a host tells may be outside of those that the engine knows. A host joins with a
	// clock that is right within seconds; one that goes wrong later must not make its attempts worthless.
	GivenGap = time.Hour
	// MostHostPrice is what a host may say at most that it costs per hour: several times the dearest machine with eight
	// GPUs that clouds rent.
	MostHostPrice = 1000 * quantity.USD
)

// Given is an attempt as the engine has given it to a host, which may tell of it and of no other.
type Given struct {
	Run      string            `json:"r"`
	Stage    predictor.StageID `json:"s"`
	Task     string            `json:"t"`
	Attempt  int               `json:"a"`
	PoolOnly bool              `json:"p,omitempty"`
	// At is when it was given, by the engine's clock.
	At time.Time `json:"at"`
	// Key names the result of the task, where its input is part of the task. Where the input is an artifact, that is
	// Input, and its result follows from it, Command and CacheVersion.
	Key          ResultKey `json:"k,omitzero"`
	Input        string    `json:"i,omitempty"`
	Command      bool      `json:"c,omitempty"`
	CacheVersion string    `json:"v,omitempty"`
	// Members are the other hosts of its gang and what each costs per hour, where it runs on several; Member says that
	// the host is one of those, which tells what it prints and no Record.
	Members []predictor.HostShare `json:"h,omitempty"`
	Member  bool                  `json:"m,omitempty"`
	// Others is what they cost together where an earlier engine has proved it, which named none.
	Others quantity.Money `json:"o,omitempty"`
}

// Encode is the text of it that the engine seals.
func (g Given) Encode() []byte {
	text, _ := json.Marshal(g) // of such it never fails
	return text
}

// DecodeGiven is the reverse of Encode.
func DecodeGiven(text []byte) (g Given, err error) {
	if err := json.Unmarshal(text, &g); err != nil {
		return Given{}, fmt.Errorf("decode what a host was given: %w", err)
	}
	return g, nil
}

// Opener returns what reads the proofs of hosts: open returns the text of one that the engine has made for a host, as
// access.Keys.OpenGiven does. Genuine is false where it has not.
func Opener(open func(host, proof string) (text []byte, genuine bool)) func(host, proof string) (Given, bool) {
	return func(host, proof string) (given Given, genuine bool) {
		text, genuine := open(host, proof)
		if !genuine {
			return Given{}, false
		}
		given, err := DecodeGiven(text)
		return given, err == nil
	}
}

// Whole says why the host may not speak for the attempt: it runs a part of it. Nil where it may.
func (g Given) Whole() error {
	if g.Member {
		return errMember
	}
	return nil
}

// Expired says why it counts no more at now; nil while it does.
func (g Given) Expired(now time.Time) error {
	if now.Sub(g.At) > GivenLasts {
		return fmt.Errorf("the attempt was given to the host at %s: after %d days nothing is told of it any more",
			g.At.UTC().Format(time.DateTime), int(GivenLasts/(24*time.Hour)))
	}
	return nil
}

// proofMark begins the token of a task that brings a proof. No seal begins so but by a chance of one in 2^64.
var proofMark = []byte("spillway")

// WithProof returns the token of a task with the proof that it was given before it.
func WithProof(proof string, token []byte) []byte {
	text := binary.AppendUvarint(bytes.Clone(proofMark), uint64(len(proof)))
	return append(append(text, proof...), token...)
}

// SplitProof is the reverse of WithProof; the proof is empty where the token brings none, as that of an earlier engine.
func SplitProof(with []byte) (proof string, token []byte) {
	text, is := bytes.CutPrefix(with, proofMark)
	if !is {
		return "", with
	}
	size, n := binary.Uvarint(text)
	if n <= 0 || size > uint64(len(text)-n) {
		return "", with
	}
	text = text[n:]
	return string(text[:size]), text[size:]
}

// errMember says that a host has nothing to tell of an attempt of which it runs a part, but what that prints.
var errMember = errors.New("the host runs a part of the attempt, and the first host of its gang tells of it")

// errOther says that a message is of another attempt.
func (g Given) errOther(run, task string, attempt int) error {
	return fmt.Errorf("it is of attempt %d of task %.80q of run %.80q, and the host was given attempt %d of %q of %q",
		attempt, task, run, g.Attempt, g.Task, g.Run)
}

// is says why an attempt is not the one that was given.
func (g Given) is(run string, stage predictor.StageID, task string, attempt int) error {
	if run != g.Run || task != g.Task || attempt != g.Attempt {
		return g.errOther(run, task, attempt)
	}
	if stage != g.Stage {
		return fmt.Errorf("it is of stage %.200q, and the task that the host was given of %q", stage.String(),
			g.Stage.String())
	}
	return nil
}

// givenSlack is what an attempt may have gone on for beyond the time since it was given: one that was lost is taken to
// have gone on until the heartbeat after its last.
const givenSlack = time.Minute

// lasted is how long the attempt can have gone on by now.
func (g Given) lasted(now time.Time) time.Duration { return max(now.Sub(g.At), 0) + givenSlack }

// within says why an attempt that was given cannot have taken so long.
func (g Given) within(what string, took time.Duration, now time.Time) error {
	if most := g.lasted(now); took < 0 || took > most {
		return fmt.Errorf("%s took %s, and the attempt was given %s ago", what, took, most.Round(time.Second))
	}
	return nil
}

// checkTime says why something cannot have been at a time that a host tells: it has yet to come.
func checkTime(at, now time.Time) error {
	if at.Sub(now) > GivenGap {
		return fmt.Errorf("it says that it was at %s, which has yet to come: set the host's clock (timedatectl)",
			at.UTC().Format(time.DateTime))
	}
	return nil
}

// CheckRecord says why a host may not tell a Record, of an attempt that it was given, at now; nil where it may.
// PricePerHour is what the host has said that all of it costs, 0 where it has said nothing: no attempt costs more than
// all of its host for as long as it can have gone on.
func (g Given) CheckRecord(record predictor.Record, pricePerHour quantity.Money, now time.Time) error {
	if err := g.is(record.Run, record.Stage, record.Task, record.Attempt); err != nil {
		return err
	}
	if g.Member {
		return errMember
	}
	if record.PoolOnly != g.PoolOnly {
		return errors.New("it is of another queue than the attempt that the host was given")
	}
	if g.At.Sub(record.At) > GivenGap {
		return fmt.Errorf("it says that the attempt ended at %s, before it was given: set the host's clock (timedatectl)",
			record.At.UTC().Format(time.DateTime))
	}
	err := errors.Join(g.Expired(now), checkTime(record.At, now), g.within("its start", record.Start, now),
		g.within("its work", record.Usage.Wall, now), g.within("its end", record.Settle, now))
	if err != nil {
		return err
	}
	if pricePerHour <= 0 || pricePerHour > MostHostPrice {
		pricePerHour = MostHostPrice
	}
	pricePerHour += min(g.others(), gang.MostHosts*MostHostPrice)
	lasted := g.lasted(now)
	most := pricePerHour.Prorated(quantity.Fraction{Of: int64(lasted), In: int64(time.Hour)})
	if record.Cost < 0 || record.Cost > most {
		return fmt.Errorf("it says that the attempt cost %s, and all of the host costs %s in the %s since it was given",
			record.Cost, most, lasted.Round(time.Second))
	}
	return g.checkMembers(record, lasted)
}

// checkStarted says why a host may not tell at now that an attempt has begun which it was given.
func (g Given) checkStarted(started predictor.AttemptStarted, now time.Time) error {
	err := errors.Join(g.is(started.Run, started.Stage, started.Task, started.Attempt), checkTime(started.At, now),
		checkMemberNames(started.Members))
	if err != nil {
		return err
	}
	left := g.others()
	for _, one := range started.Members {
		most, is := g.perHour(one.Host)
		switch {
		case !is:
			return g.errNoMember(one.Host)
		case one.PerHour < 0 || one.PerHour > min(most, left):
			return fmt.Errorf("it says that host %.80q costs %s per hour, and the attempt was given with %s for it", one.Host,
				one.PerHour, min(most, left))
		}
		left -= one.PerHour
	}
	return nil
}

// others is what the other hosts of the gang cost per hour.
func (g Given) others() (perHour quantity.Money) {
	if len(g.Members) == 0 {
		return max(g.Others, 0)
	}
	for _, one := range g.Members {
		perHour = perHour.Plus(max(one.PerHour, 0))
	}
	return perHour
}

// perHour is what another host costs at most for an hour, and whether it may be one of the gang's: of one that an
// earlier engine has formed only the sum is known.
func (g Given) perHour(host string) (most quantity.Money, is bool) {
	if len(g.Members) == 0 {
		return max(g.Others, 0), true
	}
	for _, one := range g.Members {
		if one.Host == host {
			return max(one.PerHour, 0), true
		}
	}
	return 0, false
}

// errNoMember says that a host is none of its gang.
func (g Given) errNoMember(host string) error {
	return fmt.Errorf("it says that host %.80q runs the attempt, and it is none of the %d others that it was given with",
		host, len(g.Members))
}

// checkMemberNames says why these cannot be the other hosts of a gang, whatever they cost.
func checkMemberNames(members []predictor.HostShare) error {
	if len(members) >= gang.MostHosts {
		return fmt.Errorf("it says that %d other hosts run the attempt, and a gang has %d at most", len(members),
			gang.MostHosts)
	}
	for _, one := range members {
		if err := CheckText(one.Host, MaxName); err != nil {
			return fmt.Errorf("the name %.40q of a host of its gang: %w", one.Host, err)
		}
	}
	return nil
}

// checkMembers says why the parts of an attempt's cost cannot be those of the other hosts of its gang, which have held
// their room for lasted at most.
func (g Given) checkMembers(record predictor.Record, lasted time.Duration) error {
	if err := checkMemberNames(record.Members); err != nil {
		return err
	}
	left := record.Cost
	for _, one := range record.Members {
		perHour, is := g.perHour(one.Host)
		most := perHour.Prorated(quantity.Fraction{Of: int64(lasted), In: int64(time.Hour)})
		switch {
		case !is:
			return g.errNoMember(one.Host)
		case one.Cost < 0 || one.Cost > left:
			return fmt.Errorf("it says that its hosts cost more than the %s of the attempt", record.Cost)
		case one.Cost > most:
			return fmt.Errorf("it says that host %.80q cost %s, and it costs %s in the %s since the attempt was given",
				one.Host, one.Cost, most, lasted.Round(time.Second))
		}
		if one.Held < 0 || one.Held > lasted {
			return fmt.Errorf("it says that host %.80q held its part for %s, and the attempt was given %s ago", one.Host,
				one.Held, lasted.Round(time.Second))
		}
		left -= one.Cost
	}
	return nil
}

// CheckKept says why a host may not have a result kept, of a task that it was given, at now; nil where it may. Key
// names the result of the task: Given.Key, or what follows from Given.Input.
func (g Given) CheckKept(kept Kept, key ResultKey, now time.Time) error {
	if g.Member {
		return errMember
	}
	if kept.Run != g.Run || kept.Task != g.Task || kept.Stage != g.Stage.Name {
		return g.errOther(kept.Run, kept.Task, g.Attempt)
	}
	if kept.Key != key || key == (ResultKey{}) {
		return errors.New("the result is of another input, or of other code, than the task that the host was given")
	}
	if kept.Stored.Digest != "" {
		return errors.New("a host sends the output itself, and no address of it")
	}
	return errors.Join(g.Expired(now), checkTime(kept.At, now), g.within("its work", kept.Wall, now))
}
