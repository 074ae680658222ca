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

// bodyPatience is how long the next bytes of a body may take to come where a Guard does not say.
const bodyPatience = 30 * time.Second

// TooLarge is the refusal of a body of more than limit bytes.
func TooLarge(limit int64) *Refusal {
	return &Refusal{
		http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %s", quantity.Bytes(limit)),
		"put large data where the pipeline can read it and pass its name",
	}
}

// watchBody makes a body that stops coming an error of whoever reads it, a Refusal, and lets the server give up what
// nobody reads.
func watchBody(w http.ResponseWriter, r *http.Request, patience time.Duration) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	body := &watchedBody{ReadCloser: r.Body, connection: http.NewResponseController(w), patience: patience}
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
	ended      bool
}

// wait sets the deadline; 0 takes it back. A connection that has none, as in tests of handlers, is waited for.
func (b *watchedBody) wait(patience time.Duration) {
	var until time.Time
	if patience > 0 {
		until = time.Now().Add(patience)
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
		err = &Refusal{
			http.StatusRequestTimeout, fmt.Sprintf("nothing more of the body came for %s", b.patience),
			"send it again",
		}
	case !b.ended:
		b.ended = true
		b.wait(0)
	}
	return n, err
}
