package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// bodyLimit bounds the body of a request: the size of JetStream's largest message.
const bodyLimit = 8 << 20

// loginLimit bounds what somebody sends whom nobody knows yet: a short code, or a token. An ID token may be longer.
const (
	loginLimit   = 4 << 10
	idTokenLimit = 64 << 10
)

// Options configures a [Server].
type Options struct {
	// Engine answers; required.
	Engine Engine
	// Keys tell who asks; nil lets nobody in.
	Keys *access.Keys
	// Tokens are those that were made for others than the owner; nil leaves them out.
	Tokens *access.Tokens
	// Sessions are those of who has signed in, or has shown such a token in a browser; nil leaves them out.
	Sessions *access.Sessions
	// SignIn is the identity provider with which people sign in; nil for none.
	SignIn *signin.Provider
	// Teams are those that are declared; nil for none.
	Teams *teams.File
	// Names are the names and addresses by which the engine is reached over TLS; empty for none.
	Names []string
	// HostOf says of which host, that has joined, a token is; nil knows none.
	HostOf func(token string) (host string, known bool)
	// Artifacts is what PUT and GET /api/v1/artifacts write and read; nil leaves both out.
	Artifacts activities.Store
	// ArtifactsMax bounds what artifacts take together; 0 is no bound. ArtifactsUsage says what they take; it is asked
	// once a minute at most, and required with a bound.
	ArtifactsMax   quantity.Bytes
	ArtifactsUsage func() (quantity.Bytes, error)
	// Feed tells what changed; nil means that streams tell only what is there when they open.
	Feed *Feed
	// Ready waits until the engine's answers are whole, and returns why not when ctx ends before: an Error of Starting.
	// Nil means always.
	Ready func(ctx context.Context) error
	// Hosts answers what hosts elsewhere ask, below join.AskPrefix and join.BuildPrefix; nil leaves it out. It is no part
	// of the documented API.
	Hosts http.Handler
	// Codec encrypts and decrypts payloads of Temporal, as its SDK's handler of HTTP does; nil leaves it out.
	Codec http.Handler
	// Metrics answers GET /metrics; nil leaves it out.
	Metrics http.Handler
	// Page is what browsers are shown; nil leaves it out.
	Page *Page
	// Logger takes a line for each answer that is a failure of the engine; nil discards them.
	Logger *slog.Logger
}

// Server answers HTTP requests. Use [New].
type Server struct {
	engine      Engine
	artifacts   activities.Store
	feed        *Feed
	logins      access.Logins
	room        room
	accepted    accepted
	keys        *access.Keys
	issued      *access.Tokens
	sessions    *access.Sessions
	signIn      *signin.Provider
	teams       *teams.File
	names       []string
	hostOf      func(string) (string, bool)
	ready       func(context.Context) error
	logger      *slog.Logger
	pace        pace
	table       []route
	mux         *http.ServeMux
	rules       map[string]access.Rule          // by the pattern of the mux
	described   func() (json.RawMessage, error) // the document of the table
	handler     http.Handler
	server      *http.Server
	signInLimit signInLimit
	closing     chan struct{} // closed when Close begins: streams end
}

// New returns a Server.
func New(options Options) *Server {
	s := &Server{
		engine: options.Engine, keys: options.Keys, issued: options.Tokens, teams: options.Teams,
		sessions: options.Sessions, signIn: options.SignIn, signInLimit: newSignInLimit(),
		names: options.Names, hostOf: options.HostOf,
		artifacts: options.Artifacts, feed: options.Feed, ready: options.Ready,
		logger: options.Logger,
		room:   room{most: options.ArtifactsMax, usage: options.ArtifactsUsage}, pace: usualPace(),
		closing: make(chan struct{}),
	}
	if s.feed == nil {
		s.feed = &Feed{}
	}
	if s.ready == nil {
		s.ready = func(context.Context) error { return nil }
	}
	s.logger = cmp.Or(s.logger, slog.New(slog.DiscardHandler))
	s.described = sync.OnceValues(s.document)
	s.mount(options)
	s.handler = s.guard().Wrap(s.mux)
	s.server = access.NewServer(s.handler, s.logger)
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

// Close ends all streams, lets the other requests finish until ctx ends, and then cuts what is left. It may be called
// once.
func (s *Server) Close(ctx context.Context) error {
	if err := s.server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("close the API: %w", err), s.server.Close())
	}
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// octets is the content type of artifacts. Like JSON it is none that a page can send to another origin without asking.
const octets = "application/octet-stream"

// guard asks of each request what its route says. All else that the mux answers is the owner's.
func (s *Server) guard() *access.Guard {
	return &access.Guard{
		Keys: s.keys, Tokens: s.issued, Sessions: s.sessions, Names: s.names, Hosts: s.hostOf,
		Rule: func(r *http.Request) access.Rule {
			if rule, declared := s.rules[s.pattern(r)]; declared {
				return rule
			}
			return access.Rule{MaxBody: bodyLimit}
		},
		Refuse: func(w http.ResponseWriter, r *http.Request, refusal *access.Refusal) { s.refuse(w, r, refusal) },
	}
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

// refuse answers with err; a failure of the engine is logged too, because its user may not be the one who can fix it.
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
	return decodeBy(decoder, target)
}

// decodeJoining is decodeBody for what programs of a later version send: what they say besides is left out.
func decodeJoining(r *http.Request, target any) error {
	return decodeBy(json.NewDecoder(r.Body), target)
}

func decodeBy(decoder *json.Decoder, target any) error {
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
	if refusal, ok := errors.AsType[*access.Refusal](err); ok {
		return refusal
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it is empty")
	}
	return Invalid("send one JSON object; the fields are in the documentation of the API", "the body is refused: %s",
		wrongIn(err))
}
