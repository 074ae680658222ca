package natsaccess

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// kind is what all tenants of one kind have in common.
type kind struct {
	name           string // "build" or "host": begins the names of accounts and consumers
	subjects       []string
	streams        []string // in which they may have consumers
	serial         bool     // their consumers have names that nobody guesses, and that end as the client's do
	maxConsumers   int      // each in a stream
	maxConnections int      // each
	maxMessage     int      // in bytes
	bytesPerSecond rate.Limit
	bytesAtOnce    int
}

// builds are users' builds: what is told of a run, and a result that is kept in the message itself, take less than half
// of the largest message. A worker has one connection, and one that it has lost may linger beside the next.
var builds = &kind{
	name: "build", subjects: wire.AnyBuildSubjects(), streams: []string{wire.LoopStream, wire.DoneStream},
	maxConsumers: maxConsumers, maxConnections: 4, maxMessage: 256 << 10,
	bytesPerSecond: bytesPerSecond, bytesAtOnce: bytesAtOnce,
}

// hosts are those that have joined: the largest message has lines that attempts have printed. They read the plan with
// NATS's ordered consumers, which go by a number at the end of a name that grows: so a host may fetch from any consumer
// of the stream whose name it knows, and nobody but its host is told the name of one.
var hosts = &kind{
	name: "host", subjects: wire.AnyHostSubjects(), streams: []string{wire.PlanStream}, serial: true,
	maxConsumers: hostConsumers, maxConnections: 8, maxMessage: 1 << 20,
	bytesPerSecond: hostBytesPerSecond, bytesAtOnce: hostBytesAtOnce,
}

// codeMessageTooLarge is the server's JSStreamMessageExceedsMaximumErr:
// https://github.com/nats-io/nats-server/blob/main/server/errors.json
const codeMessageTooLarge = 10054

var errTooFast = &refusedError{
	code: 429, reason: wire.TooFast + ": wait, and send it again",
}

func (k *kind) tooLarge(size int) error {
	return &refusedError{code: 413, number: codeMessageTooLarge, reason: fmt.Sprintf(
		"the message has %d bytes, and that of a %s at most %d: send less", size, k.name, k.maxMessage)}
}

// rules say what goes on of what a tenant sends, whatever it has sent before.
type rules struct {
	check   func(subject string, header nats.Header, data []byte) error // why it may not be told
	header  func(subject, name string) bool                             // whether it goes on
	own     func(consumer) bool
	genuine func(subject string, header nats.Header, data []byte) bool // nil where every result is
}

// buildRules are those of a build of app.
func buildRules(app wire.App, genuine func(string, nats.Header, []byte) bool) rules {
	return rules{
		check: func(subject string, header nats.Header, data []byte) error {
			return wire.CheckTold(app, subject, header.Get(wire.MessageIDHeader), data)
		},
		header:  func(_, name string) bool { return wire.IsBuildHeader(name) },
		genuine: genuine,
	}
}

// hostRules are those of a host. Given says of which attempt a proof is; nil takes what it tells of attempts for its
// own.
func hostRules(host string, given func(host, proof string) (wire.Given, bool)) rules {
	var perHour atomic.Int64 // the most that it has said that it costs, on any of its connections
	return rules{
		check: func(subject string, header nats.Header, data []byte) error {
			id := header.Get(wire.MessageIDHeader)
			if given == nil {
				return wire.CheckHostTold(host, subject, id, data, nil)
			}
			known := perHour.Load()
			shown := &wire.Shown{PricePerHour: quantity.Money(known), Now: time.Now()}
			if proof := header.Get(wire.ProofHeader); proof != "" {
				attempt, genuine := given(host, proof)
				if !genuine {
					return fmt.Errorf("what it shows is no proof that host %s was given the attempt", host)
				}
				shown.Given = &attempt
			}
			if err := wire.CheckHostTold(host, subject, id, data, shown); err != nil {
				return err
			}
			for most := int64(shown.PricePerHour); most > known && !perHour.CompareAndSwap(known, most); {
				known = perHour.Load()
			}
			return nil
		},
		header: wire.IsHostHeader,
	}
}

// pass returns a request as it goes on to subject, or an error that says why it does not.
func (r rules) pass(subject string, header nats.Header, data []byte) (*nats.Msg, error) {
	if strings.HasPrefix(subject, api) { // a question that has no more to say than its subject
		if c, is := consumerOf(subject); is && !r.own(c) {
			return nil, fmt.Errorf("the consumer %s of %s is not its own", c.name, c.stream)
		}
		return &nats.Msg{Subject: subject}, nil
	}
	passed := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: data}
	for name, values := range header {
		// By others of its own, NATS is asked for more than to keep a message: to trace it, to schedule another, to delete
		// what is there.
		if r.header(subject, name) {
			passed.Header[name] = values
		}
	}
	if err := r.check(subject, header, data); err != nil {
		return nil, err
	}
	if wire.IsResultSubject(subject) && r.genuine != nil && !r.genuine(subject, header, data) {
		return nil, errors.New("the result is none that the engine has signed")
	}
	return passed, nil
}
