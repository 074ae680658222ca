package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// Login is what one browser logs in with, once, within ten minutes: it opens a view of the page with #login=CODE behind
// it. Browsers send no fragment, so the code is in no log and no referrer; the page sends it to /api/v1/session.
type Login struct {
	Code string `json:"code"`
}

// NewSession is the body of POST /api/v1/session: one of the two.
type NewSession struct {
	// Code is that of a Login.
	Code string `json:"code,omitempty"`
	// Token is one that was made for somebody, or the owner's.
	Token string `json:"token,omitempty"`
	// Replace says that a code may take the place of whom the browser is logged in as. Else that is refused: whoever
	// follows a link of somebody else would go on as that one without knowing.
	Replace bool `json:"replace,omitempty"`
}

// newLogin answers POST /api/v1/logins. A browser is let in as who has asked, and no longer.
func (s *Server) newLogin(r *http.Request) (Login, error) {
	if err := decodeBody(r, &nothing{}); err != nil {
		return Login{}, err
	}
	return Login{Code: s.logins.Code(access.WhoAsks(r.Context()).Credential)}, nil
}

// logIn answers POST /api/v1/session.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) {
	var login NewSession
	err := decodeBody(r, &login)
	var of string
	if err == nil {
		of, err = s.loginOf(r, login)
	}
	secure := r.TLS != nil
	switch {
	case err != nil:
	case of == "":
		s.keys.SetSession(w, secure)
	case s.sessions == nil:
		err = NotFound("ask with the token itself", "this engine keeps no sessions")
	default:
		now := time.Now()
		session := access.Session{Of: of, Way: access.WayPage, From: r.RemoteAddr, Until: now.Add(access.TokenSession)}
		var token string
		if token, err = s.sessions.Make(r.Context(), session, now); err == nil {
			s.keys.ShowSession(w, secure, token, session.Until)
		}
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.write(w, r, http.StatusOK, nothing{})
}

// loginOf says what ends the session of who logs in so: the digest of a token, or nothing for the owner.
func (s *Server) loginOf(r *http.Request, login NewSession) (of string, err error) {
	switch {
	case login.Token == "":
		if err := s.replaces(r, login); err != nil {
			return "", err
		}
		of, known := s.logins.Redeem(login.Code)
		if !known {
			return "", &access.Refusal{
				Status: http.StatusUnauthorized, Message: "the link has been used, or is older than ten minutes or the engine",
				Hint: "open the one that `spillway open` prints",
			}
		}
		return of, nil
	case login.Code != "":
		return "", Invalid("send one of them", "there is a code and a token")
	case s.keys.IsToken(login.Token):
		return "", nil
	}
	of, known := s.issued.Digest(login.Token)
	if !known {
		return "", &access.Refusal{
			Status: http.StatusUnauthorized, Message: "the token is none of this engine's, or was revoked",
			Hint: "`spillway token create` makes one",
		}
	}
	return of, nil
}

// replaces refuses a code that would log a browser in as somebody else than it is, unless that is wanted.
func (s *Server) replaces(r *http.Request, login NewSession) error {
	who := access.WhoAsks(r.Context())
	of, known := s.logins.Of(login.Code)
	if login.Replace || !known || who.Role == "" || who.Credential == of {
		return nil
	}
	return Conflict("sign out first, or ask again with \"replace\"", "this browser is logged in as %s, and the link is "+
		"somebody else's, or of another session", access.NameOfCaller(r.Context()))
}

// SessionAnswer is the answer of GET /api/v1/session: who asks, and how to sign in.
type SessionAnswer struct {
	// Name is who asks: of a token or of a person, "owner", and empty for nobody.
	Name string `json:"name"`
	// Role is "viewer", "operator" or "admin", and empty for nobody; Team is empty for the default team.
	Role string `json:"role"`
	Team string `json:"team,omitempty"`
	// Issuer and Subject say who has signed in, in words that never change.
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Until is when the session ends at the latest; nil where none ends.
	Until *time.Time `json:"until,omitempty"`
	// SignIn is the identity provider with which people sign in; nil for none.
	SignIn *SignIn `json:"sign_in,omitempty"`
}

// SignIn says with which identity provider people sign in.
type SignIn struct {
	// Title is what it is called, Issuer its URL, and Path where a browser signs in.
	Title  string `json:"title"`
	Issuer string `json:"issuer"`
	Path   string `json:"path"`
	// Problem says why nobody can sign in now; empty where nothing is known to be wrong.
	Problem string `json:"problem,omitempty"`
}

