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

// A Server relays a store on a port of the loopback interface.
type Server struct {
	store    activities.Store
	token    string
	logger   *slog.Logger
	listener net.Listener
	server   *http.Server
}

// Listen takes a free port and returns a server that relays the store to whoever shows the token, once Serve is called.
func Listen(ctx context.Context, store activities.Store, token string, logger *slog.Logger) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the relay of artifacts: %w", err)
	}
	s := &Server{store: store, token: token, logger: logger, listener: listener}
	routes := http.NewServeMux()
	routes.HandleFunc("PUT /{$}", s.put)
	routes.HandleFunc("GET /{digest}", s.get)
	if board, is := store.(activities.Board); is {
		routes.Handle("/"+boardPath, http.StripPrefix("/"+strings.TrimSuffix(boardPath, "/"), exchange.Handler(board)))
	}
	routes.Handle("/"+serverPath,
		http.StripPrefix("/"+strings.TrimSuffix(serverPath, "/"), exchange.Handler(&exchange.Memory{})))
	guard := access.Guard{Rule: func(*http.Request) access.Rule { return access.Rule{Needs: access.Anyone} }}
	s.server = access.NewServer(guard.Wrap(s.admit(routes)), logger)
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

func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	ref, err := s.store.Put(r.Context(), r.Body)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(ref); err != nil {
		s.logger.DebugContext(r.Context(), "a reference was not answered", "error", err)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	content, err := s.store.Open(r.Context(), r.PathValue("digest"))
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	defer content.Close() //nolint:errcheck // it was only read
	w.Header().Set("Content-Type", "application/octet-stream")
	_, err = io.Copy(w, content)
	if err == nil || errors.Is(err, activities.ErrCorrupt) { // the client looks at the digest itself
		return
	}
	if r.Context().Err() == nil {
		s.logger.WarnContext(r.Context(), "artifact not answered to its end", "digest", r.PathValue("digest"), "error", err)
	}
	panic(http.ErrAbortHandler) // the server's way to break an answer off
}

// refuse says what was wrong, so that the client's error is what the store's would have been.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
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
