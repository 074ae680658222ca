package access

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// bodyPatience is how long the next bytes of a body may take to come where a Guard does not say.
	bodyPatience = 30 * time.Second
	// bodyPatiences is how many times as long a body may take that is no upload: it is a few kilobytes, or a chain with
	// its scripts, and who sends a byte every 29 seconds would hold a connection and its goroutine for years.
	bodyPatiences = 4
)

// TooLarge is the refusal of a body of more than limit bytes.
func TooLarge(limit int64) *Refusal {
	return &Refusal{
		http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %s", quantity.Bytes(limit)),
		"put large data where the pipeline can read it and pass its name",
	}
}

// watchBody makes a body that stops coming, or trickles and is no upload, an error of whoever reads it, a Refusal, and
// lets the server give up what nobody reads.
func watchBody(w http.ResponseWriter, r *http.Request, patience time.Duration, upload bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	body := &watchedBody{ReadCloser: r.Body, connection: http.NewResponseController(w), patience: patience}
	if !upload {
		body.whole = time.Now().Add(bodyPatiences * patience)
	}
	body.wait(patience)
	r.Body = body
}

// watchedBody moves the deadline of its connection with everything that comes. The server takes the deadline back
// before it reads the next request; what comes after a body, on the connection of an answer that goes on, may take any
// time.
type watchedBody struct {
	io.ReadCloser
	connection *http.ResponseController
	patience   time.Duration
	whole      time.Time // when it must have come whole; zero for an upload
	ended      bool
}

// wait sets the deadline; 0 takes it back. A connection that has none, as in tests of handlers, is waited for.
func (b *watchedBody) wait(patience time.Duration) {
	var until time.Time
	if patience > 0 {
		until = time.Now().Add(patience)
		if !b.whole.IsZero() && b.whole.Before(until) {
			until = b.whole
		}
	}
	_ = b.connection.SetReadDeadline(until)
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	if !b.ended {
		b.wait(b.patience)
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		said := fmt.Sprintf("nothing more of the body came for %s", b.patience)
		if !b.whole.IsZero() && !time.Now().Before(b.whole) {
			said = fmt.Sprintf("the body was not whole after %s", bodyPatiences*b.patience)
		}
		err = &Refusal{http.StatusRequestTimeout, said, "send it again"}
	case !b.ended:
		b.ended = true
		b.wait(0)
	}
	return n, err
}
