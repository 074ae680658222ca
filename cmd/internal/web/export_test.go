package web

import (
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// Callers are who may ask each route, but for those of artifacts.
func Callers() map[string]access.Caller {
	all := map[string]access.Caller{}
	for _, route := range New(Options{
		Metrics: http.NotFoundHandler(), Tokens: &access.Tokens{}, Sessions: &access.Sessions{},
	}).table {
		all[route.pattern()] = route.allows()
	}
	return all
}

// SetPace lets tests hurry. It is called before the first request.
func (s *Server) SetPace(gap, heartbeat, stall time.Duration) {
	s.pace = pace{gap: gap, heartbeat: heartbeat, stall: stall}
}

// Handle answers a pattern that no route has declared, as one that is mounted beside the table would be. It is called
// before the first request.
func (s *Server) Handle(pattern string, handler http.HandlerFunc) { s.mux.HandleFunc(pattern, handler) }

// Readers is how many streams are open.
func (f *Feed) Readers() int { return readers(f) }

// LocalPath is where a browser goes after a sign-in.
func LocalPath(to string) string { return localPath(to) }

// IsOfIssuer says whether a text looks like a token of an issuer.
func IsOfIssuer(token, issuer string) bool { return isOfIssuer(token, issuer) }

// AllowSignIns returns what says whether something more is done for an address that wants to sign in.
func AllowSignIns() func(from string, now time.Time) bool { return newSignInLimit().allow }
