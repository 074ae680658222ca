package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// bodyLimit bounds the body of a request: the size of JetStream's largest message.
const bodyLimit = 8 << 20

// headerLimit is how long a client may take to send the header of a request.
const headerLimit = 10 * time.Second

// Options configures a [Server].
type Options struct {
	// Engine answers; required.
	Engine Engine
	// Artifacts is what PUT and GET /api/v1/artifacts write and read; nil leaves both out.
	Artifacts activities.Store
	// Feed tells what changed; nil means that streams tell only what is there when they open.
	Feed *Feed
	// Ready waits until the engine's answers are whole, and returns why not when ctx ends before: an Error of Starting. Nil means always.
	Ready func(ctx context.Context) error
	// Metrics answers GET /metrics; nil leaves it out.
	Metrics http.Handler
	// Page answers every path that is not of the API; nil answers them with 404.
	Page http.Handler
	// Logger takes a line for each answer that is a failure of the engine; nil discards them.
	Logger *slog.Logger
}

// Server answers HTTP requests. Use [New].
type Server struct {
	engine    Engine
	artifacts activities.Store
	feed      *Feed
	ready     func(context.Context) error
	logger    *slog.Logger
	pace      pace
	table     []route
	described func() (json.RawMessage, error) // the document of the table
	handler   http.Handler
	server    *http.Server
	closing   chan struct{} // closed when Close begins: streams end
}

// New returns a Server.
func New(options Options) *Server {
	s := &Server{
		engine: options.Engine, artifacts: options.Artifacts, feed: options.Feed, ready: options.Ready, logger: options.Logger,
		pace: usualPace(), closing: make(chan struct{}),
	}
	if s.feed == nil {
		s.feed = &Feed{}
	}
	if s.ready == nil {
		s.ready = func(context.Context) error { return nil }
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	s.described = sync.OnceValues(s.document)
	s.handler = s.guard(s.mux(options))
	s.server = &http.Server{Handler: s.handler, ReadHeaderTimeout: headerLimit, ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug)}
	s.server.RegisterOnShutdown(func() { close(s.closing) })
	return s
}

// Serve answers requests on listener until Close; it then returns nil.
func (s *Server) Serve(listener net.Listener) error {
	if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Close ends all streams, lets the other requests finish until ctx ends, and then cuts what is left. It may be called once.
func (s *Server) Close(ctx context.Context) error {
	if err := s.server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("close the API: %w", err), s.server.Close())
	}
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// guard refuses what did not come from this machine's user: names that resolve here from elsewhere (DNS rebinding), requests that a
// page of another origin makes, and posts that a browser sends without asking first because of their content type.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff") // names, errors and logs may be anybody's HTML
		header.Set("Referrer-Policy", "no-referrer")
		if err := admit(r); err != nil {
			s.refuse(w, r, err)
			return
		}
		if r.Method != http.MethodPut { // an artifact goes to the disk as it comes, which is its only limit
			r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
		}
		next.ServeHTTP(w, r)
	})
}

func admit(r *http.Request) error {
	if !loopback(r.Host) {
		return &Error{
			Status: http.StatusForbidden, Message: fmt.Sprintf("the API is for this machine only, and the host %q is not a loopback name", r.Host),
			Hint: "use http://127.0.0.1 or http://localhost with the port",
		}
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return &Error{Status: http.StatusForbidden, Message: fmt.Sprintf("pages of %s may not use the API", origin)}
	}
	switch r.Method {
	case http.MethodPost:
		return admitContent(r, "application/json", "send JSON")
	case http.MethodPut:
		return admitContent(r, octets, "send bytes")
	default:
		return nil
	}
}

// octets is the content type of artifacts. Like JSON it is none that a page can send to another origin without asking.
const octets = "application/octet-stream"

func admitContent(r *http.Request, wanted, advice string) error {
	given := r.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(given); err == nil && kind == wanted {
		return nil
	}
	return &Error{
		Status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("the content type %q is not %s", given, wanted),
		Hint: advice + " with the header Content-Type: " + wanted,
	}
}

// loopback reports whether host, with or without a port, names this machine's loopback interface.
func loopback(host string) bool {
	name := host
	if bare, _, err := net.SplitHostPort(host); err == nil {
		name = bare
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
}

// answer makes a handler that writes what handle returns as JSON.
func answer[T any](s *Server, handle func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := handle(r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		s.write(w, r, http.StatusOK, value)
	}
}

// refuse answers with err; a failure of the engine is logged too, because its user may not be the one who can mend it.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	said := statusOf(err)
	if said.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(said.RetryAfter.Seconds())))
	} else if said.Status >= http.StatusInternalServerError && r.Context().Err() == nil {
		s.logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	s.write(w, r, said.Status, struct {
		Error *Error `json:"error"`
	}{said})
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		s.logger.ErrorContext(r.Context(), "answer does not encode", "path", r.URL.Path, "error", err)
		http.Error(w, `{"error":{"message":"the answer does not encode as JSON"}}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the client went away; there is nobody to tell
}

// decodeBody reads the body of r into target; fields that it does not know are refused, because they are misspelt ones.
func decodeBody(r *http.Request, target any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(target)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("there is more after the JSON value")
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it is empty")
	}
	return Invalid("send one JSON object; the fields are in the documentation of the API", "the body is refused: %v", err)
}
