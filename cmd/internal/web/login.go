package web

import (
	"net/http"

	"github.com/spillway-ml/spillway/activities/access"
)

// Login is what one browser logs in with, once, within ten minutes: it opens a view of the page with #login=CODE behind
// it. Browsers send no fragment, so the code is in no log and no referrer; the page sends it to /api/v1/session.
type Login struct {
	Code string `json:"code"`
}

// newLogin answers POST /api/v1/logins.
func (s *Server) newLogin(r *http.Request) (Login, error) {
	if err := decodeBody(r, &nothing{}); err != nil {
		return Login{}, err
	}
	return Login{Code: s.logins.Code()}, nil
}

// logIn answers POST /api/v1/session.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) {
	var login Login
	if err := decodeBody(r, &login); err != nil {
		s.refuse(w, r, err)
		return
	}
	if !s.logins.Redeem(login.Code) {
		s.refuse(w, r, &access.Refusal{
			Status: http.StatusUnauthorized, Message: "the link has been used, or is older than ten minutes or the engine",
			Hint: "open the one that `spillway open` prints",
		})
		return
	}
	s.keys.SetSession(w, r.TLS != nil)
	s.write(w, r, http.StatusOK, nothing{})
}
