package trigger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// maxBody is the largest body that can become a run's input, in bytes: Temporal refuses more than 2 MiB, and some of it
// is encoding.
const maxBody = 2<<20 - 16<<10

// maxID is the longest event ID that appears in a run's name as it is, in bytes.
const maxID = 200

// event is a message of the event stream, as it came.
type event struct {
	id       string
	subject  string
	sequence uint64
	header   nats.Header
	body     []byte
	at       time.Time // when it was published; the zero time before
	// stale says that it comes again, and is older than runs are remembered: nobody knows any more whether it has started
	// its own.
	stale bool
}

// newEvent names the event. The ID is that of the header wire.IDHeader (a replay keeps its first ID this way), else
// Nats-Msg-Id, else the stream's name in lower case and the sequence: two equal bodies without an ID are two events.
func newEvent(stream string, sequence uint64, subject string, header nats.Header, body []byte) event {
	id := header.Get(wire.IDHeader)
	if id == "" {
		id = header.Get(wire.MessageIDHeader)
	}
	if id == "" {
		id = strings.ToLower(stream) + "-" + strconv.FormatUint(sequence, 10)
	}
	return event{id: id, subject: subject, sequence: sequence, header: header, body: body}
}

// RunID is the workflow ID of the run of pipeline that an event starts: "<pipeline>-<event>", or "<pipeline>--<event>"
// for a pipeline whose name has a dash, so that no two pairs share one. The event's part is a hash ("sha256-" and 32
// hexadecimal digits) when the event ID is empty, longer than 200 bytes, not printable ASCII (calls to Temporal carry a
// run's name in a header, and those that it cannot hold fail for ever), or has a dash at its beginning or two in a row;
// and always for a pipeline whose own name ends in a dash or has two in a row.
func RunID(pipeline, event string) string {
	odd := strings.Contains(pipeline, "--") || strings.HasPrefix(pipeline, "-") || strings.HasSuffix(pipeline, "-")
	if odd || !isPlain(event) {
		sum := sha256.Sum256([]byte(strconv.Itoa(len(pipeline)) + ":" + pipeline + event))
		event = "sha256-" + hex.EncodeToString(sum[:16])
	}
	return pipeline + wire.RunSeparator(pipeline) + event
}

// isPlain reports whether an event ID can be part of a run's name as it is.
func isPlain(id string) bool {
	ascii := strings.IndexFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) < 0
	return id != "" && len(id) <= maxID && ascii && !strings.HasPrefix(id, "-") && !strings.Contains(id, "--")
}

// checkID refuses an ID that no event can have: lists, logs and headers carry it.
func checkID(id string) error {
	err := wire.CheckText(id, wire.MaxName)
	if err == nil && strings.TrimSpace(id) != id {
		err = errors.New("it has a space at an end: leave that out")
	}
	if err != nil {
		const advice = "publish it with an ID of letters, digits and dashes"
		return fmt.Errorf("the event's ID %.60q is refused: %w, and %s", id, err, advice)
	}
	return nil
}

// input is the body as a run takes it: an empty body is an empty object. The decoded form is for filters and schemas.
func (e event) input() (encoded json.RawMessage, decoded any, err error) {
	if len(e.body) > maxBody {
		return nil, nil, fmt.Errorf("body is %s, and a run's input is at most %s: put the data into an artifact or a file "+
			"and send its address",
			quantity.Bytes(len(e.body)), quantity.Bytes(maxBody))
	}
	encoded = bytes.TrimSpace(e.body)
	if len(encoded) == 0 {
		encoded = json.RawMessage("{}")
	}
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		return nil, nil, describeSyntax(encoded, err)
	}
	if !utf8.Valid(encoded) {
		return nil, nil, errors.New("body is not JSON: it is not UTF-8")
	}
	return encoded, decoded, nil
}

// describeSyntax says in which line and column JSON went wrong, both from 1.
func describeSyntax(data []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return fmt.Errorf("body is not JSON: %w", err)
	}
	before := data[:min(int(syntax.Offset), len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Errorf("body is not JSON: line %d, column %d: %w", line, max(column, 1), err)
}

// options is how the event wants its run to be started.
func (e event) options() (options wire.RunOptions, err error) {
	if text := e.header.Get(wire.RunHeader); text != "" {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&options); err != nil {
			return options, fmt.Errorf(`header %s does not say how to run: %w: write it like {"cache":true}`, wire.RunHeader,
				err)
		}
	}
	options.EventAt, options.Traceparent = e.at, e.header.Get(wire.TraceHeader)
	return options, nil
}

// goal is the goal that came with the event; found is false when none did.
func (e event) goal() (goal predictor.Goal, found bool, err error) {
	text := e.header.Get(wire.GoalHeader)
	if text == "" {
		return goal, false, nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&goal); err != nil {
		return goal, true, fmt.Errorf(`header %s is no goal: %w: write it like {"deadline_ns":60000000000,"minimise":"cost"}`,
			wire.GoalHeader, err)
	}
	if decoder.More() {
		return goal, true, fmt.Errorf("header %s is no goal: there is something after it", wire.GoalHeader)
	}
	if err := runs.CheckGoal(goal); err != nil {
		return goal, true, fmt.Errorf("header %s: %w", wire.GoalHeader, err)
	}
	return goal, true, nil
}
