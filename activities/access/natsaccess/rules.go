package natsaccess

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
)

// maxMessage is the largest message of a build, in bytes: what is told of a run, and a result that is kept in the
// message itself, take less than half of it.
const maxMessage = 256 << 10

// codeMessageTooLarge is the server's JSStreamMessageExceedsMaximumErr:
// https://github.com/nats-io/nats-server/blob/main/server/errors.json
const codeMessageTooLarge = 10054

var errTooFast = &refusedError{
	code: 429, reason: wire.TooFast + ": wait, and send it again",
}

func tooLarge(size int) error {
	return &refusedError{code: 413, number: codeMessageTooLarge, reason: fmt.Sprintf(
		"the message has %d bytes, and a build's has at most %d: send less", size, maxMessage)}
}

// rules say what goes on of what a build sends, whatever it has sent before.
type rules struct {
	app     wire.App
	own     func(consumer) bool
	genuine func(subject string, header nats.Header, data []byte) bool // nil where every result is
}

// pass returns a request as it goes on to subject, or an error that says why it does not.
func (r rules) pass(subject string, header nats.Header, data []byte) (*nats.Msg, error) {
	if strings.HasPrefix(subject, api) { // a question that has no more to say than its subject
		if c, is := consumerOf(subject); is && !r.own(c) {
			return nil, fmt.Errorf("the consumer %s of %s is none of the build's", c.name, c.stream)
		}
		return &nats.Msg{Subject: subject}, nil
	}
	passed := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: data}
	for name, values := range header {
		// By others of its own, NATS is asked for more than to keep a message: to trace it, to schedule another, to delete
		// what is there.
		if wire.IsBuildHeader(name) {
			passed.Header[name] = values
		}
	}
	if err := wire.CheckTold(r.app, subject, header.Get(wire.MessageIDHeader), data); err != nil {
		return nil, err
	}
	if wire.IsResultSubject(subject) && r.genuine != nil && !r.genuine(subject, header, data) {
		return nil, errors.New("the result is none that the engine has signed")
	}
	return passed, nil
}
