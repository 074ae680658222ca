package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Message is one message of a stream. Exactly one of the fields is set.
type Message struct {
	Run      *ledger.RunView
	Decision *predictor.Decision
	Plan     *predictor.Plan
	Alert    *alerting.Alert
	// Away says that the engine does not answer, and is tried again. The next message says that it does.
	Away bool
}

// ErrStop makes Follow return nil when the function that it calls returns it.
var ErrStop = errors.New("stop following")

// pace is how patient Follow is.
type pace struct {
	// silence is how long a stream may be silent, heartbeats included, before it is taken for dead.
	silence time.Duration
	// patience is how long the engine may be unreachable before Follow gives up.
	patience time.Duration
	// first and most bound the wait between two tries to connect.
	first, most time.Duration
}

func usualPace() pace {
	return pace{
		silence: 40 * time.Second, patience: 30 * time.Second, first: 100 * time.Millisecond,
		most: 2 * time.Second,
	}
}

// Follow calls told with each message about run, or about all runs when run is empty, until ctx ends or told returns an
// error. It returns that error, or nil for [ErrStop]. When the connection breaks it connects again and goes on after
// the last message; where the engine no longer knows what came after it, because it was started anew or the break was
// long, it tells the state anew, and a decision or alert about the followed run is still not told twice. It gives up
// after half a minute without an engine.
func (c *Client) Follow(ctx context.Context, run string, told func(Message) error) error {
	seen := map[string]struct{}{}
	once := func(message Message) error {
		if id := message.id(); id != "" && run != "" {
			if _, already := seen[id]; already {
				return nil
			}
			seen[id] = struct{}{}
		}
		if err := told(message); err != nil {
			return &callerError{err}
		}
		return nil
	}
	var after string
	isAway := false
	return c.persist(ctx, func() (heard bool, err error) {
		heard, err = c.stream(ctx, run, &after, once)
		if heard { // a stream that breaks off is taken up again at once, which is worth no word
			isAway = false
			return heard, err
		}
		if errors.Is(err, ErrUnreachable) && !isAway && ctx.Err() == nil {
			isAway = true
			if err := once(Message{Away: true}); err != nil {
				return heard, err
			}
		}
		return heard, err
	})
}

// id is what makes a message the same as another one; empty for the state of something.
func (m Message) id() string {
	switch {
	case m.Decision != nil:
		return "decision " + m.Decision.ID
	case m.Alert != nil:
		return "alert " + m.Alert.ID
	}
	return ""
}

// persist calls read until it returns nil, the caller's function fails, ctx ends, or the engine refuses or is gone for
// long.
func (c *Client) persist(ctx context.Context, read func() (heard bool, err error)) error {
	alive := time.Now()
	for pause := c.follow.first; ; pause = min(pause*2, c.follow.most) {
		heard, err := read()
		if err == nil {
			return nil
		}
		if handled, ok := errors.AsType[*callerError](err); ok {
			if errors.Is(handled.err, ErrStop) {
				return nil
			}
			return handled.err
		}
		if heard {
			alive, pause = time.Now(), c.follow.first
		}
		refused, isRefusal := errors.AsType[*web.Error](err)
		if isRefusal && refused.RetryAfter > 0 {
			alive = time.Now() // it is starting, however long that takes
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case isRefusal && refused.Status < http.StatusInternalServerError:
			return err
		case time.Since(alive) > c.follow.patience:
			return fmt.Errorf("follow the engine: %w", err)
		}
		if !wait.For(ctx, pause) {
			return ctx.Err()
		}
	}
}

// callerError marks an error as one of the caller's function.
type callerError struct{ err error }

func (t *callerError) Error() string { return t.err.Error() }

// stream reads one connection until it breaks; heard is true when anything came. It begins after the message that after
// names, and keeps there which was the last.
func (c *Client) stream(
	ctx context.Context, run string, after *string, told func(Message) error,
) (heard bool, err error) {
	values := url.Values{}
	set(values, "run", run)
	set(values, "after", *after)
	return c.events(ctx, "/api/v1/stream?"+values.Encode(), after, func(kind string, data []byte) error {
		message, err := decode(kind, data)
		if err != nil || message == (Message{}) { // a kind that this client does not know yet
			return err
		}
		return told(message)
	})
}

// events reads the messages of one connection until it breaks or told returns an error; heard is true when anything
// came. Each ID goes to after once its message was told, that is with the line that ends it; after may be nil.
func (c *Client) events(
	ctx context.Context, path string, after *string, told func(kind string, data []byte) error,
) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(c.follow.silence, cancel)
	defer silence.Stop()
	if err := c.relocate(); err != nil {
		return false, err
	}
	response, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = response.Body.Close() }() // the connection is given up either way
	lines := bufio.NewReader(response.Body)
	var event message
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return heard, fmt.Errorf("%w: the stream ended: %w", ErrUnreachable, err)
		}
		heard = true
		silence.Reset(c.follow.silence)
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			event.read(line)
			continue
		}
		if event.data != nil {
			if err := told(event.kind, event.data); err != nil {
				return heard, err
			}
		}
		if after != nil && event.id != "" {
			*after = event.id
		}
		event = message{}
	}
}

// message is one server-sent event as it is read.
type message struct {
	id, kind string
	data     []byte
}

// read takes one line; comments and fields that the engine does not send are left out.
func (m *message) read(line []byte) {
	switch name, value, _ := bytes.Cut(line, []byte(": ")); string(name) {
	case "id":
		m.id = string(value)
	case "event":
		m.kind = string(value)
	case "data":
		m.data = value
	}
}

func decode(kind string, data []byte) (message Message, err error) {
	switch kind {
	case web.StreamRun:
		err = json.Unmarshal(data, &message.Run)
	case web.StreamDecision:
		err = json.Unmarshal(data, &message.Decision)
	case web.StreamPlan:
		err = json.Unmarshal(data, &message.Plan)
	case web.StreamAlert:
		err = json.Unmarshal(data, &message.Alert)
	}
	if err != nil {
		return Message{}, fmt.Errorf("decode %s of the stream: %w", kind, err)
	}
	return message, nil
}
