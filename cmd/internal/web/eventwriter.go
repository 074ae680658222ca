package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// eventWriter writes server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	texts   [][]byte // what waits to be written
	waiting int      // its length in bytes
}

// newEventWriter begins the answer.
func newEventWriter(w http.ResponseWriter, stall time.Duration) *eventWriter {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	return &eventWriter{w: w, control: http.NewResponseController(w), stall: stall}
}

// add keeps an encoded message until the next flush.
func (e *eventWriter) add(text []byte) {
	e.texts = append(e.texts, text)
	e.waiting += len(text)
}

// put encodes and keeps a message.
func (e *eventWriter) put(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	e.add(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text))
	return nil
}

// reach tells how far the reader has got, without a message: browsers keep an ID that comes without data, and report no
// event.
func (e *eventWriter) reach(mark string) { e.add([]byte("id: " + mark + "\n\n")) }

// heartbeat keeps the connection from being taken for dead.
func (e *eventWriter) heartbeat() { e.add([]byte(": heartbeat\n\n")) }

// flush writes what waits. A reader that does not take it in time is dropped: its connection breaks.
func (e *eventWriter) flush() error {
	deadline := time.Now().Add(e.stall)
	if err := e.control.SetWriteDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the write: %w", err)
	}
	for _, text := range e.texts {
		if _, err := e.w.Write(text); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	e.texts, e.waiting = nil, 0
	return e.control.Flush()
}
