package access

import (
	"context"
	"io"
	"net/http"
	"time"
)

// answerPiece is how much of an answer is written in one go, in bytes, where its source is copied: all of it has to be
// taken within the patience with the reader.
const answerPiece = 256 << 10

// watchedAnswer moves the deadline of its connection with everything that is written: a reader who takes nothing of an
// answer for long is given up. What the handler has to say may take any time. A handler that sets deadlines itself has
// its own.
type watchedAnswer struct {
	http.ResponseWriter

	connection *http.ResponseController
	patience   time.Duration
	// forgets says that a deadline that passes between two writes would end the answer, as with HTTP/2, and not the next
	// write alone.
	forgets bool
	own     bool // the handler sets deadlines
	// counts ends with the token or session that was shown, after which nothing more is written, whatever the handler
	// copies; nil is no end. Cut says that something was not.
	counts context.Context //nolint:containedctx // it is the life of a token
	cut    bool
}

// watchAnswer returns a writer that watches how an answer is taken, and what is to be called when the handler returns.
func watchAnswer(w http.ResponseWriter, r *http.Request, patience time.Duration) (*watchedAnswer, func()) {
	a := &watchedAnswer{
		ResponseWriter: w, connection: http.NewResponseController(w), patience: patience, forgets: r.ProtoMajor >= 2,
	}
	// On a connection that is used again there may be that of the answer before, which the server's own 100 Continue must
	// not meet.
	_ = a.connection.SetWriteDeadline(time.Time{})
	return a, a.wait // the server writes what it still has
}

// wait sets the deadline. Before it writes, the server may wait for what is left of the body, for as long as that is
// waited for. A connection that has no deadline, as in tests of handlers, is waited for.
func (a *watchedAnswer) wait() {
	if !a.own {
		_ = a.connection.SetWriteDeadline(time.Now().Add(2 * a.patience))
	}
}

// written takes the deadline back where it would end the answer.
func (a *watchedAnswer) written() {
	if a.forgets && !a.own {
		_ = a.connection.SetWriteDeadline(time.Time{})
	}
}

// Unwrap is for http.ResponseController.
func (a *watchedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// SetWriteDeadline is for http.ResponseController.
func (a *watchedAnswer) SetWriteDeadline(until time.Time) error {
	a.own = true
	return a.connection.SetWriteDeadline(until)
}

// WriteHeader implements http.ResponseWriter.
func (a *watchedAnswer) WriteHeader(status int) {
	a.wait()
	a.ResponseWriter.WriteHeader(status)
	a.written()
}

// over says why nothing more may be written; nil as long as it may.
func (a *watchedAnswer) over() error {
	if a.counts == nil || a.counts.Err() == nil {
		return nil
	}
	a.cut = true
	return context.Cause(a.counts)
}

// Write implements io.Writer.
func (a *watchedAnswer) Write(p []byte) (int, error) {
	if err := a.over(); err != nil {
		return 0, err
	}
	defer a.written()
	a.wait()
	return a.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (a *watchedAnswer) FlushError() error {
	defer a.written()
	a.wait()
	return a.connection.Flush()
}

// Flush implements http.Flusher.
func (a *watchedAnswer) Flush() { _ = a.FlushError() }

// ReadFrom implements io.ReaderFrom: in pieces, so that the deadline moves, each of which may still go from a file to a
// socket without being copied.
func (a *watchedAnswer) ReadFrom(source io.Reader) (total int64, err error) {
	defer a.written()
	limited, is := source.(*io.LimitedReader) // net unwraps one, which is the piece's
	for {
		piece, from := int64(answerPiece), source
		if is {
			piece, from = min(piece, limited.N), limited.R
		}
		if piece <= 0 {
			return total, nil
		}
		if err := a.over(); err != nil {
			return total, err
		}
		a.wait()
		n, err := io.CopyN(a.ResponseWriter, from, piece)
		total += n
		if is {
			limited.N -= n
		}
		if err == io.EOF { //nolint:errorlint // as io.CopyN returns it
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