// session answers GET /api/v1/session.
func (s *Server) session(r *http.Request) (SessionAnswer, error) {
	who := access.WhoAsks(r.Context())
	answer := SessionAnswer{
		Name: who.Name, Role: who.Role, Team: who.Team, Issuer: who.Issuer, Subject: who.Subject,
	}
	if who.Role != "" && who.Name == "" {
		answer.Name = access.NameOfCaller(r.Context())
	}
	if !who.Until.IsZero() {
		answer.Until = &who.Until
	}
	if s.signIn != nil {
		answer.SignIn = &SignIn{
			Title: s.signIn.Title(), Issuer: s.signIn.Issuer(), Path: SignInPath, Problem: s.signIn.Problem(),
		}
		if who.Role == "" && answer.SignIn.Problem != "" {
			answer.SignIn.Problem = "nobody can sign in now: the log of the server says why"
		}
	}
	return answer, nil
}

// signOut answers DELETE /api/v1/session.
func (s *Server) signOut(w http.ResponseWriter, r *http.Request) {
	who := access.WhoAsks(r.Context())
	var err error
	switch {
	case who.Session != "":
		err = s.sessions.End(context.WithoutCancel(r.Context()), who.Session) // the request ends with its session
		if errors.Is(err, access.ErrNoSession) {
			err = nil
		}
	case r.Header.Get("Authorization") != "" && who.Role == "":
		err = &access.Refusal{Status: http.StatusUnauthorized, Message: "what was shown is no session, or one that has ended"}
	case r.Header.Get("Authorization") != "":
		err = Conflict("`spillway token revoke` ends it", "what was shown is a token, and no session")
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.keys.ForgetSession(w, r.TLS != nil)
	s.write(w, r, http.StatusOK, nothing{})
}

// DeviceCode is what a command line is given that wants to be let in (RFC 8628, section 3.2).
type DeviceCode struct {
	// DeviceCode is what it asks with; it is a secret.
	DeviceCode string `json:"device_code"`
	// UserCode is what who signs in compares.
	UserCode string `json:"user_code"`
	// VerificationURI is where a browser signs in, and VerificationURIComplete the same with the code and, sealed, the
	// address that has asked for it.
	VerificationURI         string `json:"verification_uri"`
	VerificationURIComplete string `json:"verification_uri_complete"`
	// ExpiresIn is how long both codes count, and Interval how long to wait between two questions, in seconds.
	ExpiresIn int `json:"expires_in"`
	Interval  int `json:"interval"`
}

// deviceInterval is how long a command line waits between two questions, in seconds.
const deviceInterval = 2

// errNoSignIn says that people sign in nowhere.
func errNoSignIn() error {
	return NotFound("start the server with --oidc-issuer, or ask with a token that `spillway token create` made",
		"this server has no identity provider to sign in with")
}

// newDevice answers POST /api/v1/session/device.
func (s *Server) newDevice(r *http.Request) (DeviceCode, error) {
	if err := decodeBody(r, &nothing{}); err != nil {
		return DeviceCode{}, err
	}
	if s.signIn == nil {
		return DeviceCode{}, errNoSignIn()
	}
	if err := s.slow(r); err != nil {
		return DeviceCode{}, err
	}
	if err := s.signIn.Reach(r.Context()); err != nil {
		return DeviceCode{}, signInError(err)
	}
	device := s.keys.NewDevice(time.Now())
	at := here(r)
	return DeviceCode{
		DeviceCode: device.Code, UserCode: device.UserCode, VerificationURI: at + DevicePath,
		VerificationURIComplete: at + deviceLink(device.UserCode, s.sealFrom(device.UserCode, r)),
		ExpiresIn:               int(access.DeviceLife.Seconds()), Interval: deviceInterval,
	}, nil
}

// WaitingDevice is the body of POST /api/v1/session/device/token.
type WaitingDevice struct {
	DeviceCode string `json:"device_code"`
}

// MadeSession is a session that was just made; where it is still to be confirmed there is no token yet.
type MadeSession struct {
	// Token is what is shown as bearer; it is a secret, and nobody can read it again. Empty while nobody has confirmed.
	Token string `json:"token,omitempty"`
	// Pending says that nobody has confirmed yet.
	Pending bool `json:"pending,omitempty"`
	// Name, Role, Team and Until are as in SessionAnswer.
	Name  string     `json:"name,omitempty"`
	Role  string     `json:"role,omitempty"`
	Team  string     `json:"team,omitempty"`
	Until *time.Time `json:"until,omitempty"`
}

func madeSession(token string, session access.Session) MadeSession {
	return MadeSession{
		Token: token, Name: session.Name, Role: session.Role, Team: session.Team, Until: &session.Until,
	}
}

// awaitDevice answers POST /api/v1/session/device/token.
func (s *Server) awaitDevice(r *http.Request) (MadeSession, error) {
	var waiting WaitingDevice
	if err := decodeBody(r, &waiting); err != nil {
		return MadeSession{}, err
	}
	if s.signIn == nil {
		return MadeSession{}, errNoSignIn()
	}
	token, session, err := s.sessions.Collect(r.Context(), waiting.DeviceCode, r.RemoteAddr, time.Now())
	switch {
	case errors.Is(err, access.ErrDevicePending):
		return MadeSession{Pending: true}, nil
	case errors.Is(err, access.ErrNoSession):
		return MadeSession{}, Invalid("`spillway login` begins anew", "%v", err)
	case err != nil:
		return MadeSession{}, signInError(err)
	}
	s.signedIn(r, session)
	return madeSession(token, session), nil
}

// ShownIDToken is the body of POST /api/v1/session/token.
type ShownIDToken struct {
	// IDToken is one that the identity provider made for the client of this server.
	IDToken string `json:"id_token"`
}

// exchange answers POST /api/v1/session/token.
func (s *Server) exchange(r *http.Request) (MadeSession, error) {
	var shown ShownIDToken
	if err := decodeBody(r, &shown); err != nil {
		return MadeSession{}, err
	}
	if s.signIn == nil {
		return MadeSession{}, errNoSignIn()
	}
	if !isOfIssuer(shown.IDToken, s.signIn.Issuer()) {
		return MadeSession{}, &Error{
			Status: http.StatusUnauthorized, Message: "what was shown is no ID token of " + s.signIn.Issuer(),
			Hint: "ask the provider for one that is made for the client of this server",
		}
	}
	if err := s.slow(r); err != nil {
		return MadeSession{}, err
	}
	signed, err := s.signIn.Verify(r.Context(), shown.IDToken)
	if err != nil {
		return MadeSession{}, signInError(err)
	}
	session := s.sessionOf(signed, access.WayCommandLine, r)
	token, err := s.sessions.Make(r.Context(), session, time.Now())
	if err != nil {
		return MadeSession{}, signInError(err)
	}
	s.signedIn(r, session)
	return madeSession(token, session), nil
}

// isOfIssuer says whether a text looks like a token of an issuer (RFC 7519), whose signature is to be verified then. It
// asks nobody.
func isOfIssuer(token, issuer string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var said struct {
		Issuer string `json:"iss"`
	}
	// Some tokens of Google say the issuer without its scheme.
	return err == nil && json.Unmarshal(text, &said) == nil &&
		(said.Issuer == issuer || "https://"+said.Issuer == issuer)
}

// SignedIn is somebody who is signed in, or a browser that has shown a token.
type SignedIn struct {
	Name    string    `json:"name"`
	Role    string    `json:"role"`
	Team    string    `json:"team,omitempty"`
	Issuer  string    `json:"issuer,omitempty"`
	Subject string    `json:"subject,omitempty"`
	Way     string    `json:"way"`
	From    string    `json:"from"`
	MadeAt  time.Time `json:"made_at"`
	Until   time.Time `json:"until"`
}

// sessionsAnswer is the answer of GET /api/v1/sessions.
type sessionsAnswer struct {
	Sessions []SignedIn `json:"sessions"`
}

// allSessions answers GET /api/v1/sessions.
func (s *Server) allSessions(*http.Request) (sessionsAnswer, error) {
	answer := sessionsAnswer{Sessions: []SignedIn{}}
	for _, one := range s.sessions.Standing(time.Now()) {
		answer.Sessions = append(answer.Sessions, SignedIn{
			Name: one.Name, Role: one.Role, Team: one.Team, Issuer: one.Issuer, Subject: one.Subject, Way: one.Way,
			From: one.From, MadeAt: one.Made, Until: one.Until,
		})
	}
	return answer, nil
}

// EndedSessions says how many sessions were ended.
type EndedSessions struct {
	Ended int `json:"ended"`
}

// endSessions answers DELETE /api/v1/sessions/{name}.
func (s *Server) endSessions(r *http.Request) (EndedSessions, error) {
	ended, err := s.sessions.EndOf(context.WithoutCancel(r.Context()), r.PathValue("name"))
	if errors.Is(err, access.ErrNoSession) {
		err = NotFound("`spillway sessions list` lists them", "%v", err)
	}
	return EndedSessions{ended}, err
}
