package function

import (
	"crypto/hmac"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxErrorBytes bounds an error that a runtime posts.
const maxErrorBytes = 1 << 20

// runtimeAPI returns the Runtime API of one environment, below the path /secret of its address:
// https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html. Others, web pages among them, learn nothing there and
// can do nothing. It has no access.Guard: a runtime knows no credential but the path, is no browser, and may take for a
// body as long as its invocation lasts.
func (e *environment) runtimeAPI(address, secret string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", e.serveNext)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", e.serveResponse)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", e.serveError)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", e.serveInitError)
	own := http.StripPrefix("/"+secret, mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != http.NoBody {
			allowBody(w, time.Now().Add(e.patience))
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case !hmac.Equal([]byte(first), []byte(secret)):
			w.Header().Set("Connection", "close")
			refuse(w, http.StatusNotFound, "UnknownOperation", "there is nothing here")
		case r.Host != address || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "":
			w.Header().Set("Connection", "close")
			refuse(w, http.StatusForbidden, "AccessDenied", "only the runtime of this environment may ask, where it was told to")
		default:
			own.ServeHTTP(w, r)
		}
	})
}

// allowBody lets the body of a request arrive until then.
func allowBody(w http.ResponseWriter, until time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(until) // not supported without a connection
}

// serveNext completes the invocation before, if there was one, and waits for another.
func (e *environment) serveNext(w http.ResponseWriter, r *http.Request) {
	if !e.completeCurrent() {
		refuse(w, http.StatusForbidden, "InvalidStateTransition", "the current invocation has no response yet")
		return
	}
	select {
	case inv := <-e.work:
		e.mu.Lock()
		e.current = inv
		e.mu.Unlock()
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Lambda-Runtime-Aws-Request-Id", inv.id)
		h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(inv.deadline.UnixMilli(), 10))
		h.Set("Lambda-Runtime-Invoked-Function-Arn", e.config.arn())
		h.Set("Lambda-Runtime-Trace-Id", inv.traceID)
		if inv.clientContext != "" {
			h.Set("Lambda-Runtime-Client-Context", inv.clientContext)
		}
		if _, err := w.Write(inv.payload); err != nil {
			e.kill() // a runtime that hangs up on its invocation cannot answer it
		}
	case <-e.exited:
	case <-r.Context().Done():
	}
}

// completeCurrent ends the current invocation. It returns false if the runtime has not answered it.
func (e *environment) completeCurrent() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != nil {
		if e.current.posted == nil {
			return false
		}
		close(e.current.done)
		e.current = nil
	}
	if !e.asked {
		e.asked = true
		close(e.ready)
	}
	return true
}

// deadline returns until when the answer to invocation id may arrive: a handler that streams it may pause for as long
// as it may run.
func (e *environment) deadline(id string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current == nil || e.current.id != id || e.current.posted != nil {
		return time.Now().Add(e.patience)
	}
	return e.current.deadline.Add(e.patience)
}

// post stores the answer to invocation id. It returns false if that invocation does not wait for one.
func (e *environment) post(id string, a answer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current == nil || e.current.id != id || e.current.posted != nil {
		return false
	}
	e.current.posted = &a
	return true
}

// serveResponse takes the payload of the current invocation. A handler that streams its answer reports an error
// halfway in the trailers.
func (e *environment) serveResponse(w http.ResponseWriter, r *http.Request) {
	allowBody(w, e.deadline(r.PathValue("id")))
	payload, err := readAtMost(r.Body, maxAnswerBytes)
	a := answer{payload: payload}
	status := http.StatusAccepted
	switch errorType := r.Trailer.Get("Lambda-Runtime-Function-Error-Type"); {
	case errors.Is(err, errTooLong):
		status = http.StatusRequestEntityTooLarge
		const tooLarge = "Function.ResponseSizeTooLarge"
		a = answer{failed: true, errorType: tooLarge, payload: errorPayload(tooLarge,
			fmt.Sprintf("Response payload size exceeded maximum allowed payload size (%d bytes).", maxAnswerBytes))}
	case err != nil:
		return // the runtime is gone; its exit ends the invocation
	case errorType != "":
		body, err := base64.StdEncoding.DecodeString(r.Trailer.Get("Lambda-Runtime-Function-Error-Body"))
		if err != nil || len(body) == 0 {
			body = errorPayload(errorType, "the function failed while it wrote its response")
		}
		a = answer{failed: true, errorType: errorType, payload: body}
	}
	if !e.post(r.PathValue("id"), a) {
		refuse(w, http.StatusBadRequest, "InvalidRequestID", "no invocation with this ID waits for a response")
		return
	}
	if status != http.StatusAccepted {
		refuse(w, status, "RequestEntityTooLarge", fmt.Sprintf("a response holds at most %d bytes", maxAnswerBytes))
		return
	}
	w.WriteHeader(status)
}

// serveError takes the error of the current invocation.
func (e *environment) serveError(w http.ResponseWriter, r *http.Request) {
	payload, err := readAtMost(r.Body, maxErrorBytes)
	if err != nil {
		payload = errorPayload("Runtime.Unknown", "the runtime reported an error that could not be read: "+err.Error())
	}
	if !e.post(r.PathValue("id"), answer{payload: payload, failed: true, errorType: postedErrorType(payload)}) {
		refuse(w, http.StatusBadRequest, "InvalidRequestID", "no invocation with this ID waits for a response")
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// serveInitError takes the reason why the runtime cannot start.
func (e *environment) serveInitError(w http.ResponseWriter, r *http.Request) {
	payload, err := readAtMost(r.Body, maxErrorBytes)
	if err != nil {
		payload = errorPayload("Runtime.Unknown", "the runtime reported an error that could not be read: "+err.Error())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked || e.initError != nil {
		refuse(w, http.StatusForbidden, "InvalidStateTransition", "the init phase is over")
		return
	}
	e.initError = payload
	close(e.failed)
	w.WriteHeader(http.StatusAccepted)
}

// refuse answers a request of the runtime with an error.
func refuse(w http.ResponseWriter, status int, errorType, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(errorPayload(errorType, message)) // the runtime is gone if this fails
}

// errTooLong is returned by readAtMost.
var errTooLong = errors.New("too long")

// readAtMost reads all of r. If r holds more than limit bytes it reads on to the end, so that the writer is not cut
// off before it reads the refusal, and returns errTooLong.
func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) <= limit {
		return b, nil
	}
	if _, err := io.CopyN(io.Discard, r, min(16*limit, 4*maxUploadBytes)); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return nil, errTooLong
}
