package web

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// NewToken is the body of POST /api/v1/tokens.
type NewToken struct {
	// Name says for whom, or for what, it is made.
	Name string `json:"name"`
	// Role is "viewer", who reads, "operator", who starts and steers runs as well, or "admin", who may do everything.
	Role string `json:"role"`
	// Team is whose it is; empty is the default team.
	Team string `json:"team,omitempty"`
}

// MadeToken is a token that was just made. It is a secret, and nobody can read it again.
type MadeToken struct {
	Token string `json:"token"`
}

// IssuedToken is a token that was made for somebody.
type IssuedToken struct {
	Name   string    `json:"name"`
	Role   string    `json:"role"`
	Team   string    `json:"team,omitempty"`
	MadeAt time.Time `json:"made_at"`
	// MadeBy is who has made it; nil where that is not known.
	MadeBy *access.Maker `json:"made_by,omitempty"`
}

// tokensAnswer is the answer of GET /api/v1/tokens.
type tokensAnswer struct {
	Tokens []IssuedToken `json:"tokens"`
}

// tokens answers GET /api/v1/tokens.
func (s *Server) tokens(*http.Request) (tokensAnswer, error) {
	answer := tokensAnswer{Tokens: []IssuedToken{}}
	for _, issued := range s.issued.Issued() {
		one := IssuedToken{Name: issued.Name, Role: issued.Role, Team: issued.Team, MadeAt: issued.Made}
		if issued.By != (access.Maker{}) {
			one.MadeBy = &issued.By
		}
		answer.Tokens = append(answer.Tokens, one)
	}
	return answer, nil
}

// makeToken answers POST /api/v1/tokens.
func (s *Server) makeToken(r *http.Request) (MadeToken, error) {
	var wanted NewToken
	if err := decodeBody(r, &wanted); err != nil {
		return MadeToken{}, err
	}
	if declared := s.teams.Now(); !declared.Declares(wanted.Team) {
		return MadeToken{}, Invalid("there are "+strings.Join(declared.Names(), ", ")+"; the file that --teams-file of the "+
			"server names declares others", "there is no team %q", wanted.Team)
	}
	token, err := s.issued.Make(r.Context(), wanted.Name, wanted.Role, wanted.Team, time.Now())
	switch {
	case errors.Is(err, access.ErrRole), errors.Is(err, access.ErrTokenName), errors.Is(err, access.ErrTeamName):
		return MadeToken{}, Invalid("", "%v", err)
	case errors.Is(err, access.ErrTokenTaken), errors.Is(err, access.ErrTokens):
		return MadeToken{}, Conflict("`spillway token list` lists them", "%v", err)
	case err != nil:
		return MadeToken{}, err
	}
	s.logger.InfoContext(r.Context(), "a token was made", "for", wanted.Name, "role", wanted.Role, "team", wanted.Team,
		"who", access.NameOfCaller(r.Context()), "from", r.RemoteAddr)
	return MadeToken{token}, nil
}

// revokeToken answers DELETE /api/v1/tokens/{name}.
func (s *Server) revokeToken(r *http.Request) (nothing, error) {
	// A request ends with its token, which may be this one.
	err := s.issued.Revoke(context.WithoutCancel(r.Context()), r.PathValue("name"))
	if errors.Is(err, access.ErrNoToken) {
		err = NotFound("`spillway token list` lists them", "%v", err)
	}
	return nothing{}, err
}

// audited tells the log who has changed what, once it is answered.
func (s *Server) audited(t route) http.HandlerFunc {
	if t.method == http.MethodGet || t.asks || t.silent {
		return t.handler
	}
	return func(w http.ResponseWriter, r *http.Request) {
		answered := &answeredWriter{ResponseWriter: w, status: http.StatusOK}
		t.handler(answered, r)
		line := s.logger
		if who := access.WhoAsks(r.Context()); who.Subject != "" { // a name may change, or be somebody else's next year
			line = line.With("issuer", who.Issuer, "subject", who.Subject)
		}
		line.InfoContext(r.Context(), "asked for a change", "who", access.NameOfCaller(r.Context()), "from", r.RemoteAddr,
			"method", r.Method, "path", r.URL.Path, "status", answered.status)
	}
}

// answeredWriter knows the status of an answer.
type answeredWriter struct {
	http.ResponseWriter

	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *answeredWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *answeredWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
