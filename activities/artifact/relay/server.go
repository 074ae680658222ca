package relay

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/exchange"
)

// user is the name before the token in the URL.
const user = "artifacts"

// What else than artifacts is served below the address: the store's board, and a parameter server.
const (
	boardPath  = "boards/"
	serverPath = "server/"
)

// Served is what a relay hands on.
type Served struct {
	// Store has the artifacts; required.
	Store activities.Store
	// Board is below /boards/; nil where there is none.
	Board activities.Board
	// Parameters is the parameter server, below /server/; nil where there is none.
	Parameters exchange.Averager
}

// Of returns what the relay of a store hands on: the store, its board where it has one, and a parameter server in the
// memory of this process.
func Of(store activities.Store) Served {
	served := Served{Store: store, Parameters: &exchange.Memory{}}
	served.Board, _ = store.(activities.Board) // nil where it has none
	return served
}

// Handler answers as a relay does. Who may ask is not its business.
func Handler(served Served, logger *slog.Logger) http.Handler {
	h := &handler{served.Store, logger}
	routes := http.NewServeMux()
	routes.HandleFunc("PUT /{$}", h.put)
	routes.HandleFunc("GET /{digest}", h.get)
	below := func(prefix string, board activities.Board) {
		routes.Handle("/"+prefix, http.StripPrefix("/"+strings.TrimSuffix(prefix, "/"), exchange.Handler(board)))
	}
	if served.Board != nil {
		below(boardPath, served.Board)
	}
	if served.Parameters != nil {
		below(serverPath, served.Parameters)
	}
	return routes
}

// A Server relays a store on a port of the loopback interface.
type Server struct {
	token    string
	listener net.Listener
	server   *http.Server
}

// Listen takes a free port and returns a server that answers with handler, one that Handler has returned, to whoever
// shows the token, once Serve is called.
func Listen(ctx context.Context, handler http.Handler, token string, logger *slog.Logger) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the relay of artifacts: %w", err)
	}
	s := &Server{token: token, listener: listener}
	guard := access.Guard{Rule: func(*http.Request) access.Rule {
		return access.Rule{Needs: access.Anyone, Upload: true}
	}}
	s.server = access.NewServer(guard.Wrap(s.admit(handler)), logger)
	return s, nil
}

// URL is what those processes are told; it holds the token.
func (s *Server) URL() string {
	address := url.URL{Scheme: "http", Host: s.listener.Addr().String(), User: url.UserPassword(user, s.token)}
	return address.String()
}

// Serve answers until Close.
func (s *Server) Serve() error {
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("relay artifacts: %w", err)
	}
	return nil
}

// Close ends what goes on and frees the port.
func (s *Server) Close() error { return errors.Join(s.server.Close(), closed(s.listener.Close())) }

// closed forgets that a listener was closed before.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// admit refuses who does not show the token.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, shown, _ := r.BasicAuth()
		if name != user || subtle.ConstantTimeCompare([]byte(shown), []byte(s.token)) != 1 {
			w.Header().Set("Connection", "close") // what is left of a body is not waited for
			w.Header().Set("WWW-Authenticate", `Basic realm="spillway artifacts"`)
			http.Error(w, "no credential of this engine was shown", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// handler answers for a store.
type handler struct {
	store  activities.Store
	logger *slog.Logger
}

func (h *handler) put(w http.ResponseWriter, r *http.Request) {
	ref, err := h.store.Put(r.Context(), r.Body)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(ref); err != nil {
		h.logger.DebugContext(r.Context(), "a reference was not answered", "error", err)
	}
}

func (h *handler) get(w http.ResponseWriter, r *http.Request) {
	content, err := h.store.Open(r.Context(), r.PathValue("digest"))
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	defer content.Close() //nolint:errcheck // it was only read
	w.Header().Set("Content-Type", "application/octet-stream")
	_, err = io.Copy(w, content)
	if err == nil || errors.Is(err, activities.ErrCorrupt) { // the client looks at the digest itself
		return
	}
	if r.Context().Err() == nil {
		h.logger.WarnContext(r.Context(), "artifact not answered to its end", "digest", r.PathValue("digest"), "error", err)
	}
	panic(http.ErrAbortHandler) // the server's way to break an answer off
}

// refuse says what was wrong, so that the client's error is what the store's would have been.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway
	switch {
	case errors.Is(err, activities.ErrMissing):
		status = http.StatusNotFound
	case errors.Is(err, activities.ErrNoRoom):
		status = http.StatusInsufficientStorage
	case errors.Is(err, activities.ErrCorrupt):
		status = http.StatusConflict
	case r.Context().Err() != nil:
		return // nobody listens
	}
	http.Error(w, err.Error(), status)
}
